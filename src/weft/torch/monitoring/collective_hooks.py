"""Hooks before and after every collective of a process, no matter what issues it.

Collectives of C++ process groups (NCCL, Gloo) pass the dispatcher as ops of ``c10d``, whether
``torch.distributed``, DDP's reducer or functional collectives issue them. A kernel for the key
BackendSelect, which no collective has, calls the observer and redispatches to the kernel of the
device. Redispatching releases the GIL, which Gloo's threads may need. Groups written in Python
(``weft``) do not pass the dispatcher: their methods are wrapped. Hooks are installed once per
process and stay; without an observer they only call on.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Protocol

import torch
import torch.distributed as dist

from weft.torch.backend.dist_functions import observers
from weft.torch.backend.process_group import WeftProcessGroup
from weft.torch.c10d_collectives import COLLECTIVES, C10dCollective

_KEY = "BackendSelect"
_BARRIER = C10dCollective("barrier", "barrier", "barrier", -1)


class CollectiveObserver(Protocol):
    """What is told of collectives. Its methods must not raise."""

    def started(self, kind: str, nbytes: int, group: Any, *, on_gpu: bool) -> Any:
        """Return a token of a collective that is about to be issued; None to ignore it."""

    def issued(self, token: Any, work: Any) -> None:
        """Take note that it was issued; ``work`` tells when it ends, None if it has ended."""


_observers: list[CollectiveObserver] = observers
_library: list[Any] = []  # keeps the replaced kernels alive


def observe(observer: CollectiveObserver) -> None:
    """Call an observer for every collective from now on."""
    if not _library:
        _install()
    _observers.append(observer)


def unobserve(observer: CollectiveObserver) -> None:
    """Do not call an observer any more."""
    if observer in _observers:
        _observers.remove(observer)


def _install() -> None:
    library: Any = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    _library.append(library)
    for collective in (*COLLECTIVES, _BARRIER):
        _add_kernel(library, collective)
    for collective in COLLECTIVES:
        for name in (collective.method, collective.older_method):
            if name and hasattr(WeftProcessGroup, name):
                method = getattr(WeftProcessGroup, name)
                setattr(WeftProcessGroup, name, _wrapped(method, collective))


def _add_kernel(library: Any, collective: C10dCollective) -> None:
    packet = getattr(torch.ops.c10d, collective.op, None)
    if packet is None:
        return
    op = packet.default
    kinds = [str(argument.type) for argument in op._schema.arguments]  # noqa: SLF001
    group_at = next(n for n, kind in enumerate(kinds) if kind.endswith("ProcessGroup"))
    whole, own = collective.whole, getattr(torch._C.DispatchKey, _KEY)  # noqa: SLF001
    unbox_group, unbox_work = dist.ProcessGroup.unbox, dist.Work.unbox

    def observed(keys: Any, *args: Any) -> Any:
        below = keys.remove(own)
        if not _observers:
            return op.redispatch(below, *args)
        group = unbox_group(args[group_at])
        nbytes = num_bytes(args[whole]) if whole >= 0 else 0
        on_gpu = is_on_gpu(args[max(whole, 0)])
        tokens = [
            each.started(collective.kind, nbytes, group, on_gpu=on_gpu) for each in _observers
        ]
        out = op.redispatch(below, *args)
        work = unbox_work(out[-1] if isinstance(out, tuple) else out)
        for observer, token in zip(_observers, tokens, strict=False):
            if token is not None:
                observer.issued(token, work)
        return out

    library.impl(collective.op, observed, _KEY, with_keyset=True)


def _wrapped(method: Callable[..., Any], collective: C10dCollective) -> Callable[..., Any]:
    whole = collective.whole

    @wraps(method)
    def observed(self: Any, *args: Any, **more: Any) -> Any:
        if not _observers:
            return method(self, *args, **more)
        nbytes = num_bytes(args[whole]) if whole < len(args) else 0
        tokens = [each.started(collective.kind, nbytes, self, on_gpu=False) for each in _observers]
        work = method(self, *args, **more)
        done = work is None or work.is_completed()
        for observer, token in zip(_observers, tokens, strict=False):
            if token is not None:
                observer.issued(token, None if done else work)
        return work

    return observed


def num_bytes(value: Any) -> int:
    """Return the bytes of a tensor, or of all tensors in nested lists."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(num_bytes, value)) if isinstance(value, Iterable) else 0


def is_on_gpu(value: Any) -> bool:
    """Return whether the first tensor in nested lists is on a CUDA device."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, torch.Tensor) and value.is_cuda
