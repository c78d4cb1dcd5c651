"""What the parts of a process group share."""

from datetime import timedelta

from torch import Tensor

from weft.torch.c10d import ProcessGroup, Store, Work
from weft.torch.channel import Channel
from weft.torch.plain import Call
from weft.torch.work import Completer, Done, Pending


class Group(ProcessGroup):
    """A group of ranks with a channel between them."""

    channel: Channel
    completer: Completer
    store: Store
    timeout: timedelta
    _under_way: list[tuple[Pending, object]]

    def work(self, tensors: list[Tensor], *calls: Call) -> Work:
        """Give the Work of some calls that write ``tensors``."""
        handles = [handle for call in calls for handle in call.handles if handle is not None]
        finishes = [call.finish for call in calls if call.finish is not None]

        def finish() -> None:
            for one in finishes:
                one()

        if handles:
            work = Pending(handles, tensors, finish if finishes else None, self.completer)
            self._keep(work, [call.keep for call in calls])
            return work
        finish()
        return Done(tensors)

    def _keep(self, work: Pending, memory: object) -> None:
        """Hold what a work uses until it is done, even if its caller drops it."""
        self._under_way = [held for held in self._under_way if not held[0].is_completed()]
        self._under_way.append((work, memory))
