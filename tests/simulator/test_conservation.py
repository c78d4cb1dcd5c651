"""What holds for any commands at once: bytes are conserved, ports are never overfull, scale does
not matter, and neither do the names of ranks. Joules count bytes here: one for each.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.paper import GB, MB, launch, machine, made, queue, without_costs
from weft.hardware import Power
from weft.schedule import Broadcast, Copy, Queue, Reduce, Slice, Swap
from weft.schedule.accesses import accesses
from weft.simulator import simulate

RANKS = 4
FREE = without_costs()
QUIET = Power(idle=0.0, unit=0.0, engine=0.0, memory_byte=0.0, link_byte=0.0)

ranks = st.integers(0, RANKS - 1)


def piece(rank, nbytes):
    return Slice(rank, "x", 0, nbytes)


@st.composite
def commands(draw):
    """Anything that moves a few MB between any ranks."""
    nbytes = draw(st.integers(1, 9)) * MB
    first, second, third = (piece(draw(ranks), nbytes) for _ in range(3))
    return draw(
        st.sampled_from(
            [
                Copy(first, second),
                Broadcast(first, (second, third)),
                Swap(first, second),
                Reduce((first, second), third, "float32"),
            ]
        )
    )


@st.composite
def works(draw):
    """Commands by the rank and the kind of queue that carries them out."""
    places = st.tuples(commands(), ranks, st.sampled_from(["nic", "copy", "stream"]))
    return draw(st.lists(places, min_size=1, max_size=6))


def scheduled(work, rename=range(RANKS)):
    """All commands at once, each on a queue of its own."""
    queues: dict[int, list[Queue]] = {rank: [] for rank in range(RANKS)}
    for number, (command, rank, kind) in enumerate(work):
        each = renamed(command, rename)
        inside = launch((each,), units=10) if kind == "stream" else each
        queues[rename[rank]].append(queue(f"{kind}{number}", inside))
    return made(RANKS, queues)


def renamed(command, names):
    def there(each):
        return replace(each, rank=names[each.rank])

    match command:
        case Copy(src, dst):
            return Copy(there(src), there(dst))
        case Broadcast(src, dsts):
            return Broadcast(there(src), tuple(map(there, dsts)))
        case Swap(a, b):
            return Swap(there(a), there(b))
        case Reduce(srcs, dst):
            return replace(command, srcs=tuple(map(there, srcs)), dst=there(dst))


def paths(command, runner):
    """Who sends to whom: bytes go where they are written, and sums are made where they run."""
    match command:
        case Copy(src, dst):
            return [(src.rank, dst.rank)]
        case Broadcast(src, dsts):
            return [(src.rank, dst.rank) for dst in dsts]
        case Swap(a, b):
            return [(a.rank, b.rank), (b.rank, a.rank)]
        case Reduce(srcs, dst):
            return [*((src.rank, runner) for src in srcs), (runner, dst.rank)]
    raise AssertionError(command)


def nbytes_of(command):
    return next(accesses(command)).slice.nbytes


def crossing(work):
    """Bytes from rank to rank."""
    matrix = np.zeros((RANKS, RANKS))
    for command, runner, _ in work:
        for src, dst in paths(command, runner):
            matrix[src, dst] += nbytes_of(command)
    np.fill_diagonal(matrix, 0)
    return matrix


def counting(**power):
    return machine(RANKS, device=replace(FREE, power=replace(QUIET, **power)))


@settings(max_examples=30, derandomize=True)
@given(works())
def test_every_byte_that_changes_ranks_crosses_one_link_and_no_other_does(work):
    found = simulate(scheduled(work), counting(link_byte=1.0))
    assert found.total_joules == pytest.approx(crossing(work).sum())


@pytest.mark.parametrize(
    ("command", "passes", "crossed"),
    [
        (Copy(piece(1, 1), piece(2, 1)), 2, 1),
        (Broadcast(piece(0, 1), (piece(1, 1), piece(2, 1))), 3, 2),
        (Swap(piece(0, 1), piece(1, 1)), 4, 2),
        (Reduce((piece(1, 1), piece(2, 1)), piece(0, 1), "float32"), 3, 2),
    ],
)
def test_a_single_byte_counts_like_any_other(command, passes, crossed):
    schedule = scheduled([(command, 0, "nic")])
    assert simulate(schedule, counting(memory_byte=1.0)).total_joules == pytest.approx(passes)
    assert simulate(schedule, counting(link_byte=1.0)).total_joules == pytest.approx(crossed)


@settings(max_examples=30, derandomize=True)
@given(works())
def test_every_access_passes_a_memory_once_for_reading_and_once_for_writing(work):
    passes = {Copy: 2, Swap: 4, Broadcast: 3, Reduce: 3}
    want = sum(passes[type(command)] * nbytes_of(command) for command, _, _ in work)
    found = simulate(scheduled(work), counting(memory_byte=1.0))
    assert found.total_joules == pytest.approx(want)


@settings(max_examples=15, derandomize=True)
@given(works())
def test_no_port_carries_more_than_its_rate_and_some_resource_is_always_busy(work):
    found = simulate(scheduled(work), machine(RANKS, device=FREE)).seconds
    matrix = crossing(work)
    busiest = max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max())
    assert found >= busiest / (10 * GB) * (1 - 1e-9)
    # A flow that is held up is held up by something full, so together they are as fast as in turn.
    one_by_one = sum(
        simulate(scheduled([each]), machine(RANKS, device=FREE)).seconds for each in work
    )
    assert found <= one_by_one * (1 + 1e-9)


@settings(max_examples=15, derandomize=True)
@given(work=works(), factor=st.sampled_from([2, 7, 100]))
def test_so_many_times_the_rate_of_everything_takes_that_much_less(work, factor):
    assert FREE.dma
    faster = replace(
        FREE,
        memory_rate=factor * FREE.memory_rate,
        unit_copy_rate=factor * FREE.unit_copy_rate,
        dma=replace(FREE.dma, engine_rate=factor * FREE.dma.engine_rate),
    )
    slow = simulate(scheduled(work), machine(RANKS, device=FREE))
    fast = simulate(scheduled(work), machine(RANKS, rate=factor * 10 * GB, device=faster))
    assert fast.end * factor == pytest.approx(slow.end)


@settings(max_examples=15, derandomize=True)
@given(work=works(), names=st.permutations(range(RANKS)))
def test_ranks_of_a_switch_may_change_their_names(work, names):
    on = machine(RANKS, device=FREE)
    before, after = (simulate(scheduled(work, order), on) for order in (range(RANKS), names))
    ends = [
        {(back[s.rank], s.queue, s.id): s.end for s in timeline.spans()}
        for timeline, back in (
            (before, dict(enumerate(range(RANKS)))),
            (after, {new: old for old, new in enumerate(names)}),
        )
    ]
    assert ends[1] == pytest.approx(ends[0], rel=1e-9)
