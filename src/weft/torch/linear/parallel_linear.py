"""Linear layers over the ranks of a group, fused with their collectives."""

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from weft.errors import UsageError
from weft.torch.backend.c10d import ProcessGroup
from weft.torch.linear.device_matmul import DeviceMatmul, device_matmul
from weft.torch.linear.fused_matmul import FusedMatmul
from weft.torch.linear.fusion_autotune import Fuse

if TYPE_CHECKING:
    from weft.fused.torch_symmetric_tensors import SymmetricMemory

Matmul = FusedMatmul | DeviceMatmul


class ParallelLinear(nn.Module):
    """A linear layer of which every rank of a weft group holds a part.

    ``in_features`` and ``out_features`` are those of the whole layer; ``weight`` is this rank's
    part. ``fuse="auto"`` measures in the first calls of a shape whether the fused or the unfused
    execution is faster, and uses that one from then on; ``reasons`` states the choice. With
    ``device="cuda"`` the weight lies on a GPU and kernels store into symmetric memory (``memory``,
    by default torch's).
    """

    cut: ClassVar[int]  # the dimension of the weight that is split over ranks
    bias_is_cut: ClassVar[bool]

    def __init__(  # noqa: PLR0913 - keywords, as those of nn.Linear
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        dtype: torch.dtype | None = None,
        fuse: Fuse = "auto",
        slices: int | None = None,
        group: ProcessGroup | None = None,
        device: torch.device | str | None = None,
        memory: "SymmetricMemory | None" = None,
    ) -> None:
        super().__init__()
        on_device = device_matmul(device, memory, group)
        self._matmul = on_device or FusedMatmul(group, fuse, slices)
        self.in_features, self.out_features = in_features, out_features
        whole = nn.Linear(in_features, out_features, bias=bias, dtype=dtype, device=device)
        self._cut_from(whole)

    @classmethod
    def of(
        cls,
        layer: nn.Linear,
        *,
        fuse: Fuse = "auto",
        slices: int | None = None,
        group: ProcessGroup | None = None,
    ) -> Any:
        """Create one from a whole layer, the same on every rank; each keeps its part."""
        made = cls(
            layer.in_features,
            layer.out_features,
            bias=layer.bias is not None,
            dtype=layer.weight.dtype,
            fuse=fuse,
            slices=slices,
            group=group,
        )
        made._cut_from(layer)
        return made

    @property
    def reasons(self) -> dict[str, str]:
        """Whether each shape runs fused or unfused, and why."""
        return self._matmul.autotuner.reasons

    def extra_repr(self) -> str:
        """Return what this rank holds."""
        held = tuple(self.weight.shape)
        ranks = f"rank {self._matmul.rank} of {self._matmul.num_ranks}"
        return f"{self.in_features} to {self.out_features}, {ranks} holds {held}"

    def _cut_from(self, layer: nn.Linear) -> None:
        parts, rank = self._matmul.num_ranks, self._matmul.rank
        size = layer.weight.shape[self.cut]
        if size % parts:
            what = ("out_features", "in_features")[self.cut]
            raise UsageError(
                f"{what}: {size} is not divisible by {parts} ranks.",
                f"Use a multiple of {parts}.",
            )
        with torch.no_grad():
            self.weight = nn.Parameter(layer.weight.chunk(parts, self.cut)[rank].clone())
            bias: Tensor | None = layer.bias
            self.bias: nn.Parameter | None = None
            if bias is not None:
                mine = bias.chunk(parts)[rank] if self.bias_is_cut else bias
                self.bias = nn.Parameter(mine.clone())

    def _flat(self, x: Tensor, features: int, *, shared_rows: bool = False) -> Tensor:
        """Return the input as rows; raise if its shape is wrong."""
        name, parts = type(self).__name__, self._matmul.num_ranks
        if x.dim() < 2 or x.shape[-1] != features or x.dtype is not self.weight.dtype:
            raise UsageError(
                f"{name}: expected an input of (.., {features}) of {self.weight.dtype} (got "
                f"{tuple(x.shape)} of {x.dtype}).",
            )
        if shared_rows and x.shape[0] % parts:
            raise UsageError(
                f"{name}: {x.shape[0]} rows are not divisible by {parts} ranks.",
                f"Pad the input to a multiple of {parts}.",
            )
        return x.reshape(-1, features)


class LinearReduceScatter(ParallelLinear):
    """A row-parallel linear layer, then a reduce-scatter of the rows of its output.

    Maps (rows, in_features / ranks) to (rows / ranks, out_features). Further dimensions may stand
    between the two.
    """

    cut, bias_is_cut = 1, False

    def forward(self, x: Tensor) -> Tensor:
        """Multiply, and sum the ranks' products of this rank's rows."""
        rows = self._flat(x, self.weight.shape[1], shared_rows=True)
        y: Tensor = _Scatter.apply(self._matmul, rows, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return y.view(x.shape[0] // self._matmul.num_ranks, *x.shape[1:-1], y.shape[1])


class AllGatherLinear(ParallelLinear):
    """An all-gather of rows, then a column-parallel linear layer.

    Maps (rows / ranks, in_features) to (rows, out_features / ranks). Every rank passes the same
    number of rows.
    """

    cut, bias_is_cut = 0, True

    def forward(self, x: Tensor) -> Tensor:
        """Gather rows, and multiply them as they arrive."""
        rows = self._flat(x, self.weight.shape[1])
        y: Tensor = _Gather.apply(self._matmul, rows, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return y.view(x.shape[0] * self._matmul.num_ranks, *x.shape[1:-1], y.shape[1])


class GemvAllReduce(ParallelLinear):
    """A row-parallel linear layer, then an all-reduce, for the few rows of a decoding step.

    Maps (rows, in_features / ranks) to (rows, out_features). The result is bitwise equal on all
    ranks, and so must be its gradient, which is not reduced again.
    """

    cut, bias_is_cut = 1, False

    def forward(self, x: Tensor) -> Tensor:
        """Multiply, and sum the products of all ranks."""
        rows = self._flat(x, self.weight.shape[1])
        y: Tensor = _Reduce.apply(self._matmul, rows, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return y.view(*x.shape[:-1], y.shape[1])


class _Scatter(torch.autograd.Function):
    """Matmul and reduce-scatter; backward: all-gather and matmul."""

    @staticmethod
    def forward(ctx: Any, matmul: Matmul, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.matmul, ctx.has_bias = matmul, bias is not None
        ctx.save_for_backward(x, weight)
        y = matmul.scatter(x, weight.t(), "LinearReduceScatter")
        return y if bias is None else y.add_(bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        of_weight, of_bias = torch.zeros_like(weight), weight.new_zeros(weight.shape[0])

        def also(rows: slice, tile: Tensor) -> None:
            of_weight.addmm_(tile.t(), x[rows])
            if ctx.has_bias:
                of_bias.add_(tile.sum(0))

        name = "LinearReduceScatter.backward"
        of_x = ctx.matmul.gather(grads[0].contiguous(), weight, name, also)
        return None, of_x, of_weight, of_bias if ctx.has_bias else None


class _Gather(torch.autograd.Function):
    """All-gather and matmul; backward: matmul and reduce-scatter.

    The gathered inputs are not kept but gathered again, to save memory.
    """

    @staticmethod
    def forward(ctx: Any, matmul: Matmul, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.matmul, ctx.has_bias = matmul, bias is not None
        ctx.save_for_backward(x, weight)
        y = matmul.gather(x.contiguous(), weight.t(), "AllGatherLinear")
        return y if bias is None else y.add_(bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        grad, of_weight = grads[0].contiguous(), torch.zeros_like(weight)
        of_x = ctx.matmul.scatter(grad, weight, "AllGatherLinear.backward")
        call = f"AllGatherLinear.again({' x '.join(map(str, (*x.shape, weight.shape[0])))})"
        ctx.matmul.gather_for(
            x.contiguous(), lambda rows, tile: of_weight.addmm_(grad[rows].t(), tile), call
        )
        return None, of_x, of_weight, grad.sum(0) if ctx.has_bias else None


class _Reduce(torch.autograd.Function):
    """Matmul and all-reduce; backward: the matmul alone."""

    @staticmethod
    def forward(ctx: Any, matmul: Matmul, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, weight)
        y = matmul.reduce(x.contiguous(), weight.t(), "GemvAllReduce")
        return y if bias is None else y.add_(bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        grad = grads[0]
        of_bias = grad.sum(0) if ctx.has_bias else None
        return None, grad @ weight, grad.t() @ x, of_bias
