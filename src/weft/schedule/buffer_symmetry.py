"""Whether symmetric ranks also access their buffers symmetrically.

Rank symmetry says that ranks do the same to each other at the same time. It says nothing about
offsets, which differ between ranks. Accesses are symmetric if a buffer is divided into chunks,
every access names its chunk by a position in a group, and moving the ranks permutes the chunks:
then accesses that overlap on one rank overlap on all. Chunks may be divided again, so the location
of an access is written in digits, the coarsest first.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from weft.schedule.accesses import accesses
from weft.schedule.ir import Repeat, bodies
from weft.schedule.rank_symmetry import Symmetry, commutes
from weft.schedule.values import Group, Index, Rel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.schedule.ir import Buffer, Command, Slice
    from weft.schedule.schedule import Schedule


class Digit(NamedTuple):
    """Positions in a group, each a chunk of ``scale`` bytes."""

    group: Group
    scale: int

    @property
    def block(self) -> int:
        """The bytes of all positions together."""
        return self.group.size * self.scale


@dataclass(frozen=True, slots=True)
class _Use:
    """One stored access: its digits, what is added to them, and its length."""

    digits: tuple[Digit, ...]
    index: Index | None  # of the last digit
    added: tuple[
        tuple[int, int], ...
    ]  # the base and each loop: increment per iteration, and its maximum
    nbytes: int


def buffers_are_symmetric(flat: Schedule, symmetry: Symmetry) -> bool:
    """Return whether all ranks of a symmetry class access their buffers symmetrically."""
    uses: dict[str, list[_Use]] = {buffer.name: [] for buffer in flat.buffers}
    for command, counts in _stored(flat):
        for _, where in accesses(command):
            use = _use(where, counts, symmetry)
            if use is None or where.buffer not in uses:
                return False
            uses[where.buffer].append(use)
    return all(_fits(buffer, uses[buffer.name]) for buffer in flat.buffers)


def _stored(flat: Schedule) -> Iterator[tuple[Command, tuple[int, ...]]]:
    """Yield every stored command with the counts of its enclosing loops."""
    pending: list[tuple[Command | Repeat, tuple[int, ...]]] = [
        (c, ()) for p in flat.programs for queue in p.queues for c in queue.commands
    ]
    while pending:
        item, counts = pending.pop()
        if isinstance(item, Repeat):
            pending += [(c, (*counts, item.count)) for c in item.body]
            continue
        yield item, counts
        for body in bodies(item):
            pending += [(c, counts) for c in body]


def _use(where: Slice, counts: tuple[int, ...], symmetry: Symmetry) -> _Use | None:
    """Return an access in digits, or None if it has no such form."""
    offset = Rel(where.offset) if isinstance(where.offset, int) else where.offset
    length = where.nbytes if isinstance(where.nbytes, int) else where.nbytes.base
    if isinstance(where.nbytes, Rel) and (any(where.nbytes.steps) or where.nbytes.terms):
        return None
    terms = sorted((t for t in offset.terms if t.varies), key=lambda t: -t.scale)
    if any(t.table or t.scale < 0 or not commutes(t.index, symmetry) for t in terms):
        return None
    if any(t.index.masks for t in terms[:-1]):
        return None
    base = offset.base + sum(t.table[0] for t in offset.terms if t.table)  # all entries are equal
    digits = tuple(Digit(t.index.group, t.scale) for t in terms)
    loops = zip(offset.steps, counts, strict=False)
    added = ((base, base), *((step, step * max(0, count - 1)) for step, count in loops))
    if any(most < 0 for _, most in added):
        return None
    return _Use(digits, terms[-1].index if terms else None, added, length)


def _fits(buffer: Buffer, uses: list[_Use]) -> bool:
    used = [use for use in uses if use.nbytes]
    digits = max((use.digits for use in used), key=len, default=())
    if not digits:
        return isinstance(buffer.nbytes, int) or len(set(buffer.nbytes)) == 1
    if not isinstance(buffer.nbytes, int) or buffer.nbytes % digits[0].block:
        return False
    nested = all(
        inner.block <= outer.scale and outer.scale % inner.block == 0
        for outer, inner in pairwise(digits)
    )
    return nested and all(_in_digits(use, digits) for use in used)


def _in_digits(use: _Use, digits: tuple[Digit, ...]) -> bool:
    """Return whether an access covers a chunk, whole sub-chunks, or part of a smallest chunk."""
    if use.digits != digits[: len(use.digits)]:
        return False
    block = digits[0].block
    inside = sum(
        most for each, most in use.added if each % block
    )  # the rest advances by whole blocks
    masks = use.index is not None and use.index.masks
    if len(use.digits) < len(digits):
        chunk = use.digits[-1].scale if use.digits else block
        whole = use.nbytes == chunk if use.digits else use.nbytes % chunk == 0
        return inside == 0 and whole and not masks
    scale = digits[-1].scale
    if not masks:
        return inside + use.nbytes <= scale
    # Several adjacent chunks, as in halving-doubling: a block of 2^k whose number the mask keeps.
    assert use.index is not None
    chunks, rest = divmod(use.nbytes, scale)
    power = chunks & (chunks - 1) == 0
    number = use.index.mask % use.index.group.size
    return inside == 0 and rest == 0 and power and number == use.index.group.size - chunks
