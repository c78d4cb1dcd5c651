"""weft.torch.monitor and weft.torch.overlap_report on ranks of this machine."""

import tempfile
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

import weft
import weft.torch
from weft.errors import UsageError
from weft.torch.monitoring.collective_hooks import num_bytes

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]
LATE = 0.02  # seconds that one rank sleeps in every step


def on_ranks(function, backend, num_ranks=2):
    with tempfile.TemporaryDirectory() as folder:
        return weft.spawn(_on_rank, num_ranks, folder, function, backend, timeout=60)


def _on_rank(world, folder, function, backend):
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), world.num_ranks)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.num_ranks)
    try:
        return function(Path(folder))
    finally:
        dist.destroy_process_group()


def train(model, steps, on_step=lambda: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        if dist.get_rank() == 1:
            time.sleep(LATE)
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        on_step()


def monitored(folder):
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64)] * 2))
    lines: list[str] = []
    journal = folder / "job.jsonl"
    with weft.torch.monitor(interval=0.3, journal=journal, log=lines.append, port=0) as watching:
        train(model, 40)
        x = torch.ones(4)
        dist.all_reduce(x)
        assert x.tolist() == [2.0] * 4
    after = len(watching.windows)
    dist.all_reduce(x)  # hooks stay, and do nothing without a monitor
    assert len(watching.windows) == after
    return lines, watching.windows, journal.exists()


@pytest.mark.parametrize("backend", ["gloo", "weft"])
def test_a_late_rank_is_named_with_its_reason(backend):
    (lines, windows, has_journal), (other_lines, other_windows, _) = on_ranks(monitored, backend)
    assert not other_lines
    assert not other_windows
    assert has_journal
    late = [window.stragglers[0] for window in windows if window.stragglers]
    assert late
    # Two ranks on a busy machine: the sleeping one must dominate, not win each time.
    assert sum(each.rank == 1 for each in late) >= 0.5 * len(late)
    assert any("slowest is rank 1" in line and "host was late" in line for line in lines)
    steps = [window.step_seconds for window in windows if window.step_seconds]
    assert steps
    assert max(steps) >= LATE
    count = sum(kind.count for window in windows for kind in window.kinds)
    assert count >= 41


def wrapped_sequences(_folder):
    from weft.torch.monitoring.collective_hooks import observe, unobserve
    from weft.torch.monitoring.stamp_ring import StampRing

    ring = StampRing()
    ring._sequence = defaultdict(lambda: 2**32 - 2)  # as after months
    observe(ring)
    for _ in range(3):
        dist.all_reduce(torch.ones(8))
    unobserve(ring)
    until = time.monotonic() + 20
    found: list[int] = []
    while len(found) < 3 and time.monotonic() < until:
        found += ring.take()["sequence"].tolist()
    return found


def test_repeated_collectives_are_stamped_and_their_sequences_wrap():
    assert on_ranks(wrapped_sequences, "weft") == [[2**32 - 1, 0, 1]] * 2


def hooked_sequences(folder):
    del folder
    from weft.torch.monitoring.collective_hooks import observe, unobserve
    from weft.torch.monitoring.stamp_ring import StampRing

    ring = StampRing(size=6)
    observe(ring)
    x = torch.ones(8)
    out = torch.empty(8 * dist.get_world_size())
    dist.all_reduce(x)
    dist.all_gather_into_tensor(out, x)
    dist.broadcast(x, 0)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    work.wait()
    group = dist.new_group([0, 1])
    dist.all_reduce(x, group=group)
    unobserve(ring)
    dist.barrier()
    until = time.monotonic() + 20
    rows: list[tuple[int, int]] = []
    while len(rows) < 5 and time.monotonic() < until:
        rows += [(int(row["kind"]), int(row["nbytes"])) for row in ring.take() if row["kind"] < 8]
    return rows, sorted(len(ranks) for _, ranks in ring.groups.values()), ring.dropped


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("backend", ["gloo", "weft"])
def test_every_collective_is_stamped_with_its_kind_and_bytes(backend):
    for rows, groups, _ in on_ranks(hooked_sequences, backend):
        assert sorted(rows) == sorted([(0, 32), (1, 64), (4, 32), (0, 32), (0, 32)])
        assert groups == [2, 2]


def profiled(folder):
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    lines: list[str] = []
    handler = weft.torch.overlap_report(
        every=5,
        html=folder / "report.html",
        trace=str(folder / "rank{rank}.json"),
        log=lines.append,
    )
    plan = schedule(wait=1, warmup=1, active=3, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=handler) as prof:
        train(model, 7, prof.step)
    left = list(Path("/dev/shm").glob("weft-overlap-*"))
    return lines, handler.last, (folder / "report.html").exists(), left


def test_a_profile_becomes_three_lines_on_rank_0():
    first, other = on_ranks(profiled, "gloo")
    lines, ranks, has_page, left = first
    assert len(lines) == 3
    assert lines[0].startswith("weft: step ")
    assert "exposed communication" in lines[1]
    assert "slowest rank 1" in lines[2]
    assert [rank.rank for rank in ranks] == [0, 1]
    assert ranks[0].exposed <= ranks[0].communication <= ranks[0].step * 1.01
    assert has_page
    assert not left
    assert other[0] == []


class Broken:
    step_num = 0

    def export_chrome_trace(self, path):
        raise RuntimeError(path)


def profiled_with_a_failure(_folder, failing):
    handler = weft.torch.overlap_report(log=lambda _: None, timeout=60.0)
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        dist.all_reduce(torch.ones(64))
    handler(Broken() if dist.get_rank() == failing else prof)
    dist.barrier()
    return handler.seconds


@pytest.mark.parametrize("failing", [0, 1])
def test_no_rank_waits_for_the_report_of_one_that_failed(failing):
    seconds = on_ranks(partial(profiled_with_a_failure, failing=failing), "gloo")
    assert max(seconds) < 60


def test_a_handler_never_raises_into_the_job(caplog):
    handler = weft.torch.overlap_report()
    handler(Broken())
    assert "no overlap report" in caplog.text
    handler(object())


def test_odd_arguments_are_refused_before_the_job_starts():
    with pytest.raises(UsageError, match="every"):
        weft.torch.overlap_report(every=0)
    with pytest.raises(UsageError, match="process group"):
        weft.torch.monitor()


def test_bytes_of_nested_tensors_add_up():
    assert num_bytes([[torch.ones(2), torch.ones(3)], torch.ones(1)]) == 24
    assert num_bytes(None) == 0


class Unregistered:
    """A process group that torch does not know."""

    group_name = "g"

    def size(self):
        return 2


class Device:
    """A device whose clock is 20 ppm fast, and a host: seconds of both since the start."""

    now = 0.0

    def nanoseconds(self):
        return round(self.now * 1e9)

    def event(self, **_):
        return Event(self)


class Event:
    def __init__(self, device):
        self._device, self._at = device, 0.0

    def record(self, _stream=None):
        self._at = self._device.now * (1 + 20e-6)

    def elapsed_time(self, other):
        """Return milliseconds as CUDA does: a float of four bytes."""
        return float(np.float32((other._at - self._at) * 1e3))

    def synchronize(self):
        pass

    def query(self):
        return True


def test_times_of_a_device_are_as_accurate_after_hours(monkeypatch):
    from weft.torch.monitoring import stamp_ring

    device = Device()
    monkeypatch.setattr(stamp_ring, "time", SimpleNamespace(monotonic_ns=device.nanoseconds))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    ring = stamp_ring.StampRing()
    errors = []
    for step in range(3 * 3600):
        device.now = float(step)
        stamp = ring.started("all_reduce", 64, Unregistered(), on_gpu=True)
        assert stamp is not None
        device.now += 100e-6
        stamp.end = device.event()
        stamp.end.record()
        device.now += 0.1
        (row,) = ring.take()
        errors += [abs(row["start"] - step * 1e9), abs(row["end"] - step * 1e9 - 100e3)]
    assert max(errors) < 200e3  # nanoseconds: the drift of some seconds
