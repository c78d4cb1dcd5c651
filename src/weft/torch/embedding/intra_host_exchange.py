"""Fused lookup and exchange of an embedding inside a host, prepared for one batch size."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from weft._core import Pooling, PoolingTask
from weft.errors import RunError
from weft.fused import EmbeddingBatch, embedding_all_to_all, embedding_backward
from weft.fused.embedding_all_to_all import DELIVER, POOL
from weft.runtime import PreparedSchedule, World, prepare
from weft.runtime.work import Work
from weft.schedule import Slice
from weft.schedule.values import value_at
from weft.timeline import Timeline
from weft.torch.backend.c10d import ProcessGroup
from weft.torch.backend.fsdp_heap import HeapBuffers
from weft.torch.backend.group_functions import weft_group, world_of
from weft.torch.embedding.bag_inputs import RankLookups
from weft.torch.embedding.row_gradients import GradientTarget

_POLL_SECONDS = 0.05  # seconds between checks that the job still runs

Bind = list[tuple[int, int, int]]


class HeapTensors:
    """Allocates tensors in the heap of a group, which other ranks read and write."""

    def __init__(self, group: ProcessGroup | None) -> None:
        self.world = world_of(group)
        self._buffers = HeapBuffers(weft_group(group))

    def tensor(self, samples: int, width: int) -> Tensor:
        """Return an uninitialized tensor in shared memory."""
        found = self._buffers.tensor((samples, width), torch.float32)
        if found.numel() and not self.world.private_arena.is_shared(found.data_ptr()):
            raise RunError(
                f"out of shared memory: cannot allocate {found.nbytes} bytes of pooled rows.",
                "Make /dev/shm larger (in a container: --shm-size).",
            )
        return found


class IntraHostExchange:
    """Pools bags into the outputs of all ranks, and exchanges gradients in the backward pass."""

    def __init__(self, heap_tensors: HeapTensors, batch: EmbeddingBatch) -> None:
        self.batch = batch
        self._heap_tensors = heap_tensors
        self._world: World = heap_tensors.world
        self._forward = prepare(embedding_all_to_all(batch), self._world, bound=True)
        self._backward: PreparedSchedule | None = None
        self._here, self._returning = self._pooling(), self._pooling()
        for row, task in self._forward_tasks():
            self._here.set_task(row, *task)

    def set(self, lookups: RankLookups) -> None:
        """Set the next lookups."""
        self._here.set(lookups.memory, lookups.where, lookups.bags, lookups.mean)

    def run(self, call: str) -> Tensor:
        """Pool the bags that were set; return this rank's rows."""
        self._world.drain()
        out = self._out()
        self._forward.execute(_bound(out), call, self._here)
        return out

    def timeline(self, call: str) -> Timeline:
        """Pool the bags that were set; return the timeline of all ranks."""
        self._world.drain()
        self._forward.execute(_bound(self._out()), call, self._here, stamps=True)
        return self._forward.timeline()

    def stream(self, call: str) -> Iterator[tuple[int, Tensor]]:
        """Pool in the background; yield slices of this rank's rows as they complete."""
        self._world.drain()
        out = self._out()
        self._here.begin()
        job = self._forward.submit(_bound(out), call, self._here)
        work = Work(self._world, job, call, lambda _: call, (out, self._here))
        try:
            for number, (first, last) in enumerate(self.batch.slices_of(self._world.rank)):
                while not self._here.wait_delivered(number + 1, _POLL_SECONDS):
                    if work.is_done():
                        work.wait()
                yield first, out[first:last]
        finally:
            work.wait()  # also if the caller stops early: the other ranks need it

    def sort(self, lookups: RankLookups) -> list[int]:
        """Set the lookups of the next backward pass; return the number of rows of each shard."""
        self._returning.set(lookups.memory, lookups.where, lookups.bags, lookups.mean)
        return self._returning.sort()

    def send_gradients(self, gradients: Tensor, results: list[GradientTarget], call: str) -> None:
        """Exchange gradients and update the rows of this rank."""
        self._returning.set_results(results)
        self._world.drain()
        if self._backward is None:
            self._backward = prepare(embedding_backward(self.batch), self._world, bound=True)
            for row, _, slices in self._backward.kernel_rows():
                self._returning.set_task(row, PoolingTask.UPDATE, 0, 0, 0, _offsets(slices))
            self._returning.set_samples([*map(self.batch.count, range(self._world.num_ranks))])
        staged = self._heap_tensors.tensor(*gradients.shape)
        staged.copy_(gradients)
        self._backward.execute(_bound(staged), call, self._returning)

    def close(self) -> None:
        """Release its memory. Collective."""
        self._forward.close()
        if self._backward is not None:
            self._backward.close()

    def _pooling(self) -> Pooling:
        sharding = self.batch.sharding
        pooling = Pooling(sharding.width, sharding.joined_width)
        joined, start = [], 0
        for table in sharding.joined:
            dim = sharding.tables[table].dim
            joined.append((start, sharding.starts[table], dim))
            start += dim
        pooling.set_joined(joined)
        return pooling

    def _out(self) -> Tensor:
        return self._heap_tensors.tensor(
            self.batch.count(self._world.rank), self.batch.sharding.width
        )

    def _forward_tasks(self) -> Iterator[tuple[int, tuple[int, int, int, int, Sequence[int]]]]:
        """Yield the task of each kernel of this rank, in the order of the schedule."""
        me, number_of = self._world.rank, self._world.num_ranks
        slices = range(self.batch.slices)
        peers = ((me + step) % number_of for step in range(1, number_of + 1))
        pools = ((peer, number) for peer in peers for number in slices)
        delivers = ((me, number) for number in slices)
        for row, op, touched in self._forward.kernel_rows():
            kind, whose = {
                POOL: (PoolingTask.POOL, pools),
                DELIVER: (PoolingTask.DELIVER, delivers),
            }[op]
            peer, number = next(whose)
            first, last = self.batch.slices_of(peer)[number]
            start = self.batch.of(peer)[0]
            offsets = _offsets([each for each in touched if each.buffer == "out"])
            yield row, (kind, start + first, start + last, first, offsets)


def _offsets(slices: Sequence[Slice]) -> list[int]:
    return [int(value_at(each.offset, 0)) for each in slices]


def _bound(tensor: Tensor) -> Bind:
    return [(0, tensor.data_ptr(), tensor.nbytes)]
