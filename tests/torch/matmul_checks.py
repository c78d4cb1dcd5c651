"""What layers over ranks must give: each check asserts by value, on every rank."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.torch.embedding_checks import grad_of, refused
from weft.torch import AllGatherLinear, ExpertCombine, GemvAllReduce, LinearReduceScatter
from weft.torch.linear.parallel_linear import ParallelLinear

CHECKS: dict[str, Callable[[], None]] = {}
WAYS: tuple[Any, ...] = (True, False, "auto")


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def whole_numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw small whole numbers: sums of their products are exact in any order."""
    drawn = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, shape, generator=drawn).to(dtype)


def layer_of(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(whole_numbers(outputs, inputs, seed=1))
        if bias:
            layer.bias.copy_(whole_numbers(outputs, seed=2))
    return layer


def part(whole: Tensor, dim: int) -> Tensor:
    return whole.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def trained(layer: nn.Module, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result and the gradient of the input."""
    given = x.clone().requires_grad_()
    y = layer(given)
    (y * grad).sum().backward()
    assert given.grad is not None
    return y.detach(), given.grad


def same(layer: ParallelLinear, want: nn.Linear, cut: int, *, bias_is_cut: bool) -> None:
    """Compare gradients of parameters."""
    assert layer.bias is not None
    of_bias = grad_of(want.bias)
    assert torch.equal(grad_of(layer.weight), part(grad_of(want.weight), cut))
    assert torch.equal(grad_of(layer.bias), part(of_bias, 0) if bias_is_cut else of_bias)


@check
def rows_are_summed_up_and_scattered() -> None:
    n = dist.get_world_size()
    for fuse in WAYS:
        for rows, slices in ((8 * n, None), (3 * n, 2), (n, 5)):
            want = layer_of(6 * n, 10)
            layer = LinearReduceScatter.of(want, fuse=fuse, slices=slices)
            for turn in range(7 if fuse == "auto" else 2):
                x, grad = whole_numbers(rows, 6 * n, seed=turn), whole_numbers(rows, 10, seed=9)
                want.zero_grad()
                layer.zero_grad()
                y, of_x = trained(want, x, grad)
                have, of_part = trained(layer, part(x, 1), part(grad, 0))
                assert torch.equal(have, part(y, 0)), (fuse, rows)
                assert torch.equal(of_part, part(of_x, 1)), (fuse, rows)
                same(layer, want, 1, bias_is_cut=False)


@check
def rows_are_gathered_and_multiplied() -> None:
    n = dist.get_world_size()
    for fuse in WAYS:
        for rows, slices in ((8 * n, None), (3 * n, 2), (n, 5)):
            want = layer_of(6, 10 * n)
            layer = AllGatherLinear.of(want, fuse=fuse, slices=slices)
            for turn in range(7 if fuse == "auto" else 2):
                x = whole_numbers(rows, 6, seed=turn)
                grad = whole_numbers(rows, 10 * n, seed=9)
                want.zero_grad()
                layer.zero_grad()
                y, of_x = trained(want, x, grad)
                have, of_part = trained(layer, part(x, 0), part(grad, 1))
                assert torch.equal(have, part(y, 1)), (fuse, rows)
                assert torch.equal(of_part, part(of_x, 0)), (fuse, rows)
                same(layer, want, 0, bias_is_cut=True)


@check
def vectors_are_summed_up_everywhere() -> None:
    n = dist.get_world_size()
    for fuse in WAYS:
        for rows in (1, 3):
            want = layer_of(6 * n, 10)
            layer = GemvAllReduce.of(want, fuse=fuse)
            for turn in range(7 if fuse == "auto" else 2):
                x, grad = whole_numbers(rows, 6 * n, seed=turn), whole_numbers(rows, 10, seed=9)
                want.zero_grad()
                layer.zero_grad()
                y, of_x = trained(want, x, grad)
                have, of_part = trained(layer, part(x, 1), grad)
                assert torch.equal(have, y), (fuse, rows)
                assert torch.equal(of_part, part(of_x, 1))
                same(layer, want, 1, bias_is_cut=False)


@check
def any_numbers_give_what_torch_gives() -> None:
    n = dist.get_world_size()
    torch.manual_seed(3)
    want = nn.Linear(64 * n, 48)
    x = torch.randn(8 * n, 64 * n)
    layer = LinearReduceScatter.of(want, fuse=True)
    assert torch.allclose(layer(part(x, 1)), part(want(x), 0), rtol=1e-5, atol=1e-5)
    again = GemvAllReduce.of(want, fuse=True)
    assert torch.allclose(again(part(x, 1)), want(x), rtol=1e-5, atol=1e-5)


@check
def dimensions_between_rows_and_features_stay() -> None:
    n = dist.get_world_size()
    want = layer_of(4 * n, 4 * n)
    x = whole_numbers(2 * n, 3, 4 * n)
    scattered = LinearReduceScatter.of(want, fuse=True)(part(x, 2))
    gathered = AllGatherLinear.of(want, fuse=True)(part(x, 0))
    reduced = GemvAllReduce.of(want, fuse=True)(part(x, 2))
    assert torch.equal(scattered, part(want(x), 0))
    assert torch.equal(gathered, part(want(x), 2))
    assert torch.equal(reduced, want(x))


@check
def narrow_numbers_are_multiplied() -> None:
    n = dist.get_world_size()
    want = layer_of(4 * n, 8).to(torch.bfloat16)
    x = whole_numbers(4 * n, 4 * n, dtype=torch.bfloat16)
    layer = LinearReduceScatter.of(want, fuse=True)
    assert torch.allclose(layer(part(x, 1)), part(want(x), 0), rtol=0.02, atol=0.5)


@check
def layers_without_bias_have_none() -> None:
    n = dist.get_world_size()
    want = layer_of(4 * n, 4 * n, bias=False)
    x = whole_numbers(2 * n, 4 * n)
    for kind, cut, given in ((LinearReduceScatter, 0, 1), (AllGatherLinear, 1, 0)):
        layer = kind.of(want, fuse=True)
        y = layer(part(x, given))
        assert torch.equal(y, part(want(x), cut))
        y.sum().backward()
        assert layer.bias is None


@check
def the_first_calls_say_what_is_faster() -> None:
    n = dist.get_world_size()
    layer = LinearReduceScatter.of(layer_of(4 * n, 8))
    x = part(whole_numbers(2 * n, 4 * n), 1)
    with torch.no_grad():
        layer(x)
        assert list(layer.reasons.values()) == ["not decided yet"]
        for _ in range(6):
            layer(x)
    (reason,) = layer.reasons.values()
    assert "measured" in reason
    assert reason.startswith(("fused: faster", "unfused: fusing is slower"))
    shown: list[Any] = [None] * n
    dist.all_gather_object(shown, reason)
    assert len(set(shown)) == 1


def experts_of(num: int) -> Tensor:
    return whole_numbers(num, 5, 7, seed=4)


def drawn_counts(turn: int) -> Tensor:
    """Draw how many rows every rank has for every rank and expert: the same on all ranks."""
    n = dist.get_world_size()
    drawn = torch.Generator().manual_seed(turn)
    return torch.randint(0, 1 + 9 * turn, (n, n, 2), generator=drawn)


@check
def experts_bring_rows_back() -> None:
    n, me = dist.get_world_size(), dist.get_rank()
    for fuse in WAYS:
        combine = ExpertCombine(2 * n, 7, 5, fuse=fuse)
        with torch.no_grad():
            combine.weight.copy_(part(experts_of(2 * n), 0))
        for turn in (0, 1, 2, 3, 1, 1, 1, 1, 1):
            counts = drawn_counts(turn)  # by holder, taker, expert
            rows = [whole_numbers(int(counts[r].sum()), 7, seed=20 + r) for r in range(n)]
            grads = [whole_numbers(int(counts[:, r].sum()), 5, seed=40 + r) for r in range(n)]
            experts = experts_of(2 * n).requires_grad_()
            everyone = [each.requires_grad_() for each in rows]
            wanted = _brought_back(counts, everyone, experts)
            torch.stack(
                [(y * g).sum() for y, g in zip(wanted, grads, strict=True)]
            ).sum().backward()
            combine.zero_grad()
            x = rows[me].detach().clone().requires_grad_()
            y = combine(x, counts[me])
            assert torch.equal(y, wanted[me]), (fuse, turn)
            (y * grads[me]).sum().backward()
            assert torch.equal(grad_of(x), grad_of(rows[me])), (fuse, turn)
            assert torch.equal(grad_of(combine.weight), part(grad_of(experts), 0)), (fuse, turn)


def _brought_back(counts: Tensor, rows: list[Tensor], experts: Tensor) -> list[Tensor]:
    """Multiply all rows of all ranks, and sort the products by whom they are for."""
    n = len(rows)
    found: list[list[Tensor]] = [[] for _ in range(n)]
    for holder in range(n):
        blocks = iter(torch.split(rows[holder], counts[holder].flatten().tolist()))
        for taker in range(n):
            for expert in range(2):
                found[taker].append(next(blocks) @ experts[2 * holder + expert].t())
    return [torch.cat(each) for each in found]


@check
def what_does_not_fit_is_refused() -> None:
    n = dist.get_world_size()
    layer = LinearReduceScatter(4 * n, 8)
    refused(lambda: layer(torch.zeros(2 * n, 5)), f"(got ({2 * n}, 5)")
    refused(lambda: layer(torch.zeros(2 * n, 4, dtype=torch.float64)), "float64")
    refused(lambda: layer(torch.zeros(2 * n + 1, 4)), f"{2 * n + 1} rows")
    refused(lambda: LinearReduceScatter(4 * n + 1, 8), f"in_features: {4 * n + 1} is not")
    refused(lambda: AllGatherLinear(8, 4 * n + 1), f"out_features: {4 * n + 1} is not")
    refused(lambda: GemvAllReduce(4 * n, 8, fuse="maybe"), "'maybe'")
    refused(lambda: ExpertCombine(2 * n + 1, 7, 5), f"num_experts: {2 * n + 1} is not")
    combine = ExpertCombine(2 * n, 7, 5)
    none = torch.zeros(n, 2, dtype=torch.int64)
    refused(lambda: combine(torch.zeros(3, 7), none), "a sum of 3 rows (got 0)")
    refused(lambda: combine(torch.zeros(3, 6), none), "(got (3, 6)")
    refused(lambda: combine(torch.zeros(0, 7), none.int()), "int32")
