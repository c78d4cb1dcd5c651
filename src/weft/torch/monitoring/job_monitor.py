"""``weft.torch.monitor``: which rank is late while the job runs, and why.

::

    rank r:  collectives ─▶ StampRing ─▶ thread, every few seconds ─▶ store of the process group
    rank 0:  thread: batches of all ranks ─▶ JobJoiner ─▶ JobWindow ─▶ journal, log, Prometheus

Ranks exchange stamps through the job's store and not by collectives, so a rank that is stuck or
dead delays nobody. Nothing that fails here reaches the job: the monitor logs it once and stops.
"""

import atexit
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from weft.errors import UsageError, WeftError
from weft.torch.monitoring.collective_hooks import observe, unobserve
from weft.torch.monitoring.stamp_ring import StampRing
from weft.trace.live.job_window import JobJoiner, JobWindow, StampBatch, decode_batch, encode_batch
from weft.trace.live.prometheus import MetricsServer
from weft.trace.live.window_journal import append_window, new_journal

_PREFIX = "weft-monitor"
_KEPT_WINDOWS = 256
_log = logging.getLogger("weft.monitor")
_count = 0  # monitors of this process: their keys in the store differ


def monitor(
    group: Any = None,
    *,
    interval: float = 2.0,
    port: int | None = None,
    journal: str | Path | None = None,
    log: Callable[[str], None] | None = None,
) -> "JobMonitor":
    """Watch the collectives of a job; call it on every rank, after ``init_process_group``.

    ``group`` restricts it to the collectives of one process group. Every ``interval`` seconds rank
    0 joins the stamps of all ranks into a window, appends it to ``journal`` (default: a file that
    ``weft watch`` finds) and passes its sentences to ``log`` (default: the logger
    ``weft.monitor``, level INFO). With ``port``, rank 0 serves Prometheus metrics on loopback.
    """
    if not dist.is_initialized():
        raise UsageError(
            "monitor: there is no process group", "Call dist.init_process_group() first."
        )
    if interval <= 0:
        raise UsageError(f"interval: must be > 0 seconds (got {interval})")
    return JobMonitor(group, interval, port, journal, log)


class JobMonitor:
    """A monitor that runs; it ends with ``close`` or with the process."""

    def __init__(
        self,
        group: Any,
        interval: float,
        port: int | None,
        journal: str | Path | None,
        log: Callable[[str], None] | None,
    ) -> None:
        global _count  # noqa: PLW0603 - every rank counts alike
        _count += 1
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._interval, self._say = interval, log or _log.info
        self._prefix = f"{_PREFIX}/{_count}"
        store: Any = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no other door
        self._store = store.clone()  # a connection of its own: the job's is never held up
        self._ring = StampRing(only=group)
        self._steps: deque[int] = deque(maxlen=4096)
        self._sent = 0
        self._received = [0] * self.world_size
        self._windows: deque[JobWindow] = deque(maxlen=_KEPT_WINDOWS)
        self._joiner = JobJoiner(self.world_size, interval)
        self._server: MetricsServer | None = None
        self.journal: Path | None = None
        if self.rank == 0:
            self._open_outputs(port, journal)
        self._stop = threading.Event()
        self._step_owner: Any = None
        self._step_hook = register_optimizer_step_post_hook(self._optimizer_step)
        observe(self._ring)
        self._thread = threading.Thread(target=self._run, name="weft-monitor", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _open_outputs(self, port: int | None, journal: str | Path | None) -> None:
        try:
            self.journal = Path(journal) if journal is not None else new_journal()
            self.journal.write_bytes(b"")
        except OSError as error:
            _log.warning("no journal: %s", error)
            self.journal = None
        if port is not None:
            try:
                self._server = MetricsServer(port, lambda: self.last)
            except WeftError as error:  # the job goes on without metrics
                _log.warning("no metrics: %s", error)

    @property
    def last(self) -> JobWindow | None:
        """The last window; None before there is one, and on other ranks than 0."""
        return self._windows[-1] if self._windows else None

    @property
    def windows(self) -> tuple[JobWindow, ...]:
        """The last windows, on rank 0."""
        return tuple(self._windows)

    @property
    def port(self) -> int | None:
        """The port of the metrics, if they are served here."""
        return None if self._server is None else self._server.port

    def step(self) -> None:
        """Mark the end of a step; without calls, every step of the first optimizer is one."""
        self._step_owner = self
        self._steps.append(time.monotonic_ns())

    def _optimizer_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._step_owner is None:
            self._step_owner = optimizer
        if optimizer is self._step_owner:
            self._steps.append(time.monotonic_ns())

    def close(self) -> None:
        """Send the last stamps and stop; rank 0 writes the last window."""
        if self._stop.is_set():
            return
        self._stop.set()
        unobserve(self._ring)
        self._step_hook.remove()
        atexit.unregister(self.close)
        self._thread.join(timeout=self._interval + 5.0)
        self._ring.close()
        if self._server is not None:
            self._server.close()
            self._server = None

    def __enter__(self) -> "JobMonitor":  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            before = time.monotonic()
            while not self._stop.wait(self._interval):
                self._send(last=False)
                before = self._collect(before)
            self._send(last=True)
            if self.rank == 0:
                self._await_last()
                self._collect(before)
        except Exception as error:  # noqa: BLE001 - the job goes on, whatever happens here
            _log.warning("monitor stopped: %s", error)
            unobserve(self._ring)

    def _send(self, *, last: bool) -> None:
        """Put the stamps since the last batch into the store."""
        steps = [self._steps.popleft() for _ in range(len(self._steps))]
        dropped, self._ring.dropped = self._ring.dropped, 0
        batch = StampBatch(
            rank=self.rank,
            host=socket.gethostname(),
            stamps=self._ring.take().tobytes(),
            groups=dict(self._ring.groups),
            steps=steps,
            dropped=dropped,
            last=last,
        )
        if self.rank == 0:
            self._joiner.add(batch, time.monotonic())
        else:
            self._store.set(f"{self._prefix}/{self.rank}/{self._sent}", encode_batch(batch))
            self._sent += 1

    def _receive(self) -> int:
        """Take the batches that have come; return how many ranks have sent their last."""
        done = 0
        for rank in range(1, self.world_size):
            while self._received[rank] >= 0:
                key = f"{self._prefix}/{rank}/{self._received[rank]}"
                if not self._store.check([key]):
                    break
                batch = decode_batch(self._store.get(key))
                self._store.delete_key(key)
                self._joiner.add(batch, time.monotonic())
                self._received[rank] = -1 if batch.last else self._received[rank] + 1
            done += self._received[rank] < 0
        return done

    def _await_last(self) -> None:
        """Wait a moment for the other ranks to send their last batch."""
        until = time.monotonic() + self._interval
        while self._receive() < self.world_size - 1 and time.monotonic() < until:
            threading.Event().wait(0.05)

    def _collect(self, before: float) -> float:
        """Join what has come into a window, on rank 0; return when it ended."""
        if self.rank != 0:
            return before
        self._receive()
        now = time.monotonic()
        window = self._joiner.window(now, now - before)
        if not window.kinds and not window.silent:
            return before
        self._windows.append(window)
        if self.journal is not None:
            append_window(self.journal, window)
        for line in window.sentences():
            self._say(line)
        return now
