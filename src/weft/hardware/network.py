"""The levels of a network, and the notation for networks without devices.

``switch(8)@400GiB/s,936ns/switch(2048)@50GiB/s,2us`` is 2048 groups of 8 ranks: levels stand from
the inside out, each as ``kind(size)@rate,latency``.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal, get_args

from weft.errors import PlatformError, WeftError, nearest
from weft.hardware.quantity import (
    COUNT,
    RATE,
    TIME,
    Kind,
    OutOfRangeError,
    Rate,
    RatedRate,
    Seconds,
)

LevelKind = Literal["switch", "ring", "mesh"]
LEVEL_KINDS: tuple[LevelKind, ...] = get_args(LevelKind)

# A level begins after a slash that is followed by `word(`: the slash of `50GiB/s` is not.
_BETWEEN_LEVELS = re.compile(r"/(?=\s*\w+\s*\()")
_LEVEL = re.compile(r"\s*(\w+)\s*\(([^()]*)\)\s*@([^,]*)(?:,(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a network, in which every rank has a port of its own.

    ``rate`` is per rank and direction. A ``switch`` port carries it in and out; in a ``mesh`` it is
    split evenly over the links of a rank to the ``size - 1`` others; in a ``ring`` a rank has a
    link to each neighbour and each carries it in each direction. ``latency`` counts once per path
    through a switch and once per hop in a ring or mesh. ``rated`` is what the datasheet says.
    """

    kind: LevelKind
    size: int
    rate: Rate
    latency: Seconds = 0.0
    rated: RatedRate = None

    @property
    def link_rate(self) -> float:
        """The rate of one link in one direction."""
        return self.rate / max(1, self.size - 1) if self.kind == "mesh" else self.rate

    def cut(self, size: int) -> "Level":
        """Keep the first ``size`` ranks of the level.

        The links of a mesh keep their rate, so a rank loses those to the ranks that are gone. A
        ring is closed again behind its last rank.
        """
        if self.kind != "mesh" or self.size == 1:
            return replace(self, size=size)
        share = max(1, size - 1) / (self.size - 1)
        rated = None if self.rated is None else self.rated * share
        return replace(self, size=size, rate=self.rate * share, rated=rated)


def is_network(spec: str) -> bool:
    """Return whether ``spec`` is meant as a network rather than as a name."""
    return "(" in spec or "@" in spec


def parse_network(spec: str) -> tuple[Level, ...]:
    """Read the levels of a network from the inside out."""
    return tuple(
        _level(part, f"network {spec!r}, level {number}")
        for number, part in enumerate(_BETWEEN_LEVELS.split(spec), start=1)
    )


def format_network(levels: tuple[Level, ...]) -> str:
    """Write levels so that :func:`parse_network` reads the same ones."""
    return "/".join(_format_level(level) for level in levels)


def _format_level(level: Level) -> str:
    rate = RATE.write(level.rate)
    latency = TIME.write(level.latency)
    text = f"{level.kind}({level.size})@{rate if isinstance(rate, str) else f'{rate!r}B/s'}"
    if not level.latency:
        return text
    return f"{text},{latency if isinstance(latency, str) else f'{latency!r}s'}"


def _level(part: str, where: str) -> Level:
    match = _LEVEL.fullmatch(part)
    if match is None:
        raise PlatformError(
            f"{where}: expected kind(size)@rate,latency but found {part!r}",
            "For example switch(8)@400GiB/s,936ns or, without a latency, ring(128)@50GiB/s.",
        )
    kind, size, rate, latency = match.groups()
    return Level(
        level_kind(kind, where),
        int(_number(COUNT, _whole(size), where, "size")),
        _number(RATE, rate.strip(), where, "rate"),
        0.0 if latency is None else _number(TIME, latency.strip(), where, "latency"),
    )


def level_kind(kind: object, where: str) -> LevelKind:
    """Raise for an unknown kind of level."""
    if kind in LEVEL_KINDS:
        return kind
    raise PlatformError(
        f"{where}: kind {kind!r}: expected switch, ring or mesh", nearest(str(kind), LEVEL_KINDS)
    )


def _whole(digits: str) -> str | int:
    return int(digits) if re.fullmatch(r"\s*[0-9]{1,18}\s*", digits) else digits.strip()


def _number(kind: Kind, value: str | int, where: str, what: str) -> float:
    try:
        return kind.read(value)
    except OutOfRangeError as error:
        raise PlatformError(f"{where}: {what} {value!r}: expected {error}") from error
    except (ValueError, WeftError) as error:
        raise PlatformError(f"{where}: {what} {value!r}: expected {kind.expected}") from error
