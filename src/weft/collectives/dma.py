"""Collectives moved by DMA engines, fed by one host thread for all ranks of a node.

The commands of the literature on latency-bound DMA collectives (arXiv 2511.06605): plain peer
copies, broadcast (one read, two writes), swap in place, back to back on one engine, and
each of them prelaunched. Ranks tell the host that they are ready and learn from it that
all is done, which stands in for the one process that owns all GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.collectives.parts import Chunks, divided, in_out, in_place, launched, own, signal, wait
from weft.schedule import (
    SELF,
    Broadcast,
    Buffer,
    Copy,
    Flag,
    Group,
    Index,
    Program,
    Queue,
    Rel,
    Repeat,
    Schedule,
    Signal,
    Slice,
    Submit,
    Swap,
    Term,
    Wait,
    shifted,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.collectives.parts import Items
    from weft.schedule import Command

    Queues = list[tuple[Command, ...]]

HOST = 0  # the rank whose host thread feeds everyone
READY, DONE, RELEASE = 0, 1, 2
SYNC = 3  # the first of the completions: every engine queue has one, and the host looks at each


def all_gather(
    num_ranks: int, nbytes: int, *, feature: str = "pcpy", prelaunch: bool = False
) -> Schedule:
    """In place: rank i's part stands at chunk i of ``data`` and goes to everyone."""
    divided(nbytes, num_ranks, "all_gather")
    chunks = Chunks(Group(num_ranks), nbytes)
    place = Index(chunks.group)
    mine = chunks.slice(SELF, "data", place)
    theirs = [chunks.slice(shifted(chunks.group, k), "data", place) for k in range(1, num_ranks)]
    if feature == "bcst":
        pairs = [theirs[k : k + 2] for k in range(0, num_ranks - 1, 2)]
        moves: Queues = [
            (Broadcast(mine, tuple(pair)) if len(pair) > 1 else Copy(mine, pair[0]),)
            for pair in pairs
        ]
    else:
        moves = [(Copy(mine, there),) for there in theirs]
    if feature == "b2b":
        moves = [tuple(c for move in moves for c in move)]
    name, everyone = f"{_name(feature, prelaunch)} all_gather", [(range(num_ranks), moves)]
    return _fed(name, num_ranks, everyone, (in_place(nbytes),), prelaunch=prelaunch)


def all_to_all(
    num_ranks: int, nbytes: int, *, feature: str = "pcpy", prelaunch: bool = False
) -> Schedule:
    """Chunk j of rank i becomes chunk i of rank j; ``swap`` in place, the others not."""
    divided(nbytes, num_ranks, "all_to_all")
    chunks = Chunks(Group(num_ranks), nbytes)
    name = f"{_name(feature, prelaunch)} all_to_all"
    place = Index(chunks.group)
    if feature == "swap":
        buffers: tuple[Buffer, ...] = (in_place(nbytes),)
        return _fed(name, num_ranks, _swaps(chunks), buffers, prelaunch=prelaunch)
    moves: Queues = []
    for k in range(1, num_ranks):
        src = chunks.slice(SELF, "in", Index(chunks.group, k))
        moves.append((Copy(src, chunks.slice(shifted(chunks.group, k), "out", place)),))
    if feature == "b2b":
        moves = [tuple(c for move in moves for c in move)]
    local = Copy(chunks.slice(SELF, "in", place), chunks.slice(SELF, "out", place))
    return _fed(
        name,
        num_ranks,
        [(range(num_ranks), moves)],
        in_out(nbytes, nbytes),
        prelaunch=prelaunch,
        local=(local,),
    )


def one_copy(nbytes: int) -> Schedule:
    """One copy from rank 0 to rank 1, from the call of the host to its being seen done."""
    copy = Copy(own("in", 0, nbytes), Slice(1, "out", 0, nbytes))
    engine = Queue("copy0", (copy, signal(HOST, SYNC)), host=HOST)
    fed = (wait(READY), Submit(SELF, "copy0", 2), wait(SYNC), signal(1, DONE))
    other = Program((1,), (Queue("host", (signal(HOST, READY), wait(DONE))),))
    buffers = (Buffer("in", (nbytes, 0), "in"), Buffer("out", (0, nbytes), "out"))
    programs = (Program((HOST,), (engine, Queue("host", fed))), other)
    return Schedule("one copy", 2, programs, buffers, SYNC + 1)


def _swaps(chunks: Chunks) -> list[tuple[range, Queues]]:
    """Each pair of ranks once; the pairs half way round belong to the lower half."""
    group, half = chunks.group, chunks.group.size // 2
    swaps: Queues = [
        (
            Swap(
                chunks.slice(SELF, "data", Index(group, k)),
                chunks.slice(shifted(group, k), "data", Index(group)),
            ),
        )
        for k in range(1, half + 1)
    ]
    if group.size % 2:
        return [(range(group.size), swaps)]
    return [(range(half), swaps), (range(half, group.size), swaps[:-1])]


def _name(feature: str, prelaunch: bool) -> str:  # noqa: FBT001 - one caller above each
    plain = "dma" if feature == "pcpy" else f"dma-{feature}"
    return plain + ("+prelaunch" if prelaunch else "")


@dataclass(frozen=True, slots=True)
class _Block:
    """Consecutive ranks that use as many engines: what each engine of theirs does, relatively."""

    ranks: range
    engines: Queues
    first_sync: int

    def program(self, group: Group, local: Items) -> Program:
        """The queues of these ranks: their engines, and ``local`` work on a stream."""
        place = Term(Index(group, -self.ranks.start), len(self.engines))
        queues = [
            Queue(
                f"copy{number}",
                (*commands, Signal(Flag(HOST, Rel(self.first_sync + number, terms=(place,))))),
                host=HOST,
            )
            for number, commands in enumerate(self.engines)
        ]
        return Program(self.ranks, (*queues, *((launched(local),) if local else ())))

    def submits(self, group: Group, release: Flag | None) -> Repeat:
        """What the host hands over: one rank after another, all engines of each."""
        rank = shifted(group, self.ranks.start, 1)
        body = tuple(
            Submit(rank, f"copy{number}", len(commands) + 1, release)
            for number, commands in enumerate(self.engines)
        )
        return Repeat(len(self.ranks), body)

    @property
    def num_syncs(self) -> int:
        """One completion for each engine of each rank."""
        return len(self.ranks) * len(self.engines)


def _fed(
    name: str,
    num_ranks: int,
    moves: Sequence[tuple[range, Queues]],
    buffers: tuple[Buffer, ...],
    *,
    prelaunch: bool,
    local: Items = (),
) -> Schedule:
    """Ranks run their ``moves``, an engine each and one sync an engine, fed by one host.

    ``local`` is what a rank does to its own memory on a stream.
    """
    blocks: list[_Block] = []
    for ranks, engines in moves:
        done = sum(block.num_syncs for block in blocks)
        blocks.append(_Block(ranks, engines, SYNC + done))
    num_syncs = sum(block.num_syncs for block in blocks)
    group = Group(num_ranks)
    waiting = Queue("host", (signal(HOST, READY), wait(DONE)))
    host = Queue("host", _host_thread(group, blocks, num_syncs, prelaunch=prelaunch))
    programs = (
        *(block.program(group, local) for block in blocks if block.engines or local),
        Program(range(1, num_ranks), (waiting,)),
        Program((HOST,), (host,)),
    )
    return Schedule(name, num_ranks, programs, buffers, SYNC + num_syncs)


def _host_thread(
    group: Group, blocks: Sequence[_Block], num_syncs: int, *, prelaunch: bool
) -> Items:
    """Hand everything over (ahead of time: release it), then look at every completion."""
    release = Flag(SELF, RELEASE) if prelaunch else None
    submits: Items = tuple(block.submits(group, release) for block in blocks if block.engines)
    ready = wait(READY, group.size - 1)
    start: Items = (ready, *submits)
    if prelaunch:
        start = (*submits, ready, signal(SELF, RELEASE))
    syncs = Repeat(num_syncs, (Wait(Flag(SELF, Rel(SYNC, (1,)))),))
    done = Repeat(group.size - 1, (signal(shifted(group, 1, 1), DONE),))
    return (*start, syncs, done)
