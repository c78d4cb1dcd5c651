"""Collectives of a world, by value: every op, dtype and size, on memory of any kind."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.leftovers import nothing_left
from weft.runtime import RawMemory, spawn

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(120)]

SIZES = (0, 1, 7, 1000, 20_011, 300_007)  # elements: staged, unaligned, and past a block
KINDS = ("ordinary", "heap", "mixed")  # mixed: even ranks in the heap


@pytest.fixture(autouse=True)
def _nothing_left():
    with nothing_left():
        yield


def values(rank, count, dtype, seed=0):
    rng = np.random.default_rng([rank, count, seed])
    if np.dtype(dtype).kind == "f":
        return rng.integers(-8, 8, count).astype(dtype) / 4
    if np.dtype(dtype).kind == "c":
        return (rng.integers(-8, 8, count) + 1j * rng.integers(-8, 8, count)).astype(dtype)
    if np.dtype(dtype).kind == "b":
        return rng.integers(0, 2, count).astype(dtype)
    return rng.integers(0, 100, count).astype(dtype)


def placed(world, array, kind):
    """A copy of the array in ordinary memory or in the heap; collective."""
    there = world.empty(array.shape, array.dtype)
    if kind == "ordinary" or (kind == "mixed" and world.rank % 2):
        there = np.empty_like(array)
    there[...] = array
    return there


def every_collective(world, count, kind):
    """Which results are not what they should be."""
    n, me = world.num_ranks, world.rank
    wrong = []

    def check(what, have, want):
        if not np.array_equal(have, want):
            wrong.append((what, count, kind))

    def place(array):
        return placed(world, array, kind)

    everyone = [values(rank, count, np.float32) for rank in range(n)]
    long = [values(rank, n * count, np.int32) for rank in range(n)]
    total = np.sum(everyone, axis=0, dtype=np.float32)

    x, out = place(everyone[me]), place(np.zeros(n * count, np.float32))
    for _ in range(2):
        out[:] = 0
        world.all_gather(out, x)
        check("all_gather", out, np.concatenate(everyone))
    out = place(np.zeros(n * count, np.int32))
    world.all_to_all(out, place(long[me]))
    parts = [np.split(each, n)[me] for each in long]
    check("all_to_all", out, np.concatenate(parts))
    part = place(np.zeros(count, np.int32))
    world.reduce_scatter(part, place(long[me]))
    check("reduce_scatter", part, np.sum(parts, axis=0, dtype=np.int32))
    x = place(everyone[me])
    world.all_reduce(x)
    check("all_reduce", x, total)
    for root in {0, n - 1}:
        x = place(everyone[me])
        world.broadcast(x, root)
        check("broadcast", x, everyone[root])
        x = place(everyone[me])
        world.reduce(x, root)
        check("reduce", x, total if me == root else everyone[me])
        out = place(np.zeros(n * count, np.float32))
        world.gather(out if me == root else None, place(everyone[me]), root)
        check("gather", out, np.concatenate(everyone) if me == root else 0 * out)
        part = place(np.zeros(count, np.int32))
        world.scatter(part, place(long[me]) if me == root else place(long[me]) * 0, root)
        check("scatter", part, np.split(long[root], n)[me])
    world.barrier()
    return wrong


def all_cases(world):
    return [w for kind in KINDS for count in SIZES for w in every_collective(world, count, kind)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_rank_gets_what_it_should(ranks):
    assert spawn(all_cases, ranks, timeout=30) == [[]] * ranks


FLOATS = ("float64", "float32", "float16")
INTS = ("int64", "int32", "int16", "int8", "uint8")
OPS = {
    "sum": lambda a: np.sum(a, axis=0, dtype=a.dtype),
    "prod": lambda a: np.prod(a, axis=0, dtype=a.dtype),
    "min": lambda a: np.min(a, axis=0),
    "max": lambda a: np.max(a, axis=0),
    "band": lambda a: np.bitwise_and.reduce(a, axis=0),
    "bor": lambda a: np.bitwise_or.reduce(a, axis=0),
    "bxor": lambda a: np.bitwise_xor.reduce(a, axis=0),
    "avg": lambda a: (
        np.sum(a, axis=0, dtype=a.dtype).view(a.real.dtype) / a.real.dtype.type(len(a))
    ).view(a.dtype),
    "premul:0.5": lambda a: np.sum(a * a.dtype.type(0.5), axis=0, dtype=a.dtype),
}
COMBINATIONS = [
    *((d, op) for d in FLOATS for op in ("sum", "prod", "min", "max", "avg", "premul:0.5")),
    *((d, op) for d in INTS for op in ("sum", "prod", "min", "max", "band", "bor", "bxor")),
    *((d, op) for d in ("complex64", "complex128") for op in ("sum", "prod", "avg")),
    *(("bool", op) for op in ("min", "max", "band", "bor", "bxor")),
]


def reduce_all(world):
    wrong = []
    for dtype, op in COMBINATIONS:
        for count in (1, 13, 5003):
            everyone = np.stack([values(r, count, dtype) for r in range(world.num_ranks)])
            x = everyone[world.rank].copy()
            world.all_reduce(x, op)
            if not np.array_equal(x, OPS[op](everyone)):
                wrong.append((dtype, op, count))
    return wrong


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_operator_computes_what_numpy_does(ranks):
    assert spawn(reduce_all, ranks, timeout=30) == [[]] * ranks


def uneven(world):
    """Rank i sends (i + 2 j) mod 5 thousand elements to rank j, other sizes every time."""
    n, me, good = world.num_ranks, world.rank, []
    for times in (1, 1000, 30_000):
        sizes = [[(i + 2 * j + times) % 5 * times for j in range(n)] for i in range(n)]
        sent = [values(i, sum(sizes[i]), np.int16) for i in range(n)]
        starts = [np.concatenate([[0], np.cumsum(row)]) for row in sizes]
        received = [sizes[i][me] for i in range(n)]
        out = np.zeros(sum(received), np.int16)
        world.all_to_all(out, sent[me], received, sizes[me])
        want = [sent[i][starts[i][me] : starts[i][me + 1]] for i in range(n)]
        good.append(np.array_equal(out, np.concatenate(want)))
    return all(good)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_parts_may_be_uneven(ranks):
    assert spawn(uneven, ranks, timeout=30) == [True] * ranks


def later(world):
    """Many at once, finished in another order, between calls that are not handed over."""
    count, good = 50_000, []
    arrays = [values(world.rank, count, np.float64, seed) for seed in range(6)]
    works = [world.all_reduce(array, async_op=True) for array in arrays]
    total = np.ones(3)
    world.all_reduce(total)  # after all of them
    good.append(all(work.is_done() for work in works))
    for work in reversed(works):
        work.wait(30)
        work.wait()
    for seed, array in enumerate(arrays):
        want = sum(values(rank, count, np.float64, seed) for rank in range(world.num_ranks))
        good.append(np.array_equal(array, want))
    return good, float(total[0])


def test_what_is_handed_over_keeps_its_order():
    assert spawn(later, 3, timeout=30) == [([True] * 7, 3.0)] * 3


def raw_memory(world):
    array = values(world.rank, 999, np.uint16)
    world.broadcast(RawMemory(array.ctypes.data, array.nbytes, "bfloat16"))
    return array


def test_memory_may_be_an_address():
    first, second = spawn(raw_memory, 2, timeout=30)
    assert np.array_equal(first, second)


def brain(world):
    array = np.full(1001, 1.5 + world.rank, np.float32).view(np.uint16)[1::2].copy()
    world.all_reduce(RawMemory(array.ctypes.data, array.nbytes, "bfloat16"))
    small = np.full(100, 0x38, np.uint8)  # 1.0 in e4m3
    world.all_reduce(RawMemory(small.ctypes.data, small.nbytes, "float8_e4m3fn"))
    tiny = np.full(100, 0x3C, np.uint8)  # 1.0 in e5m2
    world.all_reduce(RawMemory(tiny.ctypes.data, tiny.nbytes, "float8_e5m2"), "avg")
    return (array.astype(np.uint32) << 16).view(np.float32)[0], small[0], tiny[0]


def test_floats_that_numpy_does_not_have_are_reduced():
    assert spawn(brain, 2, timeout=30) == [(4.0, 0x40, 0x3C)] * 2


def grouped(world):
    halves = world.group([0, 2]) if world.rank % 2 == 0 else world.group([1, 3])
    some = world.group([1, 2])
    x = np.full(5, world.rank)
    halves.all_reduce(x)
    if some is not None:
        some.all_reduce(x)
        some.close()
    halves.close()
    world.barrier()
    return int(x[0]), some is None


def test_some_ranks_may_be_a_world_of_their_own():
    assert spawn(grouped, 4, timeout=30) == [(2, True), (6, False), (6, False), (4, True)]


def in_and_out_share_memory(world):
    """Each rank's input lies in its output, at another rank's part."""
    n, size, wrong = world.num_ranks, 1 << 17, []
    start = (world.rank + 1) % n * size
    other = slice(start, start + size)
    sent = np.repeat(np.arange(n) + 10 * world.rank, size).astype(np.float32)
    came = np.repeat(10 * np.arange(n) + world.rank, size)
    for call in range(3):
        out = np.zeros(n * size, np.float32)
        out[other] = world.rank + 1
        world.all_gather(out, out[other])
        wrong += [] if (out == np.repeat(np.arange(n) + 1, size)).all() else [("gather", call)]
        x = np.full(n * size, world.rank + 1, np.float32)
        world.reduce_scatter(x[other], x)
        wrong += [] if (x[other] == n * (n + 1) / 2).all() else [("scatter", call)]
        x = sent.copy()
        world.all_to_all(x, x)
        wrong += [] if (x == came).all() else [("all_to_all", call)]
        parts = np.split(sent.copy(), n)
        world.exchange(parts, parts)
        wrong += [] if (np.concatenate(parts) == came).all() else [("exchange", call)]
        whole = sent.copy()
        world.scatter(whole[other], whole if world.rank == 0 else None)
        wrong += [] if (whole[other] == world.rank).all() else [("scattered", call)]
    return wrong


def test_an_input_may_lie_in_the_output():
    assert spawn(in_and_out_share_memory, 3, timeout=30) == [[]] * 3


def many_sizes(world):
    for size in range(300):
        x = np.ones(size, np.uint8)
        world.all_reduce(x)
        assert (x == world.num_ranks).all()
    arrays = [world.empty((10, 100_000)) for _ in range(3)]
    for array in arrays:
        world.free(array)
    again = world.empty((10, 100_000))
    return again.ctypes.data == arrays[0].ctypes.data


def test_memory_of_many_sizes_is_bounded_and_given_back():
    assert spawn(many_sizes, 2, timeout=30) == [True, True]


def messages(world):
    n, me = world.num_ranks, world.rank
    good: list[int] = []
    for count in (0, 10, 1984, 1985, 100_000):
        x, got = values(me, count, np.uint8), np.empty(count, np.uint8)
        # Everyone to the next and from the one before, all at once: no order may deadlock.
        sent = world.send(x, (me + 1) % n, async_op=True)
        world.recv(got, (me - 1) % n)
        sent.wait()
        good.append(np.array_equal(got, values((me - 1) % n, count, np.uint8)))
    if me == 0:
        sent = [world.send(np.full(3, tag), 1, tag, async_op=True) for tag in range(5)]
        sent.append(world.send(np.full(3, 77), 1, 2, async_op=True))
        for each in sent:
            each.wait()
    if me == 1:
        for tag in (4, 2, 0, 1, 3, 2):
            got = np.empty(3, int)
            world.recv(got, 0, tag)
            good.append(int(got[0]))
    world.barrier()
    return good


def test_messages_are_matched_by_tag():
    results = spawn(messages, 3, timeout=30)
    assert results == [[True] * 5, [True] * 5 + [4, 2, 0, 1, 3, 77], [True] * 5]


def many_messages(world):
    """More than there are slots for; also received by the rank that is waited for last."""
    numbers = [np.full(1, number) for number in range(20)]
    if world.rank == 0:
        works = [world.send(number, 1, async_op=True) for number in numbers[:10]]
        world.barrier()  # two were taken: there is room for the next
        world.barrier()
        works += [world.send(number, 1, async_op=True) for number in numbers[10:]]
        for work in reversed(works):
            work.wait()
        return []
    rooms = [np.zeros(1, int) for _ in numbers]
    world.barrier()
    for room in rooms[:2]:
        world.recv(room, 0)
    world.barrier()
    works = [world.recv(room, 0, async_op=True) for room in rooms[2:]]
    for work in reversed(works):
        work.wait()
    return [int(room[0]) for room in rooms]


def test_messages_of_a_tag_do_not_overtake_each_other():
    assert spawn(many_messages, 2, timeout=30)[1] == list(range(20))
