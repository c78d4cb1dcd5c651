"""A list of ops that grows: what generators of workloads share."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from weft.hardware.dtypes import item_bytes, output_dtype, product_bytes
from weft.schedule.ir import Cost
from weft.step.step_graph import WORLD, Collective, Op, Phase

# The dtypes of generated models, with the bytes of one stored weight.
ITEM_BYTES = {
    name: int(item_bytes(name)) for name in ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
}
_PRODUCTS = ("gemm", "moe")  # families that multiply weights
After = int | tuple[int, ...]  # numbers of ops to wait for; -1 stands for none
BUCKET = 25 << 20  # bytes of gradients that DDP reduces together: bucket_cap_mb of torch


@dataclass
class Ops:
    """Ops in the order of a host; ``phase`` and ``dtype`` are those of what is added next.

    Inside of ``recomputing`` it is what a backward pass computes again.

    ``dtype`` is that of weights and ``math`` that of matrix products, where it is another. What
    products write, and with it everything between them, is of ``output_dtype(dtype)``.
    """

    dtype: str = "bf16"
    phase: Phase = "forward"
    math: str = ""
    ops: list[Op] = field(default_factory=list)
    awaited: tuple[int, ...] = ()
    recomputed: bool = False

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """Mark the ops that are added as computed again."""
        self.recomputed = True
        yield
        self.recomputed = False

    @property
    def item(self) -> int:
        """Bytes of one element of the tensors between products, gradients among them."""
        return int(item_bytes(output_dtype(self.dtype)))

    @property
    def weight_item(self) -> int:
        """Bytes of one weight as it is stored and gathered."""
        return ITEM_BYTES[self.dtype]

    @property
    def last(self) -> int:
        """The number of the op that was added last."""
        return len(self.ops) - 1

    @property
    def last_kernel(self) -> int:
        """The number of the last op on the compute stream, -1 before the first."""
        return next((n for n in range(self.last, -1, -1) if self.ops[n].kind == "kernel"), -1)

    def wait_for(self, *after: int) -> None:
        """Make the next kernel, and collectives before it, wait for ops; -1 stands for none."""
        self.awaited = (*self.awaited, *after)

    def kernel(
        self,
        name: str,
        family: str,
        *shape: int,
        flops: float = 0.0,
        nbytes: int = 0,
        after: After = -1,
        dtype: str = "",
    ) -> int:
        """Add a kernel on the compute stream, behind ops ``after`` of other streams."""
        if family in _PRODUCTS:
            dtype = dtype or self.math or self.dtype
        else:
            dtype = output_dtype(self.dtype)
        return self._computed(name, Cost(family, shape, dtype, flops, nbytes), after)

    def gemm(self, name: str, m: int, n: int, k: int, *, dtype: str = "", after: After = -1) -> int:
        """Add a matrix product, in the dtype of all products if none is named."""
        dtype = dtype or self.math or self.dtype
        moved = product_bytes(dtype, m, n, k)
        return self._computed(name, Cost("gemm", (m, n, k), dtype, 2.0 * m * n * k, moved), after)

    def bmm(self, name: str, batch: int, m: int, n: int, k: int) -> int:
        """Add matrix products of equal shape."""
        moved = self.item * batch * (m * k + k * n + m * n)
        return self.kernel(name, "bmm", batch, m, n, k, flops=2.0 * batch * m * n * k, nbytes=moved)

    def grouped_gemm(
        self, name: str, groups: int, m: int, n: int, k: int, *, after: After = -1
    ) -> int:
        """Add products of equal shape with weights of their own, as of experts.

        Training libraries run them by the kernels of single products (Transformer Engine's
        GroupedLinear, torch._grouped_mm), so they are priced as such.
        """
        if groups == 1:
            return self.gemm(name, m, n, k, after=after)
        dtype, flops = self.math or self.dtype, 2.0 * groups * m * n * k
        moved = product_bytes(dtype, m, n, k, groups)
        return self._computed(name, Cost("bmm", (groups, m, n, k), dtype, flops, moved), after)

    def moving(
        self, name: str, elements: int, *, family: str = "elementwise", after: After = -1
    ) -> int:
        """Add a kernel that reads and writes ``elements`` in all."""
        return self.kernel(name, family, nbytes=elements * self.item, after=after)

    def collective(
        self,
        kind: str,
        nbytes: int,
        group: str = WORLD,
        *,
        after: After = -1,
        peer: int | None = None,
        splits: tuple[int, ...] = (),
        stream: str = "",
        independent: bool = False,
    ) -> int:
        """Add a collective on the stream of its group, behind ops ``after`` of other streams.

        One that is ``independent`` does not wait for what the next kernel waits for.
        """
        what = Collective(kind, nbytes, output_dtype(self.dtype), group, peer, splits)
        place = stream or f"comm {group}"
        needs = _needs(after, () if independent else self.awaited)
        return self._add(Op(kind, "collective", place, None, what, needs, phase=self.phase))

    def in_fp8(self, number: int) -> int:
        """Mark a collective as moving fp8, not the dtype of activations; return its number."""
        op = self.ops[number]
        assert op.collective is not None
        self.ops[number] = replace(op, collective=replace(op.collective, dtype="fp8"))
        return number

    def exchange(self, nbytes: int, group: str, copies: int, *, after: int) -> int:
        """Add an all_to_all whose tokens go to ``copies`` places each; 0: all bytes are others."""
        what = Collective("all_to_all", nbytes, output_dtype(self.dtype), group, copies=copies)
        needs = _needs(after, self.awaited)
        op = Op(what.kind, "collective", f"comm {group}", None, what, needs, phase=self.phase)
        return self._add(op)

    def _computed(self, name: str, cost: Cost, after: After) -> int:
        needs, self.awaited = _needs(after, self.awaited), ()
        return self._add(Op(name, cost=cost, after=needs, phase=self.phase))

    def _add(self, op: Op) -> int:
        self.ops.append(replace(op, recomputed=True) if self.recomputed else op)
        return self.last


def _needs(after: After, awaited: tuple[int, ...]) -> tuple[int, ...]:
    if after == -1 and not awaited:
        return ()
    numbers = (after,) if isinstance(after, int) else after
    return tuple(sorted({number for number in (*numbers, *awaited) if number >= 0}))
