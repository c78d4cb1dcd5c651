"""How ranks end: with work under way, by Ctrl-C, as a fork; and who may see their memory."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import numpy as np
import pytest

from tests.runtime.leftovers import eventually, nothing_left
from tests.runtime.test_env_rendezvous import environment
from tests.runtime.test_world_faults import error_of
from tests.soak.growth import held
from weft.runtime import process_settings, spawn
from weft.runtime.communicator import create_segment
from weft.runtime.stale_segments import PREFIX, SHARED_MEMORY

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(90)]


_started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _nothing_left():
    with nothing_left():
        yield
        for process in _started:  # where a test fails, its ranks may still wait
            process.kill()
            process.communicate()
        _started.clear()


BEGIN = """
    import os, signal, sys, time
    import numpy as np
    import weft.runtime

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    world = weft.runtime.world(timeout=60)
    x = np.ones(100_000)
    world.all_reduce(x)
    if world.rank == 0:
        open(sys.argv[1] + "/ready", "w").close()
"""


def start(tmp_path, script, num_ranks=2):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(BEGIN) + textwrap.dedent(script))
    for rank in range(num_ranks):
        command = [sys.executable, str(path), str(tmp_path)]
        where = environment(rank, num_ranks, tmp_path)
        _started.append(subprocess.Popen(command, env=where, stderr=subprocess.PIPE, text=True))
    return list(_started)


def ended(processes):
    """Exit codes and what stood in stderr; the deadline of communicate is far below 60 s."""
    return [(p.communicate(timeout=40)[1], p.returncode) for p in processes]


def test_a_process_may_end_while_its_work_waits_for_others(tmp_path):
    script = """
        if world.rank == 0:
            works = [world.all_reduce(x, async_op=True) for _ in range(3)]
        else:
            time.sleep(0.3)  # comes to none of them, and ends
    """
    for errors, code in ended(start(tmp_path, script)):
        assert (errors, code) == ("", 0)


WAITS = {
    "a call": "world.all_reduce(x)",
    "a work": "world.all_reduce(x, async_op=True).wait()",
    "a first call": "world.broadcast(x)",
    "a message": "world.recv(x, 1)",
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_ctrl_c_in_a_wait_is_a_keyboard_interrupt_and_tells_the_others(tmp_path, wait):
    script = f"""
        if world.rank == 0:
            {wait}
        else:
            while not os.path.exists(sys.argv[1] + "/sent"):
                time.sleep(0.01)
            world.barrier()
    """
    first, second = start(tmp_path, script)
    assert eventually((tmp_path / "ready").exists)
    time.sleep(0.3)  # until it waits; should it come sooner, the test only proves less
    began = time.monotonic()
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    assert time.monotonic() - began < 20
    (tmp_path / "sent").touch()
    _, errors = second.communicate(timeout=30)
    assert "RunError: rank 0 raised KeyboardInterrupt" in errors
    assert first.returncode != 0
    assert second.returncode == 1


def fork_and_go_on(world):
    """The child of rank 0 tries everything, then ends by an error."""
    x = np.full(1000, 1.0)
    world.all_reduce(x)
    pending = world.all_reduce(np.ones(10), async_op=True) if world.rank == 0 else None
    hear, tell = os.pipe()
    if world.rank == 0 and os.fork() == 0:
        acts = (
            lambda: world.all_reduce(x),
            lambda: world.all_reduce(x, async_op=True),
            world.barrier,
            lambda: world.send(x, 1),
            lambda: world.empty(10),
        )
        os.write(tell, "\n".join(": ".join(error_of(act)[:2]) for act in acts).encode())
        world.close()
        os._exit(3)
    told = os.read(hear, 10_000).decode().splitlines() if world.rank == 0 else []
    if world.rank == 0:
        os.wait()
    else:
        world.all_reduce(np.ones(10))
    if pending is not None:
        pending.wait()
    world.all_reduce(x)
    return told, float(x[0])


def test_calls_of_a_forked_child_raise_and_leave_the_world_intact():
    (told, first), (_, second) = spawn(fork_and_go_on, 2, timeout=30)
    assert first == second == 4.0
    assert len(told) == 5
    assert all(text.startswith("RunError: ") and "forked from rank 0" in text for text in told)


def test_a_forked_child_that_ends_by_an_exception_does_not_break_the_world(tmp_path):
    script = """
        if world.rank == 0 and os.fork() == 0:
            raise SystemError("of the child")
        if world.rank == 0:
            os.wait()
        world.all_reduce(x)
        world.barrier()
    """
    (errors, first), (_, second) = ended(start(tmp_path, script))
    assert "of the child" in errors
    assert first == second == 0


def closed(world):
    x = np.ones(10)
    work = world.all_reduce(x, async_op=True)
    world.all_reduce(x)
    late = world.all_reduce(x, async_op=True) if world.rank == 0 else None
    world.close()
    cut_off = error_of(late.wait)[:2] if late is not None else ("", "")
    work.wait()
    return cut_off, error_of(lambda: world.all_reduce(x))[:2]


def test_a_closed_world_refuses_calls_it_has_made_before():
    first, second = spawn(closed, 2, timeout=30)
    assert first[1] == second[1] == ("RunError", "this world is closed.")
    assert first[0] == (
        "RunError",
        "all_reduce(80 bytes, float64, sum) was interrupted: this world is closed.",
    )


def come_and_go(world):
    """What this process holds after each of some groups that it made, used and closed."""
    gc.disable()  # nothing may wait for the collector of circles
    seen = []
    for _ in range(4):
        group = world.group(range(world.num_ranks))
        x = np.ones(1000)
        group.all_reduce(x)
        work = group.all_reduce(x, async_op=True)
        work.wait()
        group.exchange([x[:1], x[1:2]], [x[2:3], x[3:4]])
        group.close()
        del group, work
        now = held()
        seen.append((now.descriptors, now.threads, now.shared))
    return seen


def test_a_closed_world_is_gone_at_once():
    for seen in spawn(come_and_go, 2, timeout=30):
        assert len(set(seen)) == 1, seen


def test_segments_are_private_and_cannot_be_guessed():
    launchers = [create_segment(2) for _ in range(20)]
    try:
        names = [launcher.name.removeprefix("/") for launcher in launchers]
        for name in names:
            info = (SHARED_MEMORY / name).stat()
            assert info.st_mode & 0o777 == 0o600
            assert info.st_uid == os.geteuid()
        tokens = [int(name.removeprefix(PREFIX), 16) for name in names]
        # 128 random bits: among twenty, every bit is once set and once not, but for one in 2^13.
        both = np.bitwise_or.reduce(np.array(tokens, object))
        none = np.bitwise_and.reduce(np.array(tokens, object))
        assert both.bit_count() - none.bit_count() > 120
        assert all(len(name) == len(PREFIX) + 32 for name in names)
    finally:
        for launcher in launchers:
            launcher.close()


def test_only_what_the_launcher_started_is_let_in(monkeypatch):
    asked = []
    system = SimpleNamespace(prctl=lambda *args: asked.append(args))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: system)
    monkeypatch.setattr(os, "getppid", lambda: 4242)
    assert process_settings.allow_sibling_reads()
    assert [(args[0], args[1].value) for args in asked] == [(0x59616D61, 4242)]
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert process_settings.allow_sibling_reads()
    assert len(asked) == 1


CODED = """
    import threading
    from weft.compress import codec_registry
    from weft.compress.frame import Framed

    begun, go_on = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, name, dtype):
            self.name, self.dtype = name, dtype
            self._framed = Framed(name, 99, dtype, 0)
            self.room = self._framed.room

        def encode(self, chunk, out):
            if len(chunk) > 4:
                begun.set()
                wait()
            return self._framed.write(chunk, bytes(len(chunk)), out)

        def decode(self, frame, chunk):
            self._framed.read(frame, chunk)

    codec_registry.CODECS["slow"] = codec_registry.CodecKind(Slow)
    y = np.ones(1000, np.float32)
"""


def test_ctrl_c_in_a_codec_is_a_keyboard_interrupt_and_tells_the_others(tmp_path):
    script = (
        CODED
        + """
    def wait():
        open(sys.argv[1] + "/coding", "w").close()
        while True:
            time.sleep(0.01)

    world.broadcast(y, codec="slow")
    """
    )
    first, second = start(tmp_path, script)
    assert eventually((tmp_path / "coding").exists)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    assert "cannot decode" not in errors
    _, errors = second.communicate(timeout=30)
    assert "RunError: rank 0 raised KeyboardInterrupt" in errors
    assert first.returncode != 0
    assert second.returncode == 1


@pytest.mark.parametrize("who", ["the caller", "its worker"])
def test_a_world_may_be_dropped_while_a_codec_of_python_runs(tmp_path, who):
    """The worker wants the lock of Python to go on, or finds the world in a circle itself."""
    script = (
        CODED
        + f"""
    import gc

    gc.disable()

    def wait():
        if {who!r} == "its worker":
            go_on.wait()
            gc.collect()
        time.sleep(0.3)

    work = world.broadcast(y, codec="slow", async_op=True)
    if world.rank == 0:
        begun.wait()
        del world, work
        go_on.set()
        if {who!r} == "the caller":
            gc.collect()
    """
    )
    (errors, first), _ = ended(start(tmp_path, script))
    assert (errors, first) == ("", 0)
