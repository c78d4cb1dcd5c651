"""The cost of torch ops: family, shape and traffic, from their arguments.

The families and their shapes are those of ``weft.cost``; an op that no family knows is named and
counts as the bytes it reads and writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from weft.schedule.ir import Cost
from weft.torch.capture.op_shapes import SHAPED, Tensors

SHORT = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
    torch.float8_e4m3fnuz: "fp8",
    torch.float8_e5m2fnuz: "fp8",
}
UNKNOWN = "other"  # the family of ops that no model knows


def dtype_name(dtype: torch.dtype) -> str:
    """Return the catalogue's name of a dtype: bf16, fp32, int64."""
    return SHORT.get(dtype) or str(dtype).removeprefix("torch.")


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """Yield the tensors among arguments or results, also in lists; sparse ones have no bytes.

    The number of rows of a sparse gradient is unknown before it is computed.
    """
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.layout == torch.strided:
                found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found


def nbytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Add up what tensors take; one that is expanded is read once."""
    return sum(_stored(tensor) for tensor in tensors)


def _stored(tensor: torch.Tensor) -> int:
    shown = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in shown if stride) * tensor.element_size()


def cost_of(
    func: Any,
    args: Sequence[Any],
    inputs: Tensors,
    outputs: Tensors,
    changed: Tensors = (),
    *,
    as_gpu: bool = True,
) -> Cost:
    """Return what one op costs that changes some of its inputs; only a GPU multiplies as tf32."""
    dtype, name = _dtype(inputs, outputs), op_name(func)
    nbytes = _traffic(func, args, inputs, outputs, changed)
    shaped = SHAPED.get(name)
    if shaped is not None:
        family, shape, flops = shaped(args, outputs)
        if family in _MULTIPLIES:  # by units for what is multiplied, whatever comes out
            first = args[_OPERAND.get(name, 0)].dtype
            dtype = _math_dtype(first, family) if as_gpu else dtype_name(first)
        return Cost(family, shape, dtype, flops, nbytes)
    family = _family(func, name)
    locates = torch.Tag.pointwise in func.tags or family == "copy"
    if as_gpu and locates and _is_strided([*inputs, *outputs]):
        elements = max(each.numel() for each in (*inputs, *outputs))
        return Cost("strided", (elements,), dtype, 0.0, nbytes)
    return Cost(family, (), dtype, 0.0, nbytes)


def _is_strided(tensors: Tensors) -> bool:
    """Return whether a kernel has to compute where elements lie: tensors permuted or broadcast.

    Torch vectorizes a kernel whose tensors all have the same dense layout; scalars do not count.
    """
    several = [each for each in tensors if each.numel() > 1]
    layouts = {(each.shape, each.stride()) for each in several}
    return len(layouts) > 1 or not all(_span(each) == each.numel() for each in several)


def _span(tensor: torch.Tensor) -> int:
    """Return how many elements lie between the first and the last of a tensor, both included."""
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((int(size) - 1) * int(stride) for size, stride in sides)


_MULTIPLIES = ("gemm", "bmm", "convolution")
# The place of the first operand, where it is not the first argument.
_OPERAND = {"addmm": 1, "baddbmm": 1, "_addmm_activation": 1}


def _traffic(
    func: Any, args: Sequence[Any], inputs: Tensors, outputs: Tensors, changed: Tensors
) -> int:
    """Add up what is read and written; what is changed in place is both, unless it is overwritten.

    Rows that a sparse gradient changes count with the lookups whose gradient it is, not as a table.
    """
    name = op_name(func)
    if any(isinstance(each, torch.Tensor) and each.is_sparse for each in args):
        return 0
    if name == "all_gather_copy_in":  # the shard alone goes into its place in the result
        return 2 * nbytes_of(tensors_in([args[0]]))
    if name in _PICKS:  # of the first tensor no more is read than comes out
        rest = nbytes_of(inputs[1:]) if name not in _SCATTERS else 0
        return 2 * nbytes_of(outputs) + rest
    if name in _PUTS:
        return _put(name, args, inputs)
    if name.startswith("_fused_"):  # gradients change only where they are scaled back
        gradients = set(map(id, args[1]))
        changed = [each for each in changed if id(each) not in gradients]
    read = _distinct(inputs)
    if name in _OVERWRITES or func._schema.overload_name.endswith("out"):  # noqa: SLF001
        overwritten = {id(tensor) for tensor in changed}
        read = [tensor for tensor in read if id(tensor) not in overwritten]
    return nbytes_of(read) + nbytes_of(_distinct([*outputs, *changed]))


_SCATTERS = frozenset(("nll_loss_backward", "embedding_dense_backward"))
_PICKS = _SCATTERS | {"gather", "index", "index_select", "embedding", "nll_loss_forward"}
# Ops in place that overwrite without reading.
_OVERWRITES = frozenset(
    (
        *("copy_", "zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "geometric_"),
        *("exponential_", "log_normal_", "cauchy_", "_foreach_copy_", "_foreach_zero_"),
    )
)
# Ops in place that change some elements, and whether they add to the old values.
_PUTS = {
    "index_copy_": False,
    "index_fill_": False,
    "index_add_": True,
    "index_reduce_": True,
    "index_put_": False,
    "_index_put_impl_": False,
    "put_": False,
    "scatter_": False,
    "scatter_add_": True,
    "scatter_reduce_": True,
}


def _put(name: str, args: Sequence[Any], inputs: Tensors) -> int:
    """Return what it moves to change the elements of a tensor that indices name."""
    changed, given = inputs[0], nbytes_of(_distinct(inputs[1:]))
    accumulates = _PUTS[name]
    if name.startswith("scatter_"):
        touched, moved = args[2].numel(), args[2].numel()
        accumulates = accumulates or any(isinstance(each, str) for each in args)
        source = nbytes_of(inputs[2:3])  # of a source that is larger, no more than is indexed
        given -= max(0, source - moved * changed.element_size())
    elif name in ("index_put_", "_index_put_impl_"):
        touched = max(args[2].numel(), _indexed(changed, args[1]))
        accumulates = True in args[3:4]
    elif name == "put_":
        touched, accumulates = args[1].numel(), True in args[3:4]
    else:
        rows = max(1, int(changed.shape[args[1]])) if changed.dim() else 1
        touched = changed.numel() // rows * args[2].numel()
    return given + (2 if accumulates else 1) * int(touched) * changed.element_size()


def _indexed(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> int:
    """Return how many elements ``tensor[indices]`` has at the most."""
    masks = [each for each in indices if each is not None and each.dtype == torch.bool]
    places = [each for each in indices if each is not None and each.dtype != torch.bool]
    picked = max((each.numel() for each in masks), default=1)
    if places:
        shapes = (each.shape for each in places)
        picked = math.prod(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    rest, dim = 1, 0
    for each in indices:
        taken = each.dim() if each is not None and each.dtype == torch.bool else 1
        if each is None:
            rest *= int(tensor.shape[dim])
        dim += taken
    return picked * rest * math.prod(int(size) for size in tensor.shape[dim:])


def _distinct(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return distinct tensors: one that is passed twice is read once."""
    found: dict[tuple[Any, ...], torch.Tensor] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()._cdata  # noqa: SLF001 - its address
        found[storage, tensor.storage_offset(), tensor.shape, tensor.stride()] = tensor
    return list(found.values())


def changed_by(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> list[Any]:
    """Return the arguments that an op writes to, as its schema says."""
    found = []
    for place, name in _written_places(func):
        if place < len(args):
            found.append(args[place])
        elif kwargs and name in kwargs:
            found.append(kwargs[name])
    return found


@lru_cache(maxsize=4096)
def _written_places(func: Any) -> tuple[tuple[int, str], ...]:
    """Return the places and names of the arguments that an op writes to."""
    arguments = enumerate(func._schema.arguments)  # noqa: SLF001 - torch shows no other way
    return tuple((n, a.name) for n, a in arguments if a.alias_info and a.alias_info.is_write)


@lru_cache(maxsize=4096)
def op_name(func: Any) -> str:
    """Return the name of an op without its overload: ``aten::add.Tensor`` is ``add``."""
    return str(func._schema.name).partition("::")[2]  # noqa: SLF001 - torch shows no other way


def _dtype(inputs: Tensors, outputs: Tensors) -> str:
    for tensor in (*outputs, *inputs):
        if tensor.dtype.is_floating_point:
            return dtype_name(tensor.dtype)
    return dtype_name((*outputs, *inputs)[0].dtype) if outputs or inputs else ""


def _math_dtype(dtype: torch.dtype, family: str) -> str:
    """Return what a product of a dtype is computed in: fp32 may be multiplied as tf32."""
    if dtype != torch.float32:
        return dtype_name(dtype)
    backends: Any = torch.backends
    own = backends.cudnn.conv if family == "convolution" else backends.cuda.matmul
    if not hasattr(backends, "fp32_precision"):  # before torch 2.9
        own = backends.cudnn if family == "convolution" else own
        return "tf32" if own.allow_tf32 else "fp32"
    chosen = own.fp32_precision if own.fp32_precision != "none" else backends.fp32_precision
    return "tf32" if chosen == "tf32" else "fp32"


@lru_cache(maxsize=4096)
def _family(func: Any, name: str) -> str:
    if torch.Tag.pointwise in func.tags or name in _POINTWISE or name.rstrip("_") in _POINTWISE:
        return "elementwise"
    if name.startswith(("_foreach_", "_fused_", "_amp_")):
        return "optimizer"
    if torch.Tag.reduction in func.tags or name in _REDUCTIONS:
        return "reduction"
    if name in _COPIES:
        return "copy"
    return "concat" if name in _CONCATS else UNKNOWN


_POINTWISE = frozenset(
    (
        *("fill", "zero", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like"),
        *("arange", "roll", "flip", "put", "where", "triu", "tril", "tril_indices"),
        *("new_zeros", "new_ones", "new_full", "scalar_tensor", "linspace", "eye", "one_hot"),
        *("native_dropout", "native_dropout_backward", "bernoulli", "normal", "uniform", "rand"),
        *("randn", "randint", "rand_like", "randn_like", "random", "exponential"),
        *("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"),
        *("mse_loss", "mse_loss_backward", "binary_cross_entropy", "binary_cross_entropy_backward"),
        *("binary_cross_entropy_with_logits", "smooth_l1_loss", "smooth_l1_loss_backward"),
        *("gather", "scatter", "scatter_add", "index", "index_put", "index_select", "index_add"),
        *("_index_put_impl", "index_copy", "index_fill", "index_reduce", "scatter_reduce"),
        "masked_fill",
        *("select_backward", "slice_backward", "slice_scatter", "select_scatter", "repeat"),
        *("constant_pad_nd", "embedding_dense_backward", "_embedding_bag_dense_backward"),
        *("max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d"),
        *("_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "upsample_nearest2d"),
        *("gelu_backward", "silu_backward", "threshold_backward", "_unsafe_index"),
        *("_scaled_dot_product_attention_math", "isnan", "isfinite", "polar", "complex"),
        *("__or__", "__and__", "__xor__", "__ior__", "__iand__", "__lshift__", "__rshift__"),
        *("floor_divide", "log_sigmoid", "log_sigmoid_forward", "log_sigmoid_backward"),
    )
)
_REDUCTIONS = frozenset(
    (
        *("sum", "mean", "amax", "amin", "max", "min", "prod", "var", "std", "var_mean", "any"),
        *("all", "argmax", "argmin", "norm", "linalg_vector_norm", "cumsum", "cumprod"),
        "logsumexp",
        *("_foreach_norm", "count_nonzero", "topk", "sort", "histc", "bincount", "logcumsumexp"),
    )
)
_COPIES = frozenset(("_to_copy", "copy_", "copy", "clone", "contiguous", "_copy_from", "lift"))
_CONCATS = frozenset(
    (
        *("cat", "stack", "chunk_cat", "_chunk_cat", "split_with_sizes_copy"),
        *("all_gather_copy_in", "unbind_copy"),
    )
)
