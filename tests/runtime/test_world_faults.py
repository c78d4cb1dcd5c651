"""A rank that dies, stops or asks for something else is named on every other, soon."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
import traceback
from types import SimpleNamespace

import numpy as np
import pytest

from tests.runtime.leftovers import nothing_left
from weft.collectives import collective
from weft.errors import RankDiedError, RunError, UsageError
from weft.runtime import World, prepare, spawn
from weft.runtime.communicator import Communicator, create_segment

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]


@pytest.fixture(autouse=True)
def _nothing_left():
    with nothing_left():
        yield


def error_of(act):
    began = time.monotonic()
    try:
        act()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        recent = getattr(error, "recent", ())
        return type(error).__name__, str(error), recent, time.monotonic() - began
    return "", "", (), 0.0


def ask_otherwise(world, prepared_before, later):
    x, longer = np.ones(1000, np.float32), np.ones(2000, np.float32)
    if prepared_before:
        world.all_reduce(x)
        world.all_reduce(longer)

    def act():
        mine = longer if world.rank == 1 else x
        work = world.all_reduce(mine, async_op=later)
        if work is not None:
            work.wait()

    return error_of(act)


@pytest.mark.parametrize("prepared_before", [True, False])
@pytest.mark.parametrize("later", [True, False])
def test_ranks_that_ask_for_different_things_learn_it_soon(prepared_before, later):
    for kind, text, recent, seconds in spawn(ask_otherwise, 3, prepared_before, later, timeout=30):
        assert kind == "DisagreeError"
        assert "rank 1 calls all_reduce(8000 bytes, float32, sum)" in text
        assert "call " in text
        assert any("all_reduce(4000 bytes, float32, sum)" in line for line in recent)
        assert seconds < 5


def call_another(world):
    x = np.ones(100)
    world.all_reduce(x)
    if world.rank == 0:
        return error_of(lambda: world.all_reduce(x))
    return error_of(world.barrier)


def test_a_barrier_is_not_a_reduction():
    for kind, text, _, seconds in spawn(call_another, 2, timeout=30):
        assert kind == "DisagreeError"
        assert "barrier" in text
        assert "all_reduce(800 bytes, float64, sum)" in text
        assert seconds < 5


def traceback_of(world):
    world.all_reduce(np.ones(100))
    return "".join(traceback.format_exception(world._recorded(RunError("something"))))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tracebacks have no notes")
def test_a_traceback_shows_the_last_calls():
    for rank, text in enumerate(spawn(traceback_of, 2, timeout=30)):
        assert "something\nThe last calls of every rank:\n" in text
        assert f"\n  rank {rank} call 2: all_reduce(800 bytes, float64, sum), done\n" in text


def dtypes(world):
    x = np.ones(100, np.int32 if world.rank else np.float32)
    return error_of(lambda: world.all_reduce(x))


def test_another_dtype_is_a_disagreement():
    for kind, text, _, _ in spawn(dtypes, 2, timeout=30):
        assert kind == "DisagreeError"
        assert "int32" in text
        assert "float32" in text


def swap_one_call(world):
    """Rank 1 enters a barrier where rank 0 sends a broadcast, which waits for nobody."""
    x = np.ones(100, np.uint8)
    for _ in range(2):
        world.broadcast(x, 0)
        world.barrier()
        world.scatter(x[:50], x if world.rank == 0 else None, 0)

    def act():
        world.barrier() if world.rank else world.broadcast(x, 0)
        world.scatter(x[:50], x if world.rank == 0 else None, 0)
        if world.rank == 0:
            time.sleep(0.5)
        world.barrier()
        world.barrier()

    return error_of(act)


def test_an_earlier_call_that_differed_is_named():
    for kind, text, _, seconds in spawn(swap_one_call, 2, timeout=20):
        assert kind == "DisagreeError"
        assert "rank 0 calls broadcast(100 bytes, uint8, root 0), rank 1 calls barrier" in text
        assert seconds < 10


def lose_one(world, how, later, path):
    x = np.ones(300_000)
    world.all_reduce(x)
    if world.rank == 1:
        os.kill(os.getpid(), how)

    def act():
        for _ in range(3):
            work = world.all_reduce(x, async_op=later)
            if work is not None:
                work.wait()

    kind, text, _, seconds = error_of(act)
    (path / str(world.rank)).write_text(f"{kind}: {text}")
    assert seconds < 15
    again = error_of(lambda: world.all_reduce(x, async_op=later))
    assert again[0] == kind
    raise RunError(text)


@pytest.mark.parametrize("later", [True, False])
def test_survivors_of_a_killed_rank_get_its_name(tmp_path, later):
    with pytest.raises(RankDiedError, match="rank 1 died"):
        spawn(lose_one, 3, signal.SIGKILL, later, tmp_path, timeout=30)
    for rank in (0, 2):
        assert (tmp_path / str(rank)).read_text().startswith("RankDiedError: rank 1 died")


@pytest.mark.parametrize("later", [True, False])
def test_a_stopped_rank_is_a_timeout(tmp_path, later):
    with pytest.raises(RunError):
        spawn(lose_one, 3, signal.SIGSTOP, later, tmp_path, timeout=1)
    for rank in (0, 2):
        assert (tmp_path / str(rank)).read_text().startswith("RunTimeoutError: rank ")


def leave_while_busy(world):
    x = np.ones(1000)
    world.all_reduce(x)
    if world.rank == 0:
        world.all_reduce(x, async_op=True)  # nobody else comes, nobody waits


def test_a_rank_may_end_with_work_in_flight():
    began = time.monotonic()
    spawn(leave_while_busy, 2, timeout=30)
    assert time.monotonic() - began < 15


def wrong_usage(world):
    x = np.ones(10, np.float32)
    frozen = np.ones(10)
    frozen.setflags(write=False)
    acts = [
        lambda: world.all_gather(np.ones(3), x),
        lambda: world.reduce_scatter(np.ones(3), x),
        lambda: world.all_to_all(np.ones(3), x),
        lambda: world.all_to_all(x, x.copy(), [5, 4], [5, 5]),
        lambda: world.broadcast(x, 7),
        lambda: world.all_reduce(frozen),
        lambda: world.all_reduce(np.ones((4, 4))[:, 1]),
        lambda: world.gather(None if world.rank == 0 else x, x, 0) if world.rank == 0 else 1 / 0,
        lambda: world.group([0, 9]),
        lambda: world.send(x, world.rank),
        lambda: world.send(x, 1 - world.rank, -1),
        lambda: world.free(x),
    ]
    return [error_of(act)[0] for act in acts]


def test_invalid_arguments_raise_at_once():
    usage = ["UsageError"] * 5
    more = ["UsageError"] * 3 + ["RunError"]
    first, second = spawn(wrong_usage, 2, timeout=30)
    assert first == [*usage, "RunError", "RunError", "UsageError", *more]
    assert second == [*usage, "RunError", "RunError", "ZeroDivisionError", *more]


def no_operator(world):
    x = np.ones(10, np.float32)
    return [
        error_of(lambda: world.all_reduce(x, "band"))[:2],
        error_of(lambda: world.all_reduce(x, "avg", algorithm="ring"))[:2],
        error_of(lambda: world.all_reduce(x, algorithm="rign"))[:2],
        error_of(lambda: world.all_gather(np.ones(20, np.float32), x, algorithm="dma"))[:2],
    ]


def test_what_cannot_be_computed_is_named():
    for result in spawn(no_operator, 2, timeout=30):
        assert result[0][0] == "RunError"
        assert "no reduction is called 'band' for float32" in result[0][1]
        assert result[1][0] == "UsageError"
        assert "'ring' cannot compute avg" in result[1][1]
        assert result[2][0] == "UnknownNameError"
        assert result[3][0] == "UsageError"
        assert "'dma' all_gather works in place" in result[3][1]


def not_numbers_of_here(world):
    other_order = np.arange(4, dtype=np.dtype(np.float32).newbyteorder())
    copy, objects = other_order.copy(), np.array([1, "a", None], object)
    found = [
        error_of(lambda: world.all_reduce(other_order))[:2],
        error_of(lambda: world.all_reduce(np.ones(3), ""))[:2],
        error_of(lambda: world.broadcast(objects))[:2],
        error_of(lambda: world.send(objects, 1 - world.rank))[:2],
        error_of(lambda: world.send(copy, 1 - world.rank, 1 << 63))[:2],
    ]
    world.broadcast(copy, np.int64(0))  # bytes are moved whatever their order
    return found, copy.tolist(), world.empty(np.int64(3)).shape


def test_arrays_of_another_byte_order_are_not_reduced_and_objects_not_sent():
    for errors, copy, shape in spawn(not_numbers_of_here, 2, timeout=30):
        kinds = [kind for kind, _ in errors]
        assert kinds == ["UnknownNameError", "RunError", *["UsageError"] * 3]
        assert "unknown dtype '" in errors[0][1]
        assert "no reduction is called ''" in errors[1][1]
        assert (copy, shape) == ([0, 1, 2, 3], (3,))


def freed_in_part(world):
    array = world.empty(1 << 16)
    error = error_of(lambda: world.free(array[:10]))[0]
    world.free(array)
    return error


def test_only_a_whole_array_is_freed():
    assert spawn(freed_in_part, 2, timeout=30) == ["RunError"] * 2


def other_groups(world):
    """Rank 1 names other ranks than rank 0, then a rank that does not exist."""
    begin = time.monotonic()
    found = [
        error_of(lambda: world.group([0, 1] if world.rank == 0 else [1])),
        error_of(lambda: world.group([0, 1] if world.rank == 0 else [0, 7])),
    ]
    made = world.group([1, 0])
    made.barrier()
    return [kind for kind, *_ in found], time.monotonic() - begin < 25


def test_ranks_that_name_different_groups_raise_at_once():
    first, second = spawn(other_groups, 2, timeout=30)
    assert first == (["DisagreeError", "RunError"], True)
    assert second[0][1] == "UsageError"
    assert second[1]


def waited_for_twice(world):
    job = world.all_reduce(np.ones(1 << 20, np.float32), async_op=True)
    world.close()
    return [error_of(job.wait)[0] for _ in range(2)]


def test_a_failed_work_raises_whenever_it_is_waited_for():
    assert spawn(waited_for_twice, 2, timeout=30) == [["RunError"] * 2] * 2


def bind_wrongly(world):
    schedule = collective("all_gather", "pull", num_ranks=2, nbytes=200)
    good = {"in": np.ones(100, np.uint8), "out": np.ones(200, np.uint8)}
    with prepare(schedule, world, bound=True) as prepared:
        errors = [
            error_of(lambda: prepared.run(bind={**good, "in": np.ones(3)}))[:2],
            error_of(lambda: prepared.run(bind={"in": good["in"]}))[:2],
            error_of(lambda: prepared.run(bind={**good, "inn": good["in"]}))[:2],
        ]
        prepared.run(bind=good)
    return errors


def test_what_is_bound_must_fit():
    for errors in spawn(bind_wrongly, 2, timeout=30):
        assert errors[0] == ("RunError", "bind: 'in' has 24 bytes, expected 100.")
        assert errors[1] == ("RunError", "bind: 'out' of pull all_gather is missing.")
        assert errors[2][0] == "UnknownNameError"


def other_splits(world, later):
    """Rank 1 gives rank 0 more than that takes."""
    given = [3, 1] if world.rank else [2, 2]
    taken = [2, 2] if world.rank == 0 else [2, 1]
    out, x = np.empty(sum(taken)), np.ones(sum(given))

    def act():
        work = world.all_to_all(out, x, taken, given, async_op=later)
        if work is not None:
            work.wait()

    return error_of(act)[:2]


@pytest.mark.parametrize("later", [True, False])
def test_splits_that_do_not_fit_are_a_disagreement(later):
    for kind, text in spawn(other_splits, 2, later, timeout=30):
        assert kind == "DisagreeError"
        assert "rank 0 receives 24 bytes from rank 1, expected 16, in call " in text
        assert "exchange(float64)" in text


def staged(world):
    """As where no process may read another's memory."""
    world.stages = True
    world.member.set_staging(True, 0)
    x = np.full(100_000, 1.0 + world.rank)
    out = np.empty(200_000)
    world.all_gather(out, x)
    world.all_reduce(x)
    exchanged = exchange_unevenly(world, later=False) and exchange_unevenly(world, later=True)
    got = np.empty(5000, np.uint8)
    sent = world.send(np.full(5000, world.rank, np.uint8), 1 - world.rank, async_op=True)
    world.recv(got, 1 - world.rank)
    sent.wait()
    whole = bool((x == 3).all()) and exchanged and world.private_arena.num_allocations == 0
    return whole, out[0], out[-1], int(got[-1]), world.paths["ordinary"]


def exchange_unevenly(world, *, later):
    """Rank i gives rank j numbers that say so: some nothing, some more than is ever staged."""
    counts = [[0, 70_000], [3, 11]]
    good = True
    for turn in range(3):
        x = [
            np.full(count, 10 * world.rank + to + turn)
            for to, count in enumerate(counts[world.rank])
        ]
        outs = [np.empty(counts[of][world.rank], int) for of in range(2)]
        work = world.exchange(outs, x, async_op=later)
        if work is not None:
            del x  # the world keeps what it still needs
            work.wait()
        good &= all((out == 10 * of + world.rank + turn).all() for of, out in enumerate(outs))
        shared = world.empty(4, "int64")  # one part in the heap, one not
        shared[:] = world.rank
        mine = [shared, np.full(4, world.rank)] if world.rank else [np.full(4, 0), shared]
        outs = [np.empty(4, int), np.empty(4, int)]
        world.exchange(outs, mine)
        good &= all((out == of).all() for of, out in enumerate(outs))
        world.free(shared)
    return bool(good)


def test_without_permission_to_read_each_other_memory_is_staged():
    path = "a copy in the heap"
    results = spawn(staged, 2, timeout=30)
    assert results == [(True, 1.0, 2.0, 1, path), (True, 1.0, 2.0, 0, path)]


def leave_others(world, later):
    x = np.ones(1000, np.float32)
    world.all_reduce(x)
    if world.rank == 1:
        world.close()
        return "", "", (), 0.0

    def act():
        work = world.all_reduce(x, async_op=later)
        if work is not None:
            work.wait()

    return error_of(act)


@pytest.mark.parametrize("later", [True, False])
def test_a_rank_that_left_has_not_died(later):
    kind, text, _, _ = spawn(leave_others, 2, later, timeout=30)[0]
    assert kind == "RankDiedError"
    assert "rank 1 left the world after call 2, all_reduce(4000 bytes, float32, sum)" in text


def close_meanwhile(world, tmp_path):
    x, found = np.ones(4, np.float32), []
    for _ in range(2):  # the second time the dispatch cache serves it
        world.all_reduce(x)
    if world.rank == 1:
        while not (tmp_path / "closed").exists():
            time.sleep(0.01)
        return []
    waiting = threading.Thread(target=lambda: found.append(error_of(lambda: world.all_reduce(x))))
    waiting.start()
    time.sleep(0.2)  # until it waits; should it come later, it is refused
    world.close()
    (tmp_path / "closed").touch()
    waiting.join()
    return [found[0][0]]


def test_a_call_in_a_world_that_is_closed_meanwhile_ends_with_an_error(tmp_path):
    (name,) = spawn(close_meanwhile, 2, tmp_path, timeout=30)[0]
    assert name in ("RankDiedError", "RunError")


def without_time(world):
    x = np.ones(1000, np.float32)
    world.all_reduce(x)
    if world.rank == 1:
        world.recv(np.zeros(1), 0)
    work = world.all_reduce(x, async_op=True)
    errors = [error_of(lambda: work.wait(0))] if world.rank == 0 else []
    if world.rank == 0:
        world.send(np.zeros(1), 1)
    work.wait()
    return [*errors, error_of(lambda: world.set_timeout(0)), error_of(lambda: world.empty(-1))]


def test_no_time_is_one_look_at_a_work_and_no_timeout():
    first, _ = spawn(without_time, 2, timeout=30)
    assert [kind for kind, *_ in first] == ["NotDoneError", "UsageError", "UsageError"]


def no_room_on_one(world, what):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "no space")

    world.stages, take = True, world.private_arena.allocate
    if world.rank == 1:
        world.region = lambda rank: Communicator.region(world, rank) if rank != 1 else refuse()
        world.private_arena.allocate = lambda nbytes: (
            take(nbytes) if not world.private_arena.num_allocations else refuse()
        )
    outs, xs = ([np.ones(2) for _ in range(2)] for _ in range(2))
    acts = {
        "an array": lambda: world.empty(1000),
        "an exchange": lambda: world.exchange(outs, xs),
    }
    return *error_of(acts[what]), world.private_arena.num_allocations


@pytest.mark.parametrize("what", ["an array", "an exchange"])
def test_a_rank_without_room_says_so_on_all_of_them(what):
    for kind, text, _, seconds, allocated in spawn(no_room_on_one, 2, what, timeout=30):
        assert kind in ("RunError", "SharedMemoryError")
        assert "no space" in text
        assert seconds < 20
        assert allocated == 0


def test_a_world_that_is_not_there_cannot_be_entered():
    with pytest.raises(RunError, match="rank 0 cannot join its world"):
        World("/weft-of-nobody", 0)
    with pytest.raises(UsageError, match="timeout: must be positive"):
        World("/weft-of-nobody", 0, timeout=0)


def test_a_file_system_without_a_limit_has_room(monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=0, f_frsize=4096))
    launcher = create_segment(1)
    with World(launcher.name, 0) as world:
        assert world.empty(1000).size == 1000
    launcher.close()


def await_another_tag(world, later):
    got = np.zeros(3)
    if world.rank == 1:
        for tag in (3, 12, 3):
            world.send(got, 0, tag)
        return error_of(world.barrier)

    def act():
        work = world.recv(got, 1, 7, async_op=later)
        if work is not None:
            work.wait()

    return error_of(act)


@pytest.mark.parametrize("later", [False, True])
def test_a_receive_that_times_out_names_the_tags_that_wait(later):
    (kind, text, _, _), _ = spawn(await_another_tag, 2, later, timeout=1)
    assert kind == "RunTimeoutError"
    assert "24 bytes from rank 1, tag 7 (rank 1 sent tag 3, 12)" in text
