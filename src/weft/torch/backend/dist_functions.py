"""Functions of torch.distributed that serve repeated calls of weft groups from the dispatch cache.

``dist.all_reduce`` builds an options object and reads it again in the process group, which takes
more time than a small collective: 3.3 us above the native call, 1 us with these wrappers. So
``register`` wraps these functions; calls that the dispatch cache cannot serve, and those of other
groups, continue in torch's.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C import _has_torch_function_unary, _has_torch_function_variadic
from torch.distributed import _functional_collectives, distributed_c10d

from weft._core import DispatchCache
from weft.torch.backend.fast_path import TENSOR_READER, FastPathCollectives
from weft.torch.backend.reduce_ops import PLAIN_NAMES
from weft.torch.backend.store_rendezvous import store_barrier

Function = Callable[..., Any]
_state = distributed_c10d._world  # noqa: SLF001 - it has no public name


# Who is told of every collective (weft.torch.monitoring): it sees the methods of process groups, so
# no call is served before it gets there.
observers: list[Any] = []

_reader: Any = TENSOR_READER  # where there is none, functions that need it are not wrapped


def _cache_of(group: Any) -> DispatchCache | None:
    """Return the dispatch cache of a weft group, unless calls are coalesced or observed."""
    if observers:
        return None
    if group is None:
        group = _state.default_pg
    if not isinstance(group, FastPathCollectives) or _state.pg_coalesce_state:
        return None
    return group.dispatch_cache


def _all_reduce(original: Function) -> Function:
    @wraps(original)
    def all_reduce(
        tensor: Tensor,
        op: Any = dist.ReduceOp.SUM,
        group: Any = None,
        async_op: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> Any:
        passed = async_op or _has_torch_function_unary(tensor) or tensor.is_neg()
        name = None if passed else PLAIN_NAMES.get(op)
        if (
            name is not None
            and (cache := _cache_of(group)) is not None
            and cache.tensors(_reader, "all_reduce", None, tensor, name, -1)
        ):
            return None
        return original(tensor, op, group, async_op)

    return all_reduce


def _all_gather(original: Function) -> Function:
    @wraps(original)
    def all_gather_single(
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any = None,
        async_op: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> Any:
        if (
            not async_op
            and not _has_torch_function_variadic(output_tensor, input_tensor)
            and not (output_tensor.is_neg() or input_tensor.is_neg())
            and (cache := _cache_of(group)) is not None
            and cache.tensors(_reader, "all_gather", output_tensor, input_tensor, "", -1)
        ):
            return None
        return original(output_tensor, input_tensor, group, async_op)

    return all_gather_single


def _reduce_scatter(original: Function) -> Function:
    @wraps(original)
    def reduce_scatter_single(
        output: Tensor,
        input: Tensor,  # noqa: A002 - torch names it
        op: Any = dist.ReduceOp.SUM,
        group: Any = None,
        async_op: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> Any:
        passed = async_op or _has_torch_function_variadic(output, input)
        passed = passed or output.is_neg() or input.is_neg()
        name = None if passed else PLAIN_NAMES.get(op)
        if (
            name is not None
            and (cache := _cache_of(group)) is not None
            and cache.tensors(_reader, "reduce_scatter", output, input, name, -1)
        ):
            return None
        return original(output, input, op, group, async_op)

    return reduce_scatter_single


def _monitored_barrier(original: Function) -> Function:
    """Return a function that does not refuse weft groups: torch's wants a backend called gloo."""

    @wraps(original)
    def monitored_barrier(
        group: Any = None,
        timeout: timedelta | float | None = None,
        wait_all_ranks: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> Any:
        used = _state.default_pg if group is None else group
        if not isinstance(used, FastPathCollectives):
            return original(group, timeout, wait_all_ranks)
        if isinstance(timeout, float):
            timeout = timedelta(seconds=timeout)
        return used.monitored_barrier(timeout, wait_all_ranks)

    return monitored_barrier


def _store_based_barrier(original: Function) -> Function:
    """Return a barrier that ends: torch's asks the store without a deadline."""

    @wraps(original)
    def barrier(
        rank: int, store: Any, group_name: str, count: int, timeout: timedelta, *rest: Any
    ) -> None:
        if not any(isinstance(group, FastPathCollectives) for group in _state.pg_map):
            original(rank, store, group_name, count, timeout, *rest)
            return
        groups = {str(name): group for group, name in _state.pg_names.items()}
        local = count != dist.get_world_size()  # only the ranks of the group make it
        ranks = list(_state.pg_group_ranks[groups[group_name]]) if local else range(count)
        store_barrier(store, rank, ranks, group_name, timeout)

    return barrier


# By torch's name. Newer versions of torch call those with "single" from the older names.
_SINGLE = hasattr(distributed_c10d, "all_gather_single")
_WRAPPERS = {
    "all_reduce": _all_reduce,
    "all_gather_single" if _SINGLE else "all_gather_into_tensor": _all_gather,
    "reduce_scatter_single" if _SINGLE else "reduce_scatter_tensor": _reduce_scatter,
    "monitored_barrier": _monitored_barrier,
    "_store_based_barrier": _store_based_barrier,
}
_WITHOUT_READER = ("monitored_barrier", "_store_based_barrier")


def install_dist_functions() -> None:
    """Wrap torch's functions, once; Dynamo treats them as the originals."""
    remaps = _functional_collectives.traceable_collective_remaps
    for name, wrapper in _WRAPPERS.items():
        original = getattr(distributed_c10d, name, None)
        serves = TENSOR_READER is not None or name in _WITHOUT_READER
        if not serves or original is None or hasattr(original, "of_weft"):
            continue
        made: Any = wrapper(original)
        made.of_weft = True
        setattr(distributed_c10d, name, made)
        if hasattr(dist, name):
            setattr(dist, name, made)
        if original in remaps:
            remaps[made] = remaps[original]
