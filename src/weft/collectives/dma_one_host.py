"""Collectives moved by DMA engines; one host thread submits for all ranks of a node.

The variants follow the literature on latency-bound DMA collectives (arXiv 2511.06605): plain peer
copies, broadcast (one read, two writes), swap in place, back to back on one engine, and each of
them prelaunched. Ranks signal the host that they are ready, and the host signals completion; this
stands in for the single process that owns all GPUs in the paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from weft.collectives.parts import Chunks, Items, divided, in_out, in_place, launched, signal, wait
from weft.schedule import (
    SELF,
    Broadcast,
    Buffer,
    Command,
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
    Submit,
    Swap,
    Term,
    Wait,
    shifted,
)

Queues = list[tuple[Command, ...]]

HOST = 0  # the rank whose host thread submits for all ranks
READY, DONE, RELEASE = 0, 1, 2
SYNC = 3  # the first completion flag: every engine queue has one, and the host waits for each


def all_gather(
    num_ranks: int, nbytes: int, *, feature: str = "pcpy", prelaunch: bool = False
) -> Schedule:
    """Build an in-place all-gather: rank i's part is chunk i of ``data`` and goes to all ranks."""
    divided(nbytes, num_ranks, "all_gather")
    chunks = Chunks(Group(num_ranks), nbytes)
    place = Index(chunks.group)
    mine = chunks.slice(SELF, "data", place)
    theirs = [chunks.slice(shifted(chunks.group, k), "data", place) for k in range(1, num_ranks)]
    if feature == "bcst":
        # The broadcast command of an SDMA engine has two destinations, so half as many commands and
        # reads of the source.
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
    """Build an all-to-all; ``swap`` exchanges chunks in place, the other features do not."""
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


def _swaps(chunks: Chunks) -> list[tuple[range, Queues]]:
    """Return each pair of ranks once; pairs at distance n/2 belong to the lower half."""
    # A swap serves both ranks of a pair, so only one of them submits it.
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
    base = "dma" if feature == "pcpy" else f"dma-{feature}"
    return base + ("+prelaunch" if prelaunch else "")


@dataclass(frozen=True, slots=True)
class _Block:
    """Consecutive ranks that use equally many engines: the relative commands of each engine."""

    ranks: range
    engines: Queues
    first_sync: int

    def program(self, group: Group, local: Items) -> Program:
        """Return the queues of these ranks: their engines, and ``local`` work on a stream."""
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
        """Return the Submits of the host: one rank after another, all engines of each."""
        rank = shifted(group, self.ranks.start, 1)
        body = tuple(
            Submit(rank, f"copy{number}", len(commands) + 1, release)
            for number, commands in enumerate(self.engines)
        )
        return Repeat(len(self.ranks), body)

    @property
    def num_syncs(self) -> int:
        """The number of completions: one per engine of each rank."""
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
    """Build a schedule in which ranks run ``moves``, one per engine, submitted by one host.

    ``local`` is the work of a rank on its own memory, on a stream.
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
    """Return host commands that submit (or release) everything, then wait for completions."""
    # Prelaunched: commands wait in the engine queues behind a poll of RELEASE, and submission is
    # off the critical path.
    release = Flag(SELF, RELEASE) if prelaunch else None
    submits: Items = tuple(block.submits(group, release) for block in blocks if block.engines)
    ready = wait(READY, group.size - 1)
    start: Items = (ready, *submits)
    if prelaunch:
        start = (*submits, ready, signal(SELF, RELEASE))
    syncs = Repeat(num_syncs, (Wait(Flag(SELF, Rel(SYNC, (1,)))),))
    done = Repeat(group.size - 1, (signal(shifted(group, 1, 1), DONE),))
    return (*start, syncs, done)
