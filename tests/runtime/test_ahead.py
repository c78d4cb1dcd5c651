"""Ranks that run ahead of each other through rotating scratch, by value."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.runtime.leftovers import nothing_left
from weft.collectives import collective
from weft.errors import ScheduleError
from weft.runtime import spawn
from weft.runtime.prepared_schedule import prepare

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(120)]

COUNTS = (1, 33, 700, 9000)  # elements: one line, a few, and where copies are fewer
KINDS = (
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_gather",
    "all_reduce",
    "reduce_scatter",
    "all_to_all",
    "barrier",
)


@pytest.fixture(autouse=True)
def _nothing_left():
    with nothing_left():
        yield


def given(rank, count, call):
    return (np.arange(count) % 7 + rank * 10 + call).astype(np.float32)


def dawdle(rng):
    """Keep this rank busy for a while, so that the others come ahead of it."""
    if rng.random() < 0.3:
        np.sort(rng.random(rng.integers(1, 30_000)))


def in_place(world, kind, xs, root):
    """What a call leaves in its one array, and what it should."""
    x, total = xs[world.rank].copy(), np.sum(xs, axis=0, dtype=np.float32)
    if kind == "broadcast":
        world.broadcast(x, root)
        return x, xs[root]
    if kind == "reduce":
        world.reduce(x, root)
        return x, total if world.rank == root else xs[world.rank]
    if kind == "all_reduce":
        world.all_reduce(x)
        return x, total
    world.barrier()
    return x, xs[world.rank]


def from_to(world, kind, xs, root):
    """What a call writes, and what it should."""
    me, x, room = world.rank, xs[world.rank], len(xs[0])
    count = room // world.num_ranks
    mine = slice(me * count, (me + 1) * count)
    out = np.zeros(room * world.num_ranks if "gather" in kind else room, np.float32)
    if kind == "all_gather":
        world.all_gather(out, x)
        return out, np.concatenate(xs)
    if kind == "gather":
        world.gather(out if me == root else None, x, root)
        return out, np.concatenate(xs) if me == root else np.zeros_like(out)
    if kind == "all_to_all":
        world.all_to_all(out, x)
        return out, np.concatenate([other[mine] for other in xs])
    out = out[:count]
    if kind == "scatter":
        world.scatter(out, x if me == root else None, root)
        return out, xs[root][mine]
    world.reduce_scatter(out, x)
    return out, np.sum([other[mine] for other in xs], axis=0, dtype=np.float32)


def one(world, kind, count, root, call):
    """What a call gives, and what it should."""
    n = world.num_ranks
    xs = [given(rank, count * n, call) for rank in range(n)]
    carry = in_place if kind in ("broadcast", "reduce", "all_reduce", "barrier") else from_to
    return carry(world, kind, xs, root)


def mixed(world, calls):
    """Which calls of a random sequence gave what they should not."""
    same, own = np.random.default_rng(5), np.random.default_rng(world.rank)
    wrong = []
    for call in range(calls):
        kind, root = str(same.choice(KINDS)), int(same.integers(world.num_ranks))
        count = int(same.choice(COUNTS))
        for again in range(int(same.integers(1, 6))):
            dawdle(own)
            have, want = one(world, kind, count, root, call + again)
            if not np.array_equal(have, want):
                wrong.append((call, again, kind, count, root))
    return wrong


@pytest.mark.parametrize("ranks", [2, 3])
def test_nobody_reads_what_a_faster_rank_has_written_over(ranks):
    assert spawn(mixed, ranks, 60) == [[]] * ranks


def refused(world):
    schedule = collective("all_gather", "pull", num_ranks=world.num_ranks, nbytes=64)
    try:
        prepare(schedule, world, bound=True, num_buffers=2)
    except ScheduleError as error:
        return str(error)
    return ""


def test_only_schedules_that_share_nothing_but_scratch_rotate():
    for text in spawn(refused, 2):
        assert "pull all_gather cannot rotate its scratch" in text


def barriers_apart(world):
    """Return whether every barrier ended on all ranks after the last one came to it."""
    times = []
    for call in range(20):
        if world.rank == call % world.num_ranks:
            time.sleep(0.002)
        came = time.monotonic()
        world.barrier()
        times.append((came, time.monotonic()))
    shown = [
        np.frombuffer(each).reshape(-1, 2)
        for each in world.agree("times", np.array(times).tobytes())
    ]
    last_came = np.max([each[:, 0] for each in shown], axis=0)
    return bool((np.array(times)[:, 1] >= last_came).all())


@pytest.mark.parametrize("ranks", [2, 3])
def test_nobody_leaves_a_barrier_before_the_last_has_come(ranks):
    assert spawn(barriers_apart, ranks) == [True] * ranks
