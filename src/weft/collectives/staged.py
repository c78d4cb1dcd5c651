"""Staged algorithms: ranks exchange their data through a small ring of slots in the symmetric heap.

Only the caller accesses its own memory, so that memory need not be shared, and every byte passes
the heap while it is in the caches. The data is cut into windows; while the peers work on one
window, a rank stages the next.

    data  | window 0 | window 1 | window 2 | ..    the caller's, private
              |          |          ^
    stage     v slot 0   v slot 1   | slot 0       in the heap: peers read it and write results

``direct`` builds the same commands with a stage that has the size and the offsets of the data. A
runtime uses these offsets when the data is in the heap: it then is its own stage, and copies
between the two are none.
"""

from collections.abc import Callable

from weft.collectives.parts import (
    ITEM_BYTES,
    Chunks,
    Items,
    copied_to,
    divided,
    in_out,
    in_place,
    launched,
    own,
    ranks_after,
    signal,
    wait,
)
from weft.schedule import (
    Buffer,
    Copy,
    Group,
    Program,
    Reduce,
    Schedule,
    Signal,
    Slice,
    Wait,
)

STAGE = "stage"
NUM_SLOTS = 2  # one is filled while the peers read the other
# Bytes of a window on all ranks: two slots of a rank's share fit a second-level cache of 1 MiB.
# 2 ranks, all_reduce of 1 MiB in windows of 64 KiB, 256 KiB and 1 MiB: 60, 44 and 43 us on ordinary
# memory, 35, 19 and 15 us in the heap. An all_gather in windows of 4 MiB takes twice as long.
WINDOW = 1 << 20
MAX_WINDOWS = 256  # more data has larger windows: a program is prepared in milliseconds


def all_reduce(
    num_ranks: int,
    nbytes: int,
    *,
    dtype: str = "uint8",
    op: str = "sum",
    window: int = WINDOW,
    direct: bool = False,
) -> Schedule:
    """Build an all-reduce in which every rank reduces its part of each window for all.

    It reads that part from the stages of the others and writes the result into them.
    """
    ring = _Ring(nbytes, window, direct=direct)
    parts = [Chunks(Group(num_ranks), size, ITEM_BYTES[dtype]) for size in ring.sizes]

    def around(me: int, k: int) -> list[tuple[int, int]]:
        """Return the parts of all others in a window: what is before mine and after it."""
        start, stop = parts[k].offsets[me : me + 2]
        return [(at, size) for at, size in ((0, start), (stop, ring.sizes[k] - stop)) if size]

    def data(k: int, at: int, size: int) -> Slice:
        return own("data", ring.starts[k] + at, size)

    def collect(me: int, k: int) -> Items:
        waits = tuple(_released(rank, k) for rank in ranks_after(me, num_ranks))
        return waits + tuple(
            Copy(ring.slot(me, k, ring.starts[k] + at, at, size), data(k, at, size))
            for at, size in around(me, k)
        )

    def items(me: int) -> Items:
        others = ranks_after(me, num_ranks)
        found: Items = ()
        for k in range(len(ring.sizes)):
            found += tuple(
                Copy(data(k, at, size), ring.slot(me, k, ring.starts[k] + at, at, size))
                for at, size in around(me, k)
            )
            found += _ready(me, others)
            # Collected one window late: the peers reduced window k - 1 while this rank staged k.
            found += collect(me, k - 1) if k else ()
            at, size = parts[k].offsets[me], parts[k].sizes[me]
            mine = data(k, at, size)
            staged = [ring.slot(r, k, ring.starts[k] + at, at, size) for r in range(num_ranks)]
            sources = (*staged[:me], mine, *staged[me + 1 :])
            found += tuple(_there(rank, k) for rank in others)
            found += (
                Reduce(sources, mine, dtype, op),
                *copied_to(mine, tuple(staged[rank] for rank in others)),
                *(_done(me, rank) for rank in others),
            )
        return found + collect(me, len(ring.sizes) - 1)

    return ring.schedule("all_reduce", num_ranks, items, (in_place(nbytes),))


def reduce_scatter(
    num_ranks: int,
    nbytes: int,
    *,
    dtype: str = "uint8",
    op: str = "sum",
    window: int = WINDOW,
    direct: bool = False,
) -> Schedule:
    """Build a reduce-scatter in which every rank reduces its part from the stages of the others."""
    chunk = divided(nbytes, num_ranks, "reduce_scatter")
    ring = _Ring(chunk, window // num_ranks, direct=direct, parts=num_ranks)

    def work(me: int, k: int) -> Items:
        others = ranks_after(me, num_ranks)
        mine = own("in", me * chunk + ring.starts[k], ring.sizes[k])
        staged = [ring.part(rank, k, me, chunk) for rank in range(num_ranks)]
        sources = (*staged[:me], mine, *staged[me + 1 :])
        return (
            *(_there(rank, k) for rank in others),
            Reduce(sources, own("out", ring.starts[k], ring.sizes[k]), dtype, op),
            *(_done(me, rank) for rank in others),
        )

    items = _exchanging(
        ring, num_ranks, lambda me: _parts_for_others(ring, num_ranks, me, chunk), work
    )
    return ring.schedule("reduce_scatter", num_ranks, items, in_out(nbytes, chunk))


def all_gather(
    num_ranks: int, nbytes: int, *, window: int = WINDOW, direct: bool = False
) -> Schedule:
    """Build an all-gather in which every rank reads the inputs of all others from their stages."""
    chunk = divided(nbytes, num_ranks, "all_gather")
    ring = _Ring(chunk, window // num_ranks, direct=direct)

    def stage(me: int) -> Callable[[int], Items]:
        return lambda k: (
            Copy(own("in", ring.starts[k], ring.sizes[k]), ring.part(me, k, 0, chunk)),
        )

    def work(me: int, k: int) -> Items:
        start, size = ring.starts[k], ring.sizes[k]
        found: Items = (Copy(own("in", start, size), own("out", me * chunk + start, size)),)
        for rank in ranks_after(me, num_ranks):
            out = own("out", rank * chunk + start, size)
            found += (_there(rank, k), Copy(ring.part(rank, k, 0, chunk), out), _done(me, rank))
        return found

    items = _exchanging(ring, num_ranks, stage, work)
    return ring.schedule("all_gather", num_ranks, items, in_out(chunk, nbytes))


def all_to_all(
    num_ranks: int, nbytes: int, *, window: int = WINDOW, direct: bool = False
) -> Schedule:
    """Build an all-to-all in which every rank reads its parts from the stages of the others."""
    chunk = divided(nbytes, num_ranks, "all_to_all")
    ring = _Ring(chunk, window // num_ranks, direct=direct, parts=num_ranks)

    def work(me: int, k: int) -> Items:
        start, size = ring.starts[k], ring.sizes[k]
        place = me * chunk + start
        found: Items = (Copy(own("in", place, size), own("out", place, size)),)
        for rank in ranks_after(me, num_ranks):
            out = own("out", rank * chunk + start, size)
            found += (_there(rank, k), Copy(ring.part(rank, k, me, chunk), out), _done(me, rank))
        return found

    items = _exchanging(
        ring, num_ranks, lambda me: _parts_for_others(ring, num_ranks, me, chunk), work
    )
    return ring.schedule("all_to_all", num_ranks, items, in_out(nbytes, nbytes))


class _Ring:
    """Windows of ``nbytes``, and the slots of ``parts`` such windows that they pass through."""

    def __init__(self, nbytes: int, window: int, *, direct: bool, parts: int = 1) -> None:
        window = max(window // 64 * 64, 64, -(-nbytes // MAX_WINDOWS // 64) * 64)
        self.starts = tuple(range(0, nbytes, window)) or (0,)
        self.sizes = tuple(min(window, nbytes - start) for start in self.starts)
        self._window, self._parts, self._direct, self._nbytes = window, parts, direct, nbytes

    def slot(self, rank: int, k: int, offset: int, at: int, nbytes: int) -> Slice:
        """Return bytes of window ``k`` from ``at`` on, which are at ``offset`` of the data."""
        place = k % NUM_SLOTS * self._window * self._parts + at
        return Slice(rank, STAGE, offset if self._direct else place, nbytes)

    def part(self, rank: int, k: int, part: int, chunk: int) -> Slice:
        """Return window ``k`` of a part of the data, all of which are ``chunk`` bytes long."""
        offset = part * chunk + self.starts[k]
        return self.slot(rank, k, offset, part * self._window, self.sizes[k])

    def schedule(
        self, name: str, num_ranks: int, items: Callable[[int], Items], buffers: tuple[Buffer, ...]
    ) -> Schedule:
        """Build the schedule of all ranks, with the stage behind the buffers of the caller."""
        size = self._nbytes if self._direct else min(NUM_SLOTS, len(self.sizes)) * self._window
        stage = Buffer(STAGE, size * self._parts)
        programs = tuple(Program((me,), (launched(items(me)),)) for me in range(num_ranks))
        flags = 2 * num_ranks
        return Schedule(f"staged {name}", num_ranks, programs, (*buffers, stage), flags)


def _exchanging(
    ring: _Ring,
    num_ranks: int,
    stage: Callable[[int], Callable[[int], Items]],
    work: Callable[[int, int], Items],
) -> Callable[[int], Items]:
    """Return the commands of a rank: it stages each window when its slot is free, then works."""

    def items(me: int) -> Items:
        others, count = ranks_after(me, num_ranks), len(ring.sizes)
        found: Items = ()
        for k in range(count):
            # The slot held window k - NUM_SLOTS; flags count windows, so a wait for it passes at
            # once if the peers are ahead.
            if k >= NUM_SLOTS:
                found += tuple(_released(rank, k - NUM_SLOTS) for rank in others)
            found += (*stage(me)(k), *_ready(me, others), *work(me, k))
        for k in range(max(0, count - NUM_SLOTS), count):
            found += tuple(_released(rank, k) for rank in others)
        return found

    return items


def _parts_for_others(ring: _Ring, num_ranks: int, me: int, chunk: int) -> Callable[[int], Items]:
    """Return the copies of a window: the part of every other rank into the stage."""
    return lambda k: tuple(
        Copy(
            own("in", rank * chunk + ring.starts[k], ring.sizes[k]),
            ring.part(me, k, rank, chunk),
        )
        for rank in ranks_after(me, num_ranks)
    )


# Every flag has one sender: in a sum of several, one rank could stand for another, which is a
# window behind.
def _ready(me: int, others: tuple[int, ...]) -> Items:
    return tuple(signal(rank, 2 * me) for rank in others)


def _there(rank: int, k: int) -> Wait:
    """Return a wait until ``rank`` has staged its window ``k``."""
    return wait(2 * rank, k + 1)


def _done(me: int, rank: int) -> Signal:
    return signal(rank, 2 * me + 1)


def _released(rank: int, k: int) -> Wait:
    """Return a wait until ``rank`` is done with my window ``k``."""
    return wait(2 * rank + 1, k + 1)
