"""Requests: when they come, how long their prompts are, and how much of those is cached."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.errors import UsageError

_MOST = 100_000_000  # requests, or tokens of one: more than any server keeps


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt of which ``cached`` tokens lie in the host's memory; it wants ``output`` tokens."""

    arrival: float
    prompt: int
    cached: int
    output: int

    @property
    def tokens(self) -> int:
        """The tokens whose keys and values it holds at its end."""
        return self.prompt + self.output


def arriving(
    count: int,
    *,
    prompt: int,
    output: int,
    hit: float,
    rate: float = math.inf,
    shortest: float = 1.0,
    seed: int = 0,
) -> list[Request]:
    """Make ``count`` requests that come by chance, ``rate`` a second; endless: all at once.

    Prompts and answers are of any length between ``shortest`` of the given ones and those. At
    least one token of a prompt is computed: the first answer needs the output of the last one.
    """
    if count < 1 or prompt < 1 or output < 1:
        raise UsageError(
            "count, prompt and output must be at least 1 (got "
            f"{count} requests, {prompt} and {output} tokens)",
            "Use 1 or more of each.",
        )
    if max(count, prompt, output) > _MOST:
        raise UsageError(
            f"count, prompt and output must be at most {_MOST:,} (got "
            f"{count} requests, {prompt} and {output} tokens)",
            f"Use {_MOST:,} or fewer of each.",
        )
    if not 0.0 <= hit <= 1.0:
        raise UsageError(f"hit: must be from 0 to 1 (got {hit:g})", "Use 0 for no cached tokens.")
    if not rate > 0.0:
        raise UsageError(
            f"rate: must be above 0 (got {rate:g} requests a second)",
            "Omit it if all come at once.",
        )
    if not 0.0 < shortest <= 1.0:
        raise UsageError(f"shortest: must be above 0 and at most 1 (got {shortest:g})")
    chance = np.random.default_rng(seed)
    gaps = chance.exponential(1.0, count)
    gaps[0] = 0.0
    lengths = np.ceil(chance.uniform(shortest, 1.0, (count, 2)) * (prompt, output)).astype(int)
    arrivals = (np.cumsum(gaps) / rate).tolist()
    return [
        Request(at, length, min(int(hit * length), length - 1), answer)
        for at, (length, answer) in zip(arrivals, lengths.tolist(), strict=True)
    ]
