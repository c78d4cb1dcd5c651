"""The functions of torch.distributed that weft wraps do what torch's do."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from tests.torch.ranks import on_ranks

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]


def repeated_calls():
    """Wrong results by case: the first call prepares, later ones are served by the cache."""
    me, n, wrong = dist.get_rank(), dist.get_world_size(), []

    def check(name, have, want):
        if not torch.equal(have, torch.as_tensor(want, dtype=have.dtype).expand_as(have)):
            wrong.append(name)

    total = n * (n + 1) / 2
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
        for _ in range(3):
            x = torch.full((300_000 if dtype is torch.float32 else 50,), me + 1, dtype=dtype)
            dist.all_reduce(x)
            check(f"sum {dtype}", x, total)
            if dtype is not torch.complex64:
                dist.all_reduce(x := torch.full((50,), me + 1, dtype=dtype), dist.ReduceOp.MAX)
                check(f"max {dtype}", x, n)
            out = torch.zeros(n, 40, dtype=dtype)
            dist.all_gather_single(out, torch.full((1, 40), me + 1, dtype=dtype))
            check(f"gather {dtype}", out[:, 0], [1 + r for r in range(n)])
            part = torch.zeros(40, dtype=dtype)
            dist.reduce_scatter_single(part, torch.full((n * 40,), me + 1, dtype=dtype))
            check(f"scatter {dtype}", part, total)
    for _ in range(3):
        strided = torch.full((30, 2), float(me + 1))[:, 0]
        dist.all_reduce(strided)
        check("strided", strided, total)
        negated = torch.conj(torch.full((30,), complex(0, me + 1))).imag  # a lazy minus
        assert negated.is_neg()
        dist.all_reduce(negated)
        check("negated", negated, -total)
        work = dist.all_reduce(x := torch.full((50,), float(me + 1)), async_op=True)
        work.wait()
        check("async", x, total)
    group = dist.new_group([0])
    alone = torch.full((50,), float(me + 1))
    if me == 0:
        dist.all_reduce(alone, group=group)
    check("of another group", alone, me + 1)
    return wrong


def test_repeated_calls_give_what_the_first_gives():
    assert on_ranks(repeated_calls, 2) == [[], []]


def sparse_sums():
    """The sum of sparse tensors whose indices differ in number and place."""
    me, n = dist.get_rank(), dist.get_world_size()
    indices = torch.tensor([[0, 2, 2][: me + 1]])
    x = torch.sparse_coo_tensor(indices, torch.ones(me + 1, 3), (4, 3))
    want: Any = sum(
        torch.sparse_coo_tensor(
            torch.tensor([[0, 2, 2][: r + 1]]), torch.ones(r + 1, 3), (4, 3)
        ).to_dense()
        for r in range(n)
    )
    dist.all_reduce(x)
    dist.all_reduce(empty := torch.zeros(4, 3).to_sparse())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(10, 4, sparse=True))
    model(torch.tensor([me, 5])).sum().backward()
    grad = model.module.weight.grad.to_dense()[:, 0]
    shares = torch.zeros(10)
    shares[:n], shares[5] = 1 / n, 1
    return torch.equal(x.to_dense(), want), empty.to_dense().sum() == 0, torch.equal(grad, shares)


def test_sparse_tensors_are_added_up_also_under_ddp():
    assert on_ranks(sparse_sums, 2) == [(True, True, True)] * 2


def refused():
    with pytest.raises(ValueError, match="sum only"):
        dist.all_reduce(torch.zeros(4, 3).to_sparse(), dist.ReduceOp.MAX)


def test_other_operations_on_sparse_tensors_are_refused():
    on_ranks(refused, 2)


def test_dynamo_takes_the_wrapped_functions_for_the_originals():
    from torch.distributed._functional_collectives import traceable_collective_remaps

    assert hasattr(dist.all_reduce, "of_weft")
    assert dist.all_reduce in traceable_collective_remaps
