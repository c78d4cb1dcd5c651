"""Propagation of a failure on one host to the ranks of all hosts, with its reason."""

import contextlib
import re
import threading
import time

from weft._core import FaultReason
from weft.errors import RankDiedError, RunError
from weft.runtime import World
from weft.runtime.faults import ERRORS
from weft.torch.backend.bounded_store import answered
from weft.torch.backend.c10d import Store
from weft.torch.hosts.gloo_transport import GlooTransport
from weft.torch.hosts.host_map import HostMap

_KEY = "weft/failure"
_PREFIX = "between hosts: "  # marks a text that has the group's ranks already
_FOR_A_REASON = (
    0.3  # seconds to wait for the reason, which is written before connections are closed
)
_FOR_THE_STORE = 0.25  # seconds to report a reason; it usually takes some milliseconds
_POLL_SECONDS = 0.02
# Subclasses first: RunError is the base of the others.
_REASONS = {kind: reason for reason, kind in reversed(ERRORS.items())}


class AbortPropagator:
    """Records the first failure of a rank, fails its world and reports it to all hosts."""

    def __init__(
        self, world: World, transport: GlooTransport, hosts: HostMap, rank: int, store: Store
    ) -> None:
        self._world, self._transport, self._hosts = world, transport, hosts
        self._rank, self._store = rank, store
        self._lock = threading.Lock()
        self._failure: RunError | None = None

    def require_healthy(self) -> None:
        """Raise the failure if there has been one."""
        if self._failure is not None:
            raise self._failure

    def propagate(self, error: BaseException) -> RunError:
        """Return the failure of the group for an error of this rank, after reporting it to all."""
        with self._lock:
            if self._failure is None:
                self._failure = self._explained(error)
                self._report(self._failure)
            return self._failure

    def _explained(self, error: BaseException) -> RunError:
        if found := self._by_world():
            return found
        if isinstance(error, RankDiedError) and (reported := self._by_store()):
            return reported
        kind = next((kind for kind in _REASONS if isinstance(error, kind)), None)
        if isinstance(error, RunError) and kind is not None:
            return kind(f"{_PREFIX}{str(error).rstrip('.')}.", error.hint)
        return RunError(f"{_PREFIX}rank {self._rank} raised {type(error).__name__}: {error}.")

    def _by_world(self) -> RunError | None:
        """Return the fault of this host's world, with the group's ranks for local ones."""
        fault = self._world.member.fault()
        if fault is None:
            return None
        text = fault[2].decode(errors="replace").rstrip(".")
        if not text.startswith(_PREFIX):
            local_ranks = self._hosts.ranks[self._hosts.of[self._rank]]
            text = re.sub(r"\brank (\d+)", lambda found: f"rank {local_ranks[int(found[1])]}", text)
            text = f"{text} (on host {self._hosts.names[self._hosts.of[self._rank]]})"
        failure = ERRORS[FaultReason(fault[0])](f"{text}.")
        failure.recent = self._world.recent()
        return failure

    def _by_store(self) -> RunError | None:
        """Read why a rank closed its connections; a killed one has not written a reason."""
        found: list[RunError] = []
        deadline = time.monotonic() + _FOR_A_REASON

        def read() -> None:
            while time.monotonic() < deadline:
                if self._store.check([_KEY]):
                    reason, _, text = self._store.get(_KEY).decode().partition(" ")
                    found.append(ERRORS[FaultReason(int(reason))](text))
                    return
                time.sleep(_POLL_SECONDS)

        with contextlib.suppress(RuntimeError):  # the store may have ended with its host
            answered(read, 2 * _FOR_A_REASON)
        return found[0] if found else None

    def _report(self, failure: RunError) -> None:
        reason, text = _REASONS[type(failure)], str(failure)
        if self._world.member.fault() is None:
            prefix = "" if text.startswith(_PREFIX) else _PREFIX
            self._world.fail(reason, self._world.rank, f"{prefix}{text.rstrip('.')}")
        # Behind a link that drops packets silently, TCP gives up only after 15 minutes.
        with contextlib.suppress(RuntimeError):
            answered(
                lambda: self._store.compare_set(_KEY, "", f"{int(reason)} {text}"), _FOR_THE_STORE
            )
        self._transport.close_all()
