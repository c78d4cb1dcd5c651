"""Each algorithm moves the bytes it must, by as many commands as it is known for."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.uneven_all_to_all import uneven_all_to_all
from weft.collectives import KINDS, algorithms, collective
from weft.errors import SizeError, UnknownNameError, UsageError
from weft.schedule import Broadcast, Copy, Reduce, Signal, Submit, Swap, Wait
from weft.schedule.check import check

N = 8
SIZE = 8 * 15  # whole chunks for 8 ranks
CHUNK = SIZE // N
ODD = {"nbytes": 9}


def moved(schedule):
    """The bytes that go to another rank, in all."""
    return sum(
        nbytes
        for place, command in schedule.commands()
        for source, target, nbytes in moves(place.rank, command)
        if source != target
    )


def moves(runner, command):
    """From which rank to which how much goes; a reduction happens where it runs."""
    match command:
        case Copy(src, dst):
            return [(src.rank, dst.rank, dst.nbytes)]
        case Broadcast(src, dsts):
            return [(src.rank, dst.rank, dst.nbytes) for dst in dsts]
        case Swap(a, b):
            return [(a.rank, b.rank, b.nbytes), (b.rank, a.rank, a.nbytes)]
        case Reduce(srcs, dst):
            read = [(src.rank, runner, src.nbytes) for src in srcs]
            return [*read, (runner, dst.rank, dst.nbytes)]
        case _:
            return []


MINIMUM = {
    "broadcast": (N - 1) * SIZE,
    "all_gather": N * (N - 1) * CHUNK,
    "reduce_scatter": N * (N - 1) * CHUNK,
    "all_reduce": 2 * (N - 1) * SIZE,
    "all_to_all": N * (N - 1) * CHUNK,
    "gather": (N - 1) * CHUNK,
    "scatter": (N - 1) * CHUNK,
    "reduce": (N - 1) * SIZE + (N - 1) * CHUNK,
    "send_recv": SIZE,
    "barrier": 0,
}
# Two levels of four ranks in two nodes; scatter + all-gather sends a chunk to everyone first.
OTHERS = {
    ("broadcast", "hierarchical"): SIZE + 2 * 3 * SIZE,
    ("broadcast", "scatter-allgather"): (N - 1) * CHUNK + (N - 1) * (N - 1) * CHUNK,
    ("all_gather", "hierarchical"): N * CHUNK + N * 3 * 2 * CHUNK,
    ("all_reduce", "hierarchical"): 2 * (2 * 3 * SIZE) + 4 * (2 * SIZE // 4),
    # An eager reduction reads all of its inputs.
    ("all_reduce", "eager"): N * (N - 1) * SIZE,
    ("reduce", "eager"): (N - 1) * SIZE,
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_algorithm_moves_what_it_must(kind):
    for algorithm in algorithms(kind):
        node_size = 4 if algorithm == "hierarchical" else None
        made = collective(kind, algorithm, num_ranks=N, nbytes=SIZE, node_size=node_size)
        assert moved(made) == OTHERS.get((kind, algorithm), MINIMUM[kind]), algorithm


@pytest.mark.parametrize("num_ranks", range(2, 10))
@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_odd_sizes_move_no_byte_more(algorithm, num_ranks):
    made = collective("all_reduce", algorithm, num_ranks=num_ranks, nbytes=131)
    assert moved(made) == 2 * (num_ranks - 1) * 131


def test_ranks_beyond_a_power_of_two_fold_and_unfold():
    made = collective("all_reduce", "halving-doubling", num_ranks=6, nbytes=131)
    assert moved(made) == 2 * 3 * 131 + 2 * 2 * 131


def test_an_uneven_all_to_all_moves_its_table():
    sizes = [[i * 3 + j for j in range(3)] for i in range(3)]
    assert moved(uneven_all_to_all(sizes)) == sum(map(sum, sizes)) - (0 + 4 + 8)


def counted(kind, algorithm, num_ranks=N):
    """Moves on engines, submissions, engines used, syncs sent and syncs waited for."""
    made = collective(kind, algorithm, num_ranks=num_ranks, nbytes=num_ranks * 15)
    count: Counter[str] = Counter()
    engines = set()
    for place, command in made.commands():
        if place.queue.startswith("copy"):
            engines.add((place.rank, place.queue))
            count["moves"] += isinstance(command, (Copy, Broadcast, Swap))
            count["syncs"] += isinstance(command, Signal)
        elif place.queue == "host" and place.rank == 0:
            count["submits"] += isinstance(command, Submit)
            count["waits"] += isinstance(command, Wait)
    return count["moves"], count["submits"], len(engines), count["syncs"], count["waits"] - 1


# DMA-Latte (arXiv 2511.06605): one host thread issues for all 8 GPUs in turn.
@pytest.mark.parametrize("ahead", ["", "+prelaunch"])
@pytest.mark.parametrize(
    ("kind", "algorithm", "moves", "engines"),
    [
        ("all_gather", "dma", 56, 56),
        ("all_gather", "dma-bcst", 32, 32),
        ("all_gather", "dma-b2b", 56, 8),
        ("all_to_all", "dma", 56, 56),
        ("all_to_all", "dma-swap", 28, 28),
        ("all_to_all", "dma-b2b", 56, 8),
    ],
)
def test_engines_get_exactly_their_commands_and_syncs(kind, algorithm, ahead, moves, engines):
    expected = (moves, engines, engines, engines, engines)
    assert counted(kind, algorithm + ahead) == expected


def per_rank(kind, algorithm, num_ranks):
    made = collective(kind, algorithm, num_ranks=num_ranks, nbytes=num_ranks * 15)
    moves = (Copy, Broadcast, Swap)
    return Counter(
        place.rank
        for place, command in made.commands()
        if place.queue.startswith("copy") and isinstance(command, moves)
    )


@pytest.mark.parametrize("n", range(2, 10))
def test_a_rank_issues_no_more_than_its_share(n):
    assert set(per_rank("all_gather", "dma-bcst", n).values()) == {-(-(n - 1) // 2)}
    swaps = per_rank("all_to_all", "dma-swap", n)
    assert swaps.total() == n * (n - 1) // 2
    assert max(swaps.values()) <= -(-swaps.total() // n)


def test_prelaunched_commands_are_held_and_released_by_one_store():
    made = collective("all_gather", "dma-b2b+prelaunch", num_ranks=N, nbytes=SIZE)
    host = [c for place, c in made.commands([0]) if place.queue == "host"]
    holds = {c.hold for c in host if isinstance(c, Submit)}
    (hold,) = holds
    assert sum(isinstance(c, Signal) and c.flag == hold for c in host) == 1
    first = next(n for n, c in enumerate(host) if not isinstance(c, Submit))
    assert not any(isinstance(c, Submit) for c in host[first:])


def test_a_two_level_all_reduce_of_many_ranks_stores_few_commands():
    made = collective("all_reduce", "hierarchical", num_ranks=131_072, nbytes=1 << 30, node_size=8)
    assert made.num_stored < 1000


def test_a_direct_all_to_all_of_many_ranks_stores_few_commands_and_is_checked():
    made = collective("all_to_all", "direct", num_ranks=1024, nbytes=1 << 30)
    assert made.num_stored < 20
    check(made)


@pytest.mark.parametrize(
    ("kind", "algorithm", "options", "error", "says", "hint"),
    [
        ("all_gathr", "ring", {}, UnknownNameError, "collective 'all_gathr'", "'all_gather'"),
        ("x", "ring", {}, UnknownNameError, "collective 'x'", "Known: all_gather,"),
        ("all_gather", "rign", {}, UnknownNameError, "algorithm 'rign'", "'ring'?"),
        ("all_gather", "tree", {}, UsageError, "'tree' does not apply to all_gather.", "ring"),
        ("all_reduce", "dma", {}, UsageError, "DMA engines copy, they do not add", "ring"),
        ("all_gather", "ring", {"num_ranks": 0}, UsageError, "is 0, expected 2", ""),
        ("all_gather", "ring", {"num_ranks": 1}, UsageError, "is 1, expected 2", ""),
        ("all_reduce", "ring", {"nbytes": -1}, UsageError, "is -1", ""),
        ("all_gather", "ring", ODD, SizeError, "all_gather: 9", "8 or 16 bytes"),
        ("all_gather", "direct", ODD, SizeError, "all_gather: 9", "8 or 16 bytes"),
        ("all_gather", "halving-doubling", ODD, SizeError, "all_gather: 9", "8 or 16"),
        ("all_gather", "dma", ODD, SizeError, "all_gather: 9", "8 or 16 bytes"),
        ("reduce_scatter", "ring", ODD, SizeError, "reduce_scatter: 9", "8 or 16 bytes"),
        ("all_to_all", "direct", ODD, SizeError, "all_to_all: 9", "8 or 16 bytes"),
        ("all_to_all", "dma-swap", ODD, SizeError, "all_to_all: 9", "8 or 16 bytes"),
        ("all_reduce", "hierarchical", {}, UsageError, "8 ranks are in one level", "x2"),
        ("all_reduce", "hierarchical", {"node_size": 3}, UsageError, "do not fill nodes of 3", ""),
        ("all_gather", "hierarchical", {"node_size": 8}, UsageError, "are in one level", ""),
        ("all_gather", "dma", {"node_size": 4}, UsageError, "of 4", "ring"),
        ("all_gather", "halving-doubling", {"num_ranks": 6}, UsageError, "power of two", "ring"),
        ("broadcast", "chain", {"root": 8}, UsageError, "rank 8", "0 to 7"),
        ("gather", "eager", {"root": -1}, UsageError, "rank -1 is out of range (8", "0 to 7"),
        (
            "all_reduce",
            "tree",
            {"dtype": "f32"},
            UnknownNameError,
            "dtype 'f32'",
            "float",
        ),
        ("send_recv", "direct", {"to": 0}, UsageError, "rank 0 cannot send to itself", "another"),
    ],
)
def test_bad_input_is_answered_in_a_line(kind, algorithm, options, error, says, hint):
    options = {"num_ranks": 8, "nbytes": 48} | options
    with pytest.raises(error) as caught:
        collective(kind, algorithm, **options)
    assert type(caught.value) is error
    assert says in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("sizes", [[[1, 2]], [[1, 2], [3]], [[1, -2], [3, 4]]])
def test_an_uneven_all_to_all_takes_a_square_table(sizes):
    with pytest.raises(UsageError, match=r"expected a \d x \d table"):
        uneven_all_to_all(sizes)
