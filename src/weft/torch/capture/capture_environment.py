"""The environment of a capture: fake tensors, a fake process group, no GPU."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from weft.errors import UsageError
from weft.torch.capture.captured_works import CapturedWorks, ObjectExchange
from weft.torch.capture.emulated_gpu import DEVICES_PER_HOST, AsOnCpu, gpu_patches
from weft.torch.capture.parallel_wrappers import forget_meshes, wrapper_patches

if TYPE_CHECKING:
    from weft.torch.capture.recorder import Recorder

# They print what a CaptureError says in one line.
_NOISY_LOGGERS = ("torch._subclasses.fake_tensor", "torch.distributed.pipelining.schedules")


# The one rank of a capture would wait for the others in the barrier that a user may have asked for.
_NO_BARRIER = {"TORCH_DIST_INIT_BARRIER": "0"}


class _FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """A mode that copies of fake tensors share: copy.deepcopy of a model copies tensors only."""

    def __deepcopy__(self, _memo: Any) -> _FakeMode:
        return self


@contextlib.contextmanager
def fake_environment(
    recorder: Recorder, rank: int, world_size: int, objects: ObjectExchange, *, as_gpu: bool = True
) -> Iterator[None]:
    """Run everything inside on fake tensors, as ``rank`` of ``world_size``."""
    if dist.is_initialized():
        raise UsageError(
            "capture: a process group is initialized already; capture makes its own",
            "Call dist.destroy_process_group() first, or leave the group to the capture.",
        )
    forget_meshes()  # those of a rank that was captured before
    fake, hook = _FakeMode(), sys.excepthook
    with mock.patch.dict(os.environ, _NO_BARRIER):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    calls = {
        **dict.fromkeys(("init_process_group", "destroy_process_group"), _nothing),
        "new_group": _new_group,
        "monitored_barrier": _monitored_barrier,
    }
    collecting = gc.isenabled()
    gc.disable()  # graphs of autograd are large and no garbage: looking through them takes half
    try:
        with contextlib.ExitStack() as stack:
            for name in _NOISY_LOGGERS:
                stack.enter_context(mock.patch.object(logging.getLogger(name), "disabled", True))
            patches = (
                mock.patch.dict(os.environ, _launched(rank, world_size)),
                *(
                    mock.patch.object(module, name, new)
                    for module in (dist, distributed_c10d)
                    for name, new in calls.items()
                ),
                mock.patch.object(sys, "argv", sys.argv[:1]),  # they are weft's arguments
                *CapturedWorks(recorder).patches(),
                *objects.patches(rank),
                *wrapper_patches(recorder, as_gpu=as_gpu),
                fake,
                *(gpu_patches(recorder.streams, rank, world_size) if as_gpu else (AsOnCpu(),)),
            )
            for patch in patches:
                stack.enter_context(patch)
            stack.enter_context(_rebound(patches))
            yield
    finally:
        if collecting:
            gc.enable()
        dist.destroy_process_group()
        sys.excepthook = hook  # init_process_group made one that names the rank


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Return: the process group of the capture is there before the step, and after it."""


_group: Any = dist.new_group


def _new_group(
    ranks: Any = None, timeout: Any = None, _backend: Any = None, *_: Any, **more: Any
) -> Any:
    """Make a group of the capture's backend, whatever it is asked for."""
    named = {key: more[key] for key in ("group_desc", "use_local_synchronization") if key in more}
    return _group(ranks, timeout, **named)


def _monitored_barrier(group: Any = None, *_: Any, **_more: Any) -> None:
    dist.barrier(group)


def _launched(rank: int, world_size: int) -> dict[str, str]:
    """Return the environment that torchrun gives a rank."""
    local = min(world_size, DEVICES_PER_HOST)
    values = {
        "RANK": rank,
        "LOCAL_RANK": rank % local,
        "GROUP_RANK": rank // local,
        "ROLE_RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": local,
        "GROUP_WORLD_SIZE": -(-world_size // local),
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29500,
        **_NO_BARRIER,
    }
    return {name: str(value) for name, value in values.items()}


@contextlib.contextmanager
def _rebound(patches: tuple[Any, ...]) -> Iterator[None]:
    """Patch names that modules imported from torch, such as ``from torch.cuda import Stream``.

    Modules that are imported inside get torch's own back at the end.
    """
    there: dict[int, dict[str, Any]] = {}
    back: dict[int, dict[str, Any]] = {}
    for each in patches:
        original, new = getattr(each, "temp_original", None), getattr(each, "new", None)
        ours = (getattr(new, "__module__", None) or "").startswith("weft.")
        if callable(original) and isinstance(each.target, ModuleType) and ours:
            there.setdefault(id(original), {})[each.attribute] = new
            back.setdefault(id(new), {})[each.attribute] = original
    _rebind(there, skip=("torch", "weft"))
    try:
        yield
    finally:
        _rebind(back, skip=("weft",))


def _rebind(new_by_old: Mapping[int, Mapping[str, Any]], skip: tuple[str, ...]) -> None:
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] in skip or not isinstance(module, ModuleType):
            continue
        for name, value in list(vars(module).items()):
            if (found := new_by_old.get(id(value))) is not None:
                setattr(module, name, found.get(name) or next(iter(found.values())))
