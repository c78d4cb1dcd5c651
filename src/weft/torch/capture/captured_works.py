"""``dist.Work`` and object collectives of a captured step.

The fake process group of torch answers at once. Here every call of a process group remembers
which recorded collectives its Work stands for, so that ``wait()`` makes the current stream wait
for them, as NCCL does, and ``get_future()`` has the tensors that a communication hook expects.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup, FakeWork
from torch.distributed import distributed_c10d

from weft.errors import WeftError
from weft.torch.capture.captured_streams import Front, merge
from weft.torch.capture.op_costs import tensors_in

if TYPE_CHECKING:
    from weft.torch.capture.recorder import Recorder

Patch = contextlib.AbstractContextManager[Any]
_CALLS = (
    *("allreduce", "allreduce_coalesced", "allgather", "_allgather_base", "all_gather_single"),
    *("allgather_coalesced", "allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"),
    *("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
    *("alltoall", "alltoall_base", "all_to_all_single", "broadcast", "reduce", "gather"),
    *("scatter", "barrier", "send", "recv", "recv_anysource"),
)
_WAITS = ("wait", "synchronize", "block_current_stream")


class CapturedWorks:
    """Which recorded ops each Work of a captured rank stands for."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # Weak, because tensors live no longer than their Work: memory is counted.
        self._known: WeakKeyDictionary[Any, tuple[Front, list[torch.Tensor]]] = WeakKeyDictionary()
        self._polled: WeakSet[Any] = WeakSet()

    def patches(self) -> list[Patch]:
        """Return the patches of process groups and of their Works."""
        group: Any = dist.ProcessGroup
        calls: dict[str, Callable[..., Any]] = {
            n: self._remembering(getattr(group, n)) for n in _CALLS if hasattr(group, n)
        }
        calls |= {"_start_coalescing": self._start, "_end_coalescing": self._end}
        waits: dict[str, Callable[..., Any]] = dict.fromkeys(_WAITS, self._wait)
        works = {**waits, "get_future": self._future, "result": self._tensors}
        works |= dict.fromkeys(("is_completed", "is_success"), self._is_completed)
        return [
            *(mock.patch.object(group, name, _method(call)) for name, call in calls.items()),
            # NCCL's does: dist.batch_isend_irecv then starts and ends a batch.
            mock.patch.object(FakeProcessGroup, "supports_coalescing", new=True),
            *(mock.patch.object(FakeWork, name, _method(call)) for name, call in works.items()),
        ]

    def _remembering(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def remembered(group: Any, *args: Any, **kwargs: Any) -> Any:
            first = len(self._recorder.ops)
            work = call(group, *args, **kwargs)
            self._remember(work, first, tensors_in(args[:1]))
            return work

        return remembered

    def _remember(self, work: Any, first: int, tensors: list[torch.Tensor]) -> None:
        front: Front = {}
        for number in range(first, len(self._recorder.ops)):
            merge(front, {self._recorder.ops[number].stream: number})
        self._known[work] = front, tensors

    def _start(self, *_: Any) -> None:
        self._recorder.batch_from = len(self._recorder.ops)

    def _end(self, *_: Any) -> Any:
        work = FakeWork()
        self._remember(work, self._recorder.batch_from or 0, [])
        self._recorder.batch_from = None
        return work

    def _wait(self, work: Any, *_: Any, **_options: Any) -> bool:
        self._recorder.wait(self._known[work][0])
        return True

    def _is_completed(self, work: Any) -> bool:
        """Return False, then True: who asks again polls in a loop, which holds the host."""
        if work in self._polled:
            self._recorder.host_waits("work.is_completed", self._known[work][0])
            return True
        self._polled.add(work)
        return False

    def _tensors(self, work: Any) -> list[torch.Tensor]:
        return self._known[work][1]

    def _future(self, work: Any) -> torch.futures.Future[Any]:
        front, tensors = self._known[work]
        return _done(self._recorder, front, tensors)


def _method(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that a class binds to its instances, which bound methods are not."""

    def bound(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return bound


def _done(recorder: Recorder, front: Front, value: Any) -> torch.futures.Future[Any]:
    """Return a future that is done; what follows it runs on a stream of its own, as with NCCL."""

    class Done(torch.futures.Future):  # type: ignore[type-arg]
        def wait(self) -> Any:
            recorder.wait(front)
            return super().wait()

        def then(self, callback: Callable[[Any], Any]) -> Any:
            with recorder.streams.Stream() as stream:
                merge(stream.front, front)
                result = callback(self)
            return _done(recorder, dict(stream.front), result)

    future: Any = Done()
    future.set_result(value)
    return future  # type: ignore[no-any-return]


class NotSentError(WeftError):
    """A captured rank needs an object of a rank that has not been captured that far."""

    def __init__(self, rank: int, source: int, ranks: Sequence[int]) -> None:
        super().__init__(f"rank {rank} receives an object from rank {source}, which never sends it")
        self.ranks = tuple(ranks)


class ObjectExchange:
    """Python objects that captured ranks send each other: one rank is captured after another."""

    def __init__(self) -> None:
        self._sent: dict[tuple[object, ...], list[Any]] = {}

    @property
    def num_sent(self) -> int:
        """How many messages were sent so far."""
        return len(self._sent)

    def patches(self, rank: int) -> list[Patch]:
        """Return the patches of the object collectives for a rank that is captured now."""
        calls = _ObjectCalls(self._sent, rank)
        names = (
            *("send_object_list", "recv_object_list", "broadcast_object_list"),
            *("scatter_object_list", "all_gather_object", "gather_object"),
        )
        return [
            mock.patch.object(module, name, getattr(calls, name))
            for module in (dist, distributed_c10d)
            for name in names
        ]


class _ObjectCalls:
    """The object collectives of torch.distributed for one captured rank."""

    def __init__(self, sent: dict[tuple[object, ...], list[Any]], rank: int) -> None:
        self._sent, self._rank = sent, rank
        self._count: Counter[tuple[object, ...]] = Counter()

    def _key(self, *key: object) -> tuple[object, ...]:
        self._count[key] += 1
        return (*key, self._count[key])

    def _received(self, source: int, key: tuple[object, ...], group: Any) -> list[Any]:
        if key not in self._sent:
            raise NotSentError(self._rank, source, dist.get_process_group_ranks(group or _world()))
        return self._sent[key]

    def send_object_list(
        self, objects: list[Any], dst: int | None = None, group: Any = None, *_: Any, **more: Any
    ) -> None:
        """Keep objects for the rank that they are sent to."""
        target = _rank_of(dst, more.get("group_dst"), group)
        self._sent[self._key("message", self._rank, target)] = list(objects)

    def recv_object_list(
        self, objects: list[Any], src: int | None = None, group: Any = None, *_: Any, **more: Any
    ) -> int:
        """Return objects that another rank sent."""
        source = _rank_of(src, more.get("group_src"), group)
        key = self._key("message", source, self._rank)
        objects[:] = self._received(source, key, group)
        return source

    def broadcast_object_list(
        self, objects: list[Any], src: int | None = None, group: Any = None, *_: Any, **more: Any
    ) -> None:
        """Keep the objects of the root, or take them."""
        source = _rank_of(src, more.get("group_src"), group)
        key = self._key("broadcast", *dist.get_process_group_ranks(group or _world()))
        if source == self._rank:
            self._sent[key] = list(objects)
        else:
            objects[:] = self._received(source, key, group)

    def scatter_object_list(
        self,
        output: list[Any],
        given: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        **more: Any,
    ) -> None:
        """Keep the objects of the root, and take one's own."""
        source = _rank_of(src, more.get("group_src"), group)
        ranks = dist.get_process_group_ranks(group or _world())
        key = self._key("scatter", *ranks)
        if source == self._rank and given is not None:
            self._sent[key] = list(given)
        output[0] = self._received(source, key, group)[ranks.index(self._rank)]

    def all_gather_object(self, output: list[Any], given: Any, group: Any = None) -> None:
        """Return the own object for every rank: ranks are assumed to do the same."""
        output[:] = [given] * dist.get_world_size(group)

    def gather_object(
        self, given: Any, output: list[Any] | None = None, *_: Any, **_more: Any
    ) -> None:
        """Return the own object for every rank."""
        if output is not None:
            output[:] = [given] * len(output)


def _world() -> Any:
    return dist.group.WORLD


def _rank_of(rank: int | None, position: int | None, group: Any) -> int:
    if position is not None:
        return dist.get_global_rank(group or _world(), position)
    return rank or 0
