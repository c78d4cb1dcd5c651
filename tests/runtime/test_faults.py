"""What goes wrong on one rank is a named error on all of them, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from tests.runtime.cases import CASES, IN, OPS, OUT, SIZE, following, made, own
from tests.runtime.leftovers import nothing_left, threads
from weft.errors import (
    BoundsError,
    DisagreeError,
    RankDiedError,
    RunError,
    RunTimeoutError,
    ScheduleError,
    SharedMemoryError,
    UnknownNameError,
)
from weft.runtime import prepare, run, spawn
from weft.schedule import (
    SELF,
    Buffer,
    Copy,
    Decode,
    Encode,
    Flag,
    Kernel,
    Program,
    Queue,
    Reduce,
    Schedule,
    Signal,
    Submit,
    Swap,
    Wait,
)

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]


@pytest.fixture(autouse=True)
def _nothing_left():
    with nothing_left():
        yield


def error_of(act):
    """What ``act`` raises, as text that can be sent home."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return type(error).__name__, str(error)
    return "", ""


def chain(num_ranks):
    """Rank 0 calls an op, then tells the next rank, and so on."""
    kernel = Kernel("act", reads=(own("in"),), writes=(own("out"),))
    last = num_ranks - 1
    tell = (Signal(Flag(following(num_ranks), 0)),)
    first = Program((0,), (Queue("stream0", (kernel, *tell)),))
    rest = Program(range(1, last), (Queue("stream0", (Wait(Flag(SELF, 0)), kernel, *tell)),))
    end = Program((last,), (Queue("copy0", (Wait(Flag(SELF, 0)),)), Queue("stream0", ())))
    return Schedule("chain", num_ranks, (first, rest, end), (IN, OUT), 1)


def raise_in_op(world):
    def act(inputs, outputs):
        if world.rank == 1:
            time.sleep(0.5)  # until the next rank waits, which says so
            raise ValueError("no luck")

    began = time.monotonic()
    error = error_of(lambda: run(chain(world.num_ranks), world, ops={"act": act}))
    again = error_of(world.barrier)
    return error, again, time.monotonic() - began


def test_an_op_that_raises_stops_every_rank_at_once():
    results = spawn(raise_in_op, 3, timeout=30)
    for rank, (error, again, seconds) in enumerate(results):
        assert error[0] == again[0] == "RunError"
        assert "ValueError: no luck" in error[1]
        assert "stream0@1 #1 Kernel" in error[1]
        assert "rank 1 raised ValueError: no luck" in again[1]
        assert seconds < 10, rank
    assert "while rank 2 waited at copy0@2 #0 Wait" in results[2][0][1]


def die_in_op(world, how):
    def act(inputs, outputs):
        if world.rank == 1:
            os.kill(os.getpid(), how)

    run(chain(world.num_ranks), world, ops={"act": act})


def test_a_killed_rank_is_named():
    with pytest.raises(RankDiedError, match=r"rank 1 died \(SIGKILL\)"):
        spawn(die_in_op, 3, signal.SIGKILL, timeout=30)


def survive(world, path):
    error = error_of(lambda: die_in_op(world, signal.SIGKILL))
    (path / str(world.rank)).write_text(": ".join(error))


def test_every_survivor_of_a_killed_rank_gets_a_named_error(tmp_path):
    began = time.monotonic()
    with pytest.raises(RankDiedError):
        spawn(survive, 3, tmp_path, timeout=30)
    assert time.monotonic() - began < 15
    assert not (tmp_path / "1").exists()
    text = (tmp_path / "2").read_text()
    assert text.startswith("RankDiedError: rank 1 died (")
    assert "while rank 2 waited at copy0@2 #0 Wait" in text


def survive_stop(world, path):
    error = error_of(lambda: die_in_op(world, signal.SIGSTOP))
    (path / str(world.rank)).write_text(": ".join(error))
    raise RunTimeoutError(error[1])


def test_a_stopped_rank_is_an_error_after_the_timeout(tmp_path):
    with pytest.raises(RunTimeoutError, match="timeout after 1 s"):
        spawn(survive_stop, 3, tmp_path, timeout=1)
    text = (tmp_path / "2").read_text()
    assert text.startswith("RunTimeoutError: rank ")
    assert "rank 1 did not come and is stopped" in text or "rank 1 is stopped" in text


def wait_in_vain(world):
    wait = made("in vain", world.num_ranks, Queue("stream0", (Wait(Flag(SELF, 2), 3),)))
    return error_of(lambda: run(wait, world))


def test_a_timeout_names_the_command_and_how_far_it_came():
    for kind, text in spawn(wait_in_vain, 2, timeout=0.3):
        assert kind == "RunTimeoutError"
        assert "timeout after 0.3 s at stream0@" in text
        assert "#0 Wait (0 of 3 came)" in text


def come_late(world):
    if world.rank == 0:
        return error_of(world.barrier)
    return error_of(lambda: None)


def test_a_barrier_without_a_rank_that_left_is_an_error():
    (kind, text), _ = spawn(come_late, 2, timeout=30)
    assert kind == "RankDiedError"
    assert text.startswith("rank 1 left the world before its first call while rank 0 waited at")


def disagree(world):
    mine = CASES["copy_engine" if world.rank < 2 else "lanes"](world.num_ranks)
    differ = made("the same", world.num_ranks, Queue("stream0", (Wait(Flag(SELF, 0), world.rank),)))
    errors = [
        error_of(lambda: prepare(mine, world)),
        error_of(lambda: prepare(differ, world)),
        error_of(lambda: world.barrier() if world.rank else prepare(mine, world)),
    ]
    run(CASES["copy_engine"](world.num_ranks), world)  # the world is as good as before
    return errors


def test_ranks_that_disagree_say_who_and_what():
    for schedule, same_name, call in spawn(disagree, 3, timeout=30):
        kind = DisagreeError.__name__
        assert schedule == (
            kind,
            "rank 0 prepares 'copy on an engine', rank 2 prepares 'lanes'.",
        )
        assert (
            same_name[1] == "rank 0 prepares 'the same', rank 1 prepares 'the same', which differs."
        )
        assert call == (kind, "rank 0 calls prepare, rank 1 calls barrier as call 1.")


def bad_arguments(world):
    schedule = CASES["copy_engine"](world.num_ranks)
    short = np.zeros(3 if world.rank else SIZE, np.uint8)
    strided = np.zeros(2 * SIZE, np.uint8)[::2]
    fixed = np.zeros(SIZE, np.uint8)
    fixed.flags.writeable = world.rank == 0
    with prepare(schedule, world) as prepared:
        unknown = error_of(lambda: prepared.buffer("inn"))
    return {
        "short": error_of(lambda: run(schedule, world, {"in": short})),
        "strided": error_of(lambda: run(schedule, world, {"in": strided})),
        "fixed": error_of(lambda: run(schedule, world, {"out": fixed})),
        "ranks": error_of(lambda: prepare(CASES["copy_engine"](world.num_ranks + 1), world)),
        "closed": error_of(prepared.run),
        "unknown": unknown,
        "missing op": error_of(
            lambda: run(CASES["kernels"](world.num_ranks), world, ops={"jon": OPS["join"]})
        ),
    }


def test_bad_arguments_are_errors_on_every_rank():
    results = spawn(bad_arguments, 2, timeout=30)
    for result in results:
        assert {kind for kind, _ in result.values()} == {"RunError", UnknownNameError.__name__}
        assert "not contiguous" in result["strided"][1]
        assert "got 3, this world has 2" in result["ranks"][1]
        assert "is closed" in result["closed"][1]
        assert "no buffer 'inn'" in result["unknown"][1]
        assert "ops: 'join' of" in result["missing op"][1]
    assert "rank 1 failed at data" in results[0]["short"][1]
    assert "rank 1 failed at data" in results[0]["fixed"][1]
    assert results[1]["fixed"][1] == "out: the array is read-only."
    assert results[1]["short"][1] == "in: wrong size (got 3 bytes, expected 1000)."


def stream(*commands, buffers=(IN, OUT), queue="stream0"):
    return made("wrong", 2, Queue(queue, commands), buffers=buffers)


WRONG = {
    "outside": (stream(Copy(own("in", 1), own("out"))), BoundsError, "bytes 1 to 1001 of in@"),
    "negative": (stream(Copy(own("in", -1), own("out"))), BoundsError, "bytes -1 to 999"),
    "flag": (stream(Signal(Flag(SELF, 4))), BoundsError, "no flag 4 on rank"),
    "rank": (stream(Signal(Flag(7, 0))), BoundsError, "no flag 0 on rank 7"),
    "sizes": (
        stream(Copy(own("in", 0, 10), own("out", 0, 9))),
        ScheduleError,
        "differ in size (10 and 9 bytes)",
    ),
    "swap": (
        stream(Swap(own("in", 0, 10), own("in", 9, 10))),
        ScheduleError,
        "do not fit its kind",
    ),
    "items": (
        stream(Reduce((own("in", 0, 10),), own("out", 0, 10), "float32")),
        ScheduleError,
        "do not fit its kind",
    ),
    "dtype": (stream(Reduce((own("in"),), own("out"), "float128")), RunError, "dtype 'float128'"),
    "op": (stream(Reduce((own("in"),), own("out"), "int8", "mean")), RunError, "'mean'"),
    "codec": (stream(Encode(own("in"), own("out"), "zip", "float32")), UnknownNameError, "'zip'"),
    "slot": (
        stream(Encode(own("in"), own("out"), "none", "uint8")),
        ScheduleError,
        "do not fit its kind",
    ),
    "kernel": (
        stream(Kernel("double"), queue="copy0"),
        ScheduleError,
        "cannot run on an engine",
    ),
    "queue": (stream(Signal(Flag(SELF, 0)), queue="tape0"), ScheduleError, "queue 'tape0'"),
    "large": (
        stream(buffers=(Buffer("in", 1 << 45),)),
        SharedMemoryError,
        "cannot allocate 32 TiB of a rank's",
    ),
    "hosts": (
        Schedule(
            "wrong",
            2,
            (
                Program(
                    range(2),
                    (
                        Queue("host", (Submit(0, "copy0", 1, hold=Flag(SELF, 0)),)),
                        Queue("copy0", (Signal(Flag(SELF, 0)), Signal(Flag(SELF, 0)))),
                    ),
                ),
            ),
            (),
            1,
        ),
        ScheduleError,
        "submit held commands to one queue",
    ),
}


def prepare_wrong(world):
    errors = {}
    for name, (schedule, _, _) in WRONG.items():
        errors[name] = error_of(lambda schedule=schedule: prepare(schedule, world))
    run(CASES["copy_engine"](world.num_ranks), world)  # none of it harmed the world
    return errors


@pytest.fixture(scope="module")
def prepared_wrong():
    return spawn(prepare_wrong, 2, timeout=30)


@pytest.mark.parametrize("name", WRONG)
def test_a_schedule_that_cannot_be_run_is_refused_before_it_starts(prepared_wrong, name):
    _, kind, text = WRONG[name]
    errors = [result[name] for result in prepared_wrong]
    assert any(error[0] == kind.__name__ and text in error[1] for error in errors), errors
    assert all(error[0] for error in errors)


def run_out_of_memory(world):
    """Rank 1 needs a page more than there is."""
    room = os.statvfs("/dev/shm")
    sizes = (1000, room.f_blocks * room.f_frsize + 4096)
    big = made("big", world.num_ranks, buffers=(Buffer("in", sizes),))
    error = error_of(lambda: prepare(big, world))
    run(CASES["copy_engine"](world.num_ranks), world)
    return error


def test_memory_that_one_rank_does_not_get_is_an_error_on_all():
    first, second = spawn(run_out_of_memory, 2, timeout=30)
    reason = first[1].split(": ", 1)[1]
    assert reason.endswith(" bytes of shared memory: No space left on device.")
    assert first == ("SharedMemoryError", f"rank 1 failed at memory for big: {reason}")
    assert second == ("SharedMemoryError", reason)


def decode_garbage(world):
    decode = Decode(own("in", 0, 100), own("out", 0, 50), "none", "uint8")
    return error_of(lambda: run(stream(decode), world, {"in": np.full(SIZE, world.rank, np.uint8)}))


def test_a_slot_with_a_wrong_length_is_an_error():
    for kind, text in spawn(decode_garbage, 2, timeout=30):
        assert kind == "RunError"
        assert "a slot of " in text
        assert "bytes, expected 50, at stream0@" in text


def count_threads(world):
    before = threads()
    run(CASES["two_engines"](world.num_ranks), world)
    during = threads()
    world.close()
    return before, during, threads(), error_of(world.barrier)


def test_engines_end_with_their_world():
    for before, during, after, error in spawn(count_threads, 2, timeout=30):
        assert during == before + 2
        assert after == before
        assert error == ("RunError", "this world is closed.")
