"""Collectives moved by DMA engines, fed by one host thread for all ranks of a node.

The commands of the literature on latency-bound DMA collectives (arXiv 2511.06605): plain peer
copies, broadcast (one read, two writes), swap in place, back to back on one engine, and
each of them prelaunched. Ranks tell the host that they are ready and learn from it that
all is done, which stands in for the one process that owns all GPUs.
"""

from __future__ import annotations

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
    Repeat,
    Schedule,
    Slice,
    Submit,
    Swap,
    shifted,
)

if TYPE_CHECKING:
    from collections.abc import Callable

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
    name = f"{_name(feature, prelaunch)} all_gather"
    return _fed(name, num_ranks, lambda _: moves, (in_place(nbytes),), prelaunch=prelaunch)


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
        return _fed(
            name, num_ranks, lambda rank: _swaps(chunks, rank), buffers, prelaunch=prelaunch
        )
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
        lambda _: moves,
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


def _swaps(chunks: Chunks, rank: int) -> Queues:
    """Each pair of ranks once; the pairs half way round belong to the lower half."""
    group = chunks.group
    distances = list(range(1, (group.size - 1) // 2 + 1))
    if group.size % 2 == 0 and rank < group.size // 2:
        distances.append(group.size // 2)
    return [
        (
            Swap(
                chunks.slice(SELF, "data", Index(group, k)),
                chunks.slice(shifted(group, k), "data", Index(group)),
            ),
        )
        for k in distances
    ]


def _name(feature: str, prelaunch: bool) -> str:  # noqa: FBT001 - one caller above each
    plain = "dma" if feature == "pcpy" else f"dma-{feature}"
    return plain + ("+prelaunch" if prelaunch else "")


def _fed(
    name: str,
    num_ranks: int,
    moves: Callable[[int], Queues],
    buffers: tuple[Buffer, ...],
    *,
    prelaunch: bool,
    local: Items = (),
) -> Schedule:
    """Each rank runs ``moves``, an engine each and one sync an engine, fed by one host.

    ``local`` is what a rank does to its own memory on a stream.
    """
    programs = []
    submits: list[Submit] = []
    release = Flag(SELF, RELEASE) if prelaunch else None
    for rank in range(num_ranks):
        engines = moves(rank)
        first = SYNC + len(submits)
        queues = [
            Queue(f"copy{number}", (*commands, signal(HOST, first + number)), host=HOST)
            for number, commands in enumerate(engines)
        ]
        submits += [
            Submit(rank, f"copy{number}", len(commands) + 1, release)
            for number, commands in enumerate(engines)
        ]
        if local:
            queues.append(launched(local))
        if rank != HOST:
            queues.append(Queue("host", (signal(HOST, READY), wait(DONE))))
        programs.append(Program((rank,), tuple(queues)))
    host = Queue("host", _host_thread(num_ranks, tuple(submits), prelaunch=prelaunch))
    programs.append(Program((HOST,), (host,)))
    return Schedule(name, num_ranks, tuple(programs), buffers, SYNC + len(submits))


def _host_thread(num_ranks: int, submits: Items, *, prelaunch: bool) -> Items:
    """Hand everything over (ahead of time: release it), then look at every completion."""
    ready = wait(READY, num_ranks - 1)
    start = (*submits, ready, signal(SELF, RELEASE)) if prelaunch else (ready, *submits)
    syncs = tuple(wait(SYNC + number) for number in range(len(submits)))
    others = Group(num_ranks)
    done = Repeat(num_ranks - 1, (signal(shifted(others, 1, 1), DONE),))
    return (*start, *syncs, done)
