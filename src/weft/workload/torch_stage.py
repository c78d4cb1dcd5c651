"""The stage on which a step is captured: fake tensors, a fake process group, no GPU."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from weft.errors import UsageError
from weft.workload.torch_gpu import AsOnCpu, gpu_patches
from weft.workload.torch_works import ObjectExchange, Works
from weft.workload.torch_wrappers import wrapper_patches

if TYPE_CHECKING:
    from weft.workload.torch_recorder import Recorder

# They print what a CaptureError says in one line.
_LOUD = ("torch._subclasses.fake_tensor", "torch.distributed.pipelining.schedules")


@contextlib.contextmanager
def stage(
    recorder: Recorder, rank: int, world_size: int, objects: ObjectExchange, *, as_gpu: bool = True
) -> Iterator[None]:
    """Run everything inside on fake tensors, as ``rank`` of ``world_size``."""
    if dist.is_initialized():
        raise UsageError(
            "capture: a process group is initialized already; capture makes its own",
            "Call dist.destroy_process_group() first, or leave the group to the capture.",
        )
    fake = FakeTensorMode()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    collecting = gc.isenabled()
    gc.disable()  # graphs of autograd are large and no garbage: looking through them takes half
    try:
        with contextlib.ExitStack() as stack:
            for name in _LOUD:
                stack.enter_context(mock.patch.object(logging.getLogger(name), "disabled", True))
            for patch in (
                mock.patch.object(dist, "init_process_group", _initialized),
                *Works(recorder).patches(),
                *objects.patches(rank),
                *wrapper_patches(recorder, as_gpu=as_gpu),
                fake,
                *(gpu_patches(recorder.streams, rank, world_size) if as_gpu else (AsOnCpu(),)),
            ):
                stack.enter_context(patch)
            yield
    finally:
        if collecting:
            gc.enable()
        dist.destroy_process_group()


def _initialized(*_args: Any, **_kwargs: Any) -> None:
    """Return: the process group of the capture is there already."""
