"""What weft can and Gloo cannot, or what has one right answer: each check asserts by value."""

import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _make_nccl_premul_sum
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import weft.torch
from tests.torch.collective_cases import values
from weft.errors import NotDoneError, RunError, UsageError
from weft.torch.backend import fast_path

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def everyone(*shape: int, dtype: str = "float32") -> list[Tensor]:
    return [values(*shape, dtype=dtype, rank=rank) for rank in range(dist.get_world_size())]


def total(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).sum(0, dtype=tensors[0].dtype)


def group() -> Any:
    return dist.group.WORLD


@check
def averages_are_taken() -> None:
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        x = values(99, dtype=dtype)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        want = torch.stack(everyone(99, dtype=dtype)).double().mean(0)
        assert torch.allclose(x.double(), want, rtol=1e-2 if x.element_size() == 2 else 1e-6)


@check
def premultiplied_sums_are_taken() -> None:
    x = values(99)
    dist.all_reduce(x, _make_nccl_premul_sum(0.5))
    assert torch.equal(x, total(everyone(99)) * 0.5)
    out, x = torch.empty(11), values(11 * dist.get_world_size())
    dist.reduce_scatter_tensor(out, x, _make_nccl_premul_sum(2.0))
    want = total(everyone(11 * dist.get_world_size())) * 2
    assert torch.equal(out, want.chunk(dist.get_world_size())[dist.get_rank()])


@check
def dtypes_that_gloo_does_not_know_are_moved() -> None:
    for dtype in ("int16", "float8_e4m3fn", "float8_e5m2"):
        want = everyone(33, dtype=dtype)
        outs = [torch.empty_like(x) for x in want]
        dist.all_gather(outs, want[dist.get_rank()])
        assert all(map(torch.equal, map(Tensor.float, outs), map(Tensor.float, want)))


@check
def short_integers_and_complex_numbers_are_summed() -> None:
    for dtype in ("int16", "complex64", "complex128"):
        x = values(33, dtype=dtype)
        dist.all_reduce(x)
        assert torch.equal(x, total(everyone(33, dtype=dtype)))


@check
def lists_may_be_uneven() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    want = [values(3 + r, rank=r) for r in range(size)]
    outs = [torch.empty_like(x) for x in want]
    dist.all_gather(outs, want[rank])
    assert all(map(torch.equal, outs, want))
    out = torch.empty(3 + rank)
    dist.reduce_scatter(out, [values(3 + r) for r in range(size)])
    assert torch.equal(out, total([values(3 + rank, rank=r) for r in range(size)]))


@check
def lists_go_all_to_all() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    ins = [torch.full((rank + 2 * to,), 10.0 * rank + to) for to in range(size)]
    outs = [torch.empty(of + 2 * rank) for of in range(size)]
    dist.all_to_all(outs, ins)
    assert all((out == 10.0 * of + rank).all() for of, out in enumerate(outs))


@check
def coalesced_calls_give_the_same() -> None:
    size = dist.get_world_size()
    tensors = [values(5), values(7)]
    group().allreduce_coalesced(tensors).wait()
    assert all(torch.equal(t, total(everyone(len(t)))) for t in tensors)
    outs = [torch.empty(5 * size), torch.empty(7 * size)]
    group().allgather_into_tensor_coalesced(outs, [values(5), values(7)]).wait()
    assert all(torch.equal(o, torch.cat(everyone(n))) for o, n in zip(outs, (5, 7), strict=True))
    lists = [[torch.empty(5), torch.empty(7)] for _ in range(size)]
    group().allgather_coalesced(lists, [values(5), values(7)]).wait()
    assert all(torch.equal(lists[r][1], x) for r, x in enumerate(everyone(7)))


@check
def a_manager_coalesces() -> None:
    tensors = [values(5), values(7)]
    with _coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all(torch.equal(t, total(everyone(len(t)))) for t in tensors)


@check
def a_future_holds_the_result() -> None:
    x = values(200_000)
    work: Any = dist.all_reduce(x, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    assert torch.equal(doubled.wait(), 2 * total(everyone(200_000)))
    assert torch.equal(work.result()[0], total(everyone(200_000)))
    assert work.is_success()
    assert work.exception() is None


@check
def a_message_from_anyone_names_its_sender() -> None:
    if dist.get_rank() == 0:
        got = torch.empty(4)
        senders = {dist.recv(got) for _ in range(dist.get_world_size() - 1)}
        assert senders == set(range(1, dist.get_world_size()))
    else:
        dist.send(values(4), 0)
    dist.barrier()  # a message of the next check would come from anyone, too


@check
def a_receive_from_anyone_does_not_wait() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for length in (4, 300_000):  # a short one comes with its note, a long one is read
        got = torch.zeros(length, 2).t()
        receive: Any = dist.irecv(got, None)
        later = torch.zeros(3)
        second: Any = dist.irecv(later, (rank - 1) % size)  # goes to the first as long as it waits
        sends: list[Any] = [
            dist.isend(torch.full((2 * length,), 1.0 + rank), (rank + 1) % size),
            dist.isend(torch.full((3,), 9.0), (rank + 1) % size),
        ]
        assert all(work.wait() for work in (receive, second, *sends))
        assert receive._source_rank() == (rank - 1) % size
        assert (got == 1 + (rank - 1) % size).all()
        assert (later == 9).all()
    dist.barrier()


@check
def a_wait_for_a_message_may_be_too_short() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    got = torch.zeros(4, 2).t()
    receive: Any = dist.irecv(got, (rank - 1) % size)
    try:
        receive.wait(timedelta(seconds=0.2))
    except NotDoneError as error:
        assert "timed out after 0.2 s waiting for 32 bytes from rank" in str(error)  # noqa: PT017
    else:
        raise AssertionError("nothing was sent")
    assert not receive.is_completed()
    dist.barrier()
    dist.send(torch.full((8,), float(rank)), (rank + 1) % size)
    receive.wait()
    assert (got == (rank - 1) % size).all()


@check
def many_messages_are_in_flight_at_once() -> None:
    rank, size, number = dist.get_rank(), dist.get_world_size(), 200
    outs = [torch.zeros(3) for _ in range(number)]
    works: list[Any] = [dist.irecv(out, (rank - 1) % size, tag=i % 7) for i, out in enumerate(outs)]
    for i in range(number):
        x = torch.full((3,), float(i))
        works.append(dist.isend(x, (rank + 1) % size, tag=i % 7))  # which nobody else keeps
    assert all(work.wait() for work in works)
    assert [int(out[0]) for out in outs] == list(range(number))


@check
def turned_tensors_are_written_out() -> None:
    """Conjugates and their imaginary parts lie in memory as they were before."""
    size, rank = dist.get_world_size(), dist.get_rank()
    z = [torch.complex(values(2 * size, rank=r), values(2 * size, rank=r) + 1) for r in range(size)]
    out, want = torch.zeros(2, dtype=torch.complex64), total(z).conj().chunk(size)[rank]
    x = [torch._neg_view(each.real.contiguous()) for each in z]
    for _ in range(2):  # the second time the desk knows the call
        dist.reduce_scatter_tensor(out, z[rank].conj().clone())
        assert torch.equal(out, want)
        dist.reduce_scatter_tensor(out, z[rank].conj())
        assert torch.equal(out, want)
        gathered = torch.zeros(2 * size * size)
        dist.all_gather_into_tensor(gathered, x[rank].clone())
        dist.all_gather_into_tensor(gathered, x[rank])
        assert torch.equal(gathered, torch.cat(x))
        one = z[rank][:1].clone().conj().imag
        dist.all_reduce(one)
        assert torch.equal(one, total(z)[:1].conj().imag)
        outs = [torch._neg_view(torch.zeros(2 * size)) for _ in range(size)]
        dist.all_gather(outs, x[rank])
        assert all(map(torch.equal, outs, x))


@check
def memory_may_be_shared_by_input_and_output() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    behind = (rank + 1) % size  # another rank's place
    for n in (4, 50_000):
        whole = [torch.arange(n * size).float() + r for r in range(size)]
        mine = [each.chunk(size)[rank] for each in whole]
        for _ in range(2):
            x = whole[rank].clone()
            dist.all_to_all_single(x, x)
            assert torch.equal(x, torch.cat(mine))
            x = whole[rank].clone()
            dist.all_to_all(list(x.chunk(size)), list(x.chunk(size)))
            assert torch.equal(x, torch.cat(mine))
            for place in (rank, behind):
                x = torch.zeros(size, n)
                x[place] = mine[rank]
                dist.all_gather_into_tensor(x.view(-1), x[place])
                assert torch.equal(x, torch.stack([e.chunk(size)[r] for r, e in enumerate(whole)]))
                x = torch.zeros(size, n)
                x[place] = mine[rank]
                dist.all_gather(list(x), x[place])
                assert torch.equal(x, torch.stack([e.chunk(size)[r] for r, e in enumerate(whole)]))
                x = whole[rank].clone()
                out = x.chunk(size)[place]
                dist.reduce_scatter_tensor(out, x)
                assert torch.equal(out, total(mine))


@check
def a_result_that_cannot_be_written_raises() -> None:
    x = torch.ones(1).expand(300_000)  # one element of memory
    work: Any = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    for ask in (work.wait, future.wait):
        try:
            ask()
        except RuntimeError as error:
            assert "single memory location" in str(error)  # noqa: PT017
        else:
            raise AssertionError("written")


@check
def long_messages_arrive() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    got = torch.empty(3 << 20, dtype=torch.int32)
    request: Any = dist.isend(torch.full_like(got, rank), (rank + 1) % size)
    dist.recv(got, (rank - 1) % size)
    request.wait()
    assert (got == (rank - 1) % size).all()


@check
def messages_arrive_while_their_ranks_are_in_collectives() -> None:
    rank, long = dist.get_rank(), 1 << 18
    given = [torch.full((long,), float(number)) for number in range(12)]
    taken = [torch.zeros(long) for _ in given]
    works: list[Any] = []
    if rank == 0:  # more than there are slots, and nobody waits for them
        works = [dist.isend(each, 1) for each in given]
    elif rank == 1:
        for each in taken:
            dist.recv(each, 0)
    dist.barrier()
    if rank == 0:
        dist.send(given[0], 1)  # which is in the barrier when it begins
    elif rank == 1:
        works = [dist.irecv(taken[1], 0)]
    dist.barrier()
    for work in works:
        work.wait()
    if rank == 1:
        assert torch.equal(taken[1], given[0])
        assert all(bool((x == n).all()) for n, x in enumerate(taken) if n != 1)


@check
def groups_of_any_ranks_work() -> None:
    size = dist.get_world_size()
    last = dist.new_group([size - 1, 0])
    alone = dist.new_group([1])
    if dist.get_rank() in (0, size - 1):
        x = values(5)
        dist.all_reduce(x, group=last)
        assert torch.equal(x, values(5, rank=0) + values(5, rank=size - 1))
        dist.destroy_process_group(last)
    if dist.get_rank() == 1:
        x = values(5)
        dist.all_reduce(x, group=alone)
        dist.barrier(alone)
        assert torch.equal(x, values(5))


@check
def calls_in_flight_end_before_the_group() -> None:
    ranks = dist.new_group(list(range(dist.get_world_size())))
    dist.all_reduce(values(200_000), group=ranks)
    x = values(200_000)
    work: Any = dist.all_reduce(x, group=ranks, async_op=True)
    dist.destroy_process_group(ranks)
    work.wait()
    assert torch.equal(x, total(everyone(200_000)))


@check
def barriers_pass() -> None:
    dist.barrier()
    work: Any = dist.barrier(async_op=True)
    work.wait()
    group().monitored_barrier(timedelta(seconds=30))


@check
def tensors_are_distributed() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = values(8, 6, rank=0)
    parts: Any = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(parts.full_tensor(), whole)
    assert torch.equal(parts.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    assert torch.equal(
        (parts.t() @ parts).redistribute(mesh, [Replicate()]).to_local(), whole.t() @ whole
    )


@check
def tensors_lie_in_the_heap() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2, torch.complex64):
        x = weft.torch.empty((3, 50_000), dtype)
        x.copy_(values(3, 50_000))
        dist.broadcast(x, 1)
        assert torch.equal(x.to(torch.complex64), values(3, 50_000, rank=1).to(torch.complex64))
        weft.torch.free(x)
    model = torch.nn.Linear(3, 2)
    model.weight.data = weft.torch.empty((2, 3)).fill_(1)
    model(torch.ones(1, 3)).sum().backward()
    assert model.weight.grad is not None
    assert torch.equal(model.weight.grad, torch.ones(2, 3))


@check
def tensors_of_the_heap_may_be_empty_and_are_freed_whole() -> None:
    for shape in ((), 0, (0, 3), (2, 3)):
        tensor = weft.torch.empty(shape)
        if tensor.numel() > 1:
            with pytest.raises(RunError):
                weft.torch.free(tensor[:1])
        weft.torch.free(tensor.t() if tensor.dim() == 2 else tensor)


@check
def wrong_arguments_are_named() -> None:
    for call, message in (
        (
            lambda: dist.all_gather_into_tensor(torch.empty(3), torch.empty(3)),
            "output has 3 elements",
        ),
        (lambda: dist.all_to_all_single(torch.empty(7), torch.empty(7)), "7 rows"),
        (lambda: group().broadcast([torch.empty(1), torch.empty(1)]), "(got 2)"),
        (lambda: group().all_gather_single(torch.empty(9), torch.empty(3).int()), "int32"),
        (lambda: dist.all_to_all([], []), "at least one tensor"),
        (lambda: dist.all_reduce_coalesced([]), "at least one tensor"),
        (lambda: dist.all_reduce(torch.eye(3).to_sparse_csr()), "sparse tensors"),
        (lambda: dist.broadcast(torch.eye(3).to_sparse(), 0), "sparse tensors"),
        (lambda: group()._get_backend(torch.device("cuda")), "no backend for device 'cuda'"),
    ):
        try:
            call()
        except UsageError as error:
            assert message in str(error), (message, error)  # noqa: PT017
        else:
            raise AssertionError(message)


def run_checks(names: list[str]) -> dict[str, str]:
    """Run the checks; return what went wrong, by name."""
    results = {}
    for name in names:
        try:
            CHECKS[name]()
            results[name] = ""
        except Exception:  # noqa: BLE001 - told by the test of that name
            results[name] = traceback.format_exc()
    return results


@check
def calls_made_again_are_right_in_any_layout() -> None:
    """A call that the desk knows must not be mistaken for one of other memory."""
    size, rank = dist.get_world_size(), dist.get_rank()
    # By the tensors' own table, and by their attributes.
    desk_ways = [
        fast_path.TENSOR_READER,
        None,
    ]
    assert desk_ways[0] is not None
    for way in desk_ways:
        fast_path.TENSOR_READER = way
        for dtype in ("float32", "bfloat16", "int64", "bool", "float8_e5m2"):
            given = [each.view(size, 6) for each in everyone(6 * size, dtype=dtype)]
            want = torch.stack([each[rank] for each in given])
            for x in (given[rank], given[rank].T.contiguous().T, given[rank].clone()):
                for out in (torch.zeros_like(want), torch.zeros(6, size, dtype=want.dtype).T):
                    dist.all_to_all_single(out, x)
                    assert torch.equal(out.float(), want.float())
        x = values(5 * size + 1)
        for _ in range(3):
            try:
                dist.all_to_all_single(torch.empty_like(x), x)
            except UsageError:
                continue
            raise AssertionError("rows that the ranks cannot share")
    fast_path.TENSOR_READER = desk_ways[0]
