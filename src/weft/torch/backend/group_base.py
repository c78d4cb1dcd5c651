"""The base class of the mixins of WeftProcessGroup."""

import re
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch import Tensor

from weft._core import DispatchCache
from weft.errors import RunTimeoutError
from weft.torch.backend.c10d import ProcessGroup, Store, Work
from weft.torch.backend.c10d_work import COMPLETED, FutureCompleter, PendingWork, Waitable
from weft.torch.backend.channel import Channel
from weft.torch.backend.contiguity import Finish, IssuedCollective

if TYPE_CHECKING:
    from weft.torch.apply.collective_routes import GroupRoutes
    from weft.torch.apply.gpu_routes import GpuRoutes
    from weft.torch.backend.compression import Compression


_MISSING = re.compile(r"rank (\d+) (?:did not come|is stopped)")


class GroupBase(ProcessGroup):
    """State that all mixins use: the channel, pending works and options of a group."""

    channel: Channel
    dispatch_cache: DispatchCache | None
    completer: FutureCompleter
    store: Store
    compression: "Compression | None" = None
    routes: "GroupRoutes | None" = None  # set by a plan
    device_routes: "GpuRoutes | None" = None  # the same for tensors of another device
    timeout: timedelta
    _rank: int
    _size: int
    _in_flight: list[tuple[PendingWork, object]]
    _keeping: threading.RLock  # protects _in_flight

    def device_group(self, device_type: str) -> Any:
        """Return the process group that serves tensors of another device."""
        raise NotImplementedError

    def monitored_barrier(
        self,
        timeout: timedelta | None = None,
        wait_all_ranks: bool = False,  # noqa: FBT001, FBT002, ARG002 - torch's; all are named
    ) -> None:
        """Wait for all ranks; raise an error that names the missing ones.

        Its words are those of torch, by which programs recognize it.
        """
        me, limit = self._rank, self.timeout if timeout is None else timeout
        after = f"after {limit.total_seconds() * 1e3:g} ms"
        if not limit:
            raise RunTimeoutError(f"Rank {me} timed out in monitoredBarrier {after}.")
        self.channel.set_timeout(limit)
        try:
            self.channel.barrier()
        except RunTimeoutError as error:
            missing = dict.fromkeys(_MISSING.findall(error.message))
            who = f"Rank{'s' * (len(missing) > 1)} {', '.join(missing) or 'unknown'}"
            if me == 0:
                text = f"{who} failed to pass monitoredBarrier {after}: {error.message}"
            else:
                text = (
                    f"Rank {me} successfully reached monitoredBarrier, but received errors while "
                    f"waiting for send/recv from rank 0; {who} failed to pass it: {error.message}"
                )
            raise RunTimeoutError(text) from error
        finally:
            self.channel.set_timeout(self.timeout)

    def work(
        self,
        tensors: list[Tensor],
        handle: Waitable | None,
        finish: Finish | None = None,
        keep: object = None,
    ) -> Work:
        """Return the Work of a call that writes ``tensors`` and reads ``keep``."""
        if handle is None:
            if finish is not None:
                finish()
            return COMPLETED
        return self._pending([handle], tensors, finish, keep)

    def works(self, tensors: list[Tensor], calls: Sequence[IssuedCollective]) -> Work:
        """Return the Work of several calls."""
        handles = [call.handle for call in calls if call.handle is not None]
        finishes = [call.finish for call in calls if call.finish is not None]

        def finish() -> None:
            for one in finishes:
                one()

        if handles:
            return self._pending(handles, tensors, finish, [call.keep for call in calls])
        finish()
        return COMPLETED

    def _pending(
        self, handles: list[Waitable], tensors: list[Tensor], finish: Finish | None, keep: object
    ) -> PendingWork:
        work = PendingWork(handles, tensors, finish, self.completer)
        # Keeps the memory alive until the work is done, even if the caller drops it.
        with self._keeping:
            self._in_flight = [held for held in self._in_flight if not held[0].is_completed()]
            self._in_flight.append((work, keep))
        return work
