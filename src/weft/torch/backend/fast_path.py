"""The fast path of repeated calls on contiguous CPU tensors: one call of the native core."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft._core import TensorReader
from weft.collectives.parts import ITEM_BYTES
from weft.torch.backend.c10d import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    REDUCE_SCATTER,
    Work,
)
from weft.torch.backend.c10d_work import COMPLETED
from weft.torch.backend.channel import DTYPE_NAMES
from weft.torch.backend.contiguity import is_dense_contiguous
from weft.torch.backend.movement_collectives import MovementCollectives
from weft.torch.backend.reduce_ops import reduce_op_name
from weft.torch.backend.reduction_collectives import ReductionCollectives


class FastPathCollectives(MovementCollectives, ReductionCollectives):
    """Serves calls from the dispatch cache; others, and asynchronous ones, use the base classes.

    torch also declares older signatures of some calls, which it does not use any more.
    """

    def broadcast(self, tensors: list[Tensor], opts: Any = BROADCAST) -> Work:  # type: ignore[override]
        """Broadcast the root's tensor."""
        if not opts.asyncOp and self._in_place("broadcast", tensors, "", opts.rootRank):
            return COMPLETED
        work: Work = super().broadcast(tensors, opts)
        return work

    def allreduce(self, tensors: list[Tensor], opts: Any = ALL_REDUCE) -> Work:  # type: ignore[override]
        """Reduce in place, on every rank."""
        if not opts.asyncOp and self._in_place(
            "all_reduce", tensors, reduce_op_name(opts.reduceOp), -1
        ):
            return COMPLETED
        work: Work = super().allreduce(tensors, opts)
        return work

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = ALL_GATHER) -> Work:  # noqa: A002
        """All-gather into one tensor."""
        if not opts.asyncOp and self._from_to("all_gather", output, input, ""):
            return COMPLETED
        work: Work = super().all_gather_single(output, input, opts)
        return work

    _allgather_base = all_gather_single

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002 - torch names it
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = ALL_TO_ALL,
    ) -> Work:
        """Send each rank some rows; without splits all get the same number."""
        if not (opts.asyncOp or output_splits or input_splits) and self._from_to(
            "all_to_all", output, input, "", self._size
        ):
            return COMPLETED
        work: Work = super().all_to_all_single(output, input, output_splits, input_splits, opts)
        return work

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002 - torch names it
        opts: Any = REDUCE_SCATTER,
    ) -> Work:
        """Reduce-scatter a tensor."""
        if not opts.asyncOp and self._from_to(
            "reduce_scatter", output, input, reduce_op_name(opts.reduceOp)
        ):
            return COMPLETED
        work: Work = super().reduce_scatter_single(output, input, opts)
        return work

    _reduce_scatter_base = reduce_scatter_single

    def _in_place(self, kind: str, tensors: list[Tensor], op: str, root: int) -> bool:
        if self.dispatch_cache is None or len(tensors) != 1:
            return False
        x = tensors[0]
        # is_neg: the memory of a lazily negated view is not its values; the slow path resolves it.
        if TENSOR_READER is not None:
            return not x.is_neg() and self.dispatch_cache.tensors(
                TENSOR_READER, kind, None, x, op, root
            )
        return (
            x.is_cpu
            and x.layout is torch.strided
            and is_dense_contiguous(x)
            and self.dispatch_cache.memory(
                kind, 0, 0, x.data_ptr(), x.nbytes, DTYPE_NAMES[x.dtype], op, root
            )
        )

    def _from_to(self, kind: str, out: Tensor, x: Tensor, op: str, parts: int = 1) -> bool:
        """Return whether the dispatch cache served a call; output rows are split in ``parts``."""
        if self.dispatch_cache is None:
            return False
        if TENSOR_READER is not None:
            turned = x.is_neg() or out.is_neg()
            return not turned and self.dispatch_cache.tensors(
                TENSOR_READER, kind, out, x, op, -1, parts
            )
        alike = (
            x.dtype is out.dtype
            and x.is_cpu
            and out.is_cpu
            and is_dense_contiguous(x)
            and is_dense_contiguous(out)
        )
        if not alike or (out.dim() and out.shape[0] % parts):
            return False
        return self.dispatch_cache.memory(
            kind, out.data_ptr(), out.nbytes, x.data_ptr(), x.nbytes, DTYPE_NAMES[x.dtype], op, -1
        )


def _tensor_reader() -> TensorReader | None:
    """Return a reader of tensors for the native core, if this torch has its C API (from 2.10).

    It cannot see whether a complex tensor is lazily conjugated, so complex tensors use the slow
    path; torch passes most of them on as pairs of real numbers.
    """
    examples = [
        (torch.empty(0, dtype=dtype), name)
        for dtype, name in DTYPE_NAMES.items()
        if name in ITEM_BYTES and not dtype.is_complex
    ]
    try:
        return TensorReader(Tensor, examples)
    except ValueError:
        return None


TENSOR_READER = _tensor_reader()
