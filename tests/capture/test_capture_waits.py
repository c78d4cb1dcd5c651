"""A captured step waits for its communication: consumers for producers, stages for stages."""

from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from weft.hardware import platform
from weft.planner.predict import predict
from weft.torch.capture.capture_step import capture

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
WIDTH = 8192


def predicted(step, ranks):
    return predict(capture(step, ranks), platform("h100-8", num_ranks=ranks))


def waits_for(ops, later, earlier):
    """Return whether op ``later`` cannot start before op ``earlier`` has ended."""
    seen, open_ones = set(), [later]
    while open_ones:
        number = open_ones.pop()
        if number == earlier:
            return True
        if number in seen:
            continue
        seen.add(number)
        before = [n for n in range(number) if ops[n].stream == ops[number].stream]
        open_ones += [*ops[number].after, *before[-1:]]
    return False


def vector():
    return torch.empty(8, 64)


def many():
    return [vector() for _ in range(dist.get_world_size())]


def tall():
    return torch.empty(8 * dist.get_world_size(), 64)


# What fills a tensor, and that tensor: (call, filled) with ``async_op`` passed on.
def c10d_calls():
    def gathered(**options):
        out = many()
        return dist.all_gather(out, vector(), **options), out[1]

    def gathered_to_root(**options):
        out = many()
        return dist.gather(vector(), out, **options), out[1]

    def into(call, out, *given):
        def made(**options):
            filled = out()
            return call(filled, *(each() for each in given), **options), filled

        return made

    def exchanged(**options):
        out = many()
        return dist.all_to_all(out, many(), **options), out[1]

    def scattered(**options):
        out = vector()
        return dist.scatter(out, many(), **options), out

    return {
        "all_reduce": into(dist.all_reduce, vector),
        "broadcast": into(partial(dist.broadcast, src=0), vector),
        "reduce": into(partial(dist.reduce, dst=0), vector),
        "all_gather": gathered,
        "all_gather_into_tensor": into(dist.all_gather_into_tensor, tall, vector),
        "reduce_scatter": into(dist.reduce_scatter, vector, many),
        "reduce_scatter_tensor": into(dist.reduce_scatter_tensor, vector, tall),
        "all_to_all": exchanged,
        "all_to_all_single": into(dist.all_to_all_single, tall, tall),
        "gather": gathered_to_root,
        "scatter": scattered,
    }


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", c10d_calls())
def test_what_reads_the_result_of_a_collective_waits_for_it(kind, asynchronous):
    def step():
        work, filled = c10d_calls()[kind](async_op=asynchronous)
        if asynchronous:
            work.wait()
        return filled * 2

    ops = capture(lambda: step, 4).steps[0].ops
    collective = next(n for n, op in enumerate(ops) if op.kind == "collective")
    assert waits_for(ops, len(ops) - 1, collective)


@pytest.mark.parametrize("root", [0, 3])
@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_a_rank_that_is_not_the_root_counts_what_the_root_moves(kind, root):
    def step():
        whole = many() if dist.get_rank() == root else None
        if kind == "gather":
            dist.gather(vector(), whole, dst=root)
        else:
            dist.scatter(vector(), whole, src=root)

    found = next(op.collective for op in capture(lambda: step, 4).ops() if op.collective)
    assert (found.kind, found.nbytes, found.peer) == (kind, 4 * 8 * 64 * 4, root)


@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all_single", "reduce_scatter_tensor"])
def test_a_synchronous_collective_holds_up_work_that_does_not_read_it(kind):
    def step():
        c10d_calls()[kind]()
        return vector() * 2  # the stream waits, as with NCCL

    ops = capture(lambda: step, 4).steps[0].ops
    collective = next(n for n, op in enumerate(ops) if op.kind == "collective")
    assert waits_for(ops, len(ops) - 1, collective)


@pytest.mark.parametrize("kind", c10d_calls())
def test_an_asynchronous_collective_overlaps_with_work_before_its_wait(kind):
    def step():
        work, _ = c10d_calls()[kind](async_op=True)
        other = vector() * 2
        work.wait()
        return other

    ops = capture(lambda: step, 4).steps[0].ops
    collective = next(n for n, op in enumerate(ops) if op.kind == "collective")
    assert not waits_for(ops, len(ops) - 1, collective)


def world() -> Any:
    return dist.group.WORLD


FUNCTIONAL = {
    "all_reduce": lambda x: funcol.all_reduce(x, "sum", world()),
    "all_gather_tensor": lambda x: funcol.all_gather_tensor(x, 0, world()),
    "reduce_scatter_tensor": lambda x: funcol.reduce_scatter_tensor(x, "sum", 0, world()),
    "all_to_all_single": lambda x: funcol.all_to_all_single(x, None, None, world()),
    "broadcast": lambda x: funcol.broadcast(x, 0, world()),
    "all_reduce_coalesced": lambda x: funcol.all_reduce_coalesced([x], "sum", world())[0],
}


@pytest.mark.parametrize("kind", FUNCTIONAL)
def test_what_reads_a_functional_collective_waits_for_it(kind):
    def step():
        return FUNCTIONAL[kind](torch.empty(16, 64)) * 2

    ops = capture(lambda: step, 4).steps[0].ops
    collective = next(n for n, op in enumerate(ops) if op.kind == "collective")
    assert waits_for(ops, len(ops) - 1, collective)


@pytest.mark.parametrize("kind", FUNCTIONAL)
def test_a_functional_collective_overlaps_with_work_before_its_result_is_used(kind):
    def step():
        reduced = FUNCTIONAL[kind](torch.empty(16, 64))
        other = vector().exp()
        return reduced * 2, other

    ops = capture(lambda: step, 4).steps[0].ops
    number = {op.name: n for n, op in enumerate(ops)}
    collective = next(n for n, op in enumerate(ops) if op.kind == "collective")
    assert not waits_for(ops, number["aten.exp"], collective)
    assert waits_for(ops, number["aten.mul"], collective)


def test_the_gradient_of_a_functional_collective_is_its_collective():
    def step():
        x = torch.empty(16, 64, requires_grad=True)
        funcol.all_to_all_single_autograd(x * 2, None, None, world()).square().sum().backward()
        assert x.grad is not None

    kinds = [op.collective.kind for op in capture(lambda: step, 4).ops() if op.collective]
    assert kinds == ["all_to_all", "all_to_all"]


def test_a_shard_moves_to_another_dimension_by_an_exchange():
    def step():
        mesh = init_device_mesh("cuda", (4,))
        x = DTensor.from_local(torch.empty(16, 64), mesh, [Shard(0)])
        assert x.redistribute(mesh, [Shard(1)]).to_local().shape == (64, 16)

    found = [op.collective for op in capture(lambda: step, 4).ops() if op.collective]
    assert [(each.kind, each.nbytes) for each in found] == [("all_to_all", 16 * 64 * 4)]


def test_two_groups_of_the_same_ranks_run_at_the_same_time():
    def prepare():
        other = dist.new_group(list(range(dist.get_world_size())))

        def step():
            works = [dist.all_reduce(vector(), group=g, async_op=True) for g in (world(), other)]
            for work in works:
                work.wait()
            return vector() * 2

        return step

    workload = capture(prepare, 4)
    ops = workload.steps[0].ops
    first, second = (number for number, op in enumerate(ops) if op.kind == "collective")
    assert not waits_for(ops, second, first)
    assert {op.collective.group for op in ops if op.collective} == {"world"}
    assert predict(workload, platform("h100-8", num_ranks=4)).seconds > 0


def test_the_future_of_a_collective_runs_its_callback_after_it_and_next_to_other_work():
    def step():
        x = vector()
        work = dist.all_reduce(x, async_op=True)
        work.get_future().then(lambda done: done.value()[0] * 2)
        return vector() + 1

    ops = capture(lambda: step, 4).steps[0].ops
    names = [op.name for op in ops]
    reduced, doubled = names.index("c10d.allreduce_"), names.index("aten.mul")
    assert waits_for(ops, doubled, reduced)
    assert not waits_for(ops, names.index("aten.add"), reduced)


def test_coalesced_collectives_are_one_and_waited_for():
    def step():
        with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
            x = vector()
            dist.all_reduce(x)
            dist.all_reduce(vector())
        manager.wait()
        return x * 2

    ops = capture(lambda: step, 4).steps[0].ops
    collectives = [n for n, op in enumerate(ops) if op.kind == "collective"]
    assert len(collectives) == 1
    what = ops[collectives[0]].collective
    assert what is not None
    assert what.nbytes == 2 * 8 * 64 * 4
    assert waits_for(ops, len(ops) - 1, collectives[0])


def test_ranks_that_exchange_messages_in_a_batch_do_not_deadlock():
    def step():
        other, x = 1 - dist.get_rank(), vector()
        for _ in range(3):
            operations = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, vector(), other)]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        return x * 2

    assert predicted(lambda: step, 2).seconds > 0


def halo_exchange(order):
    """Each rank sends its first row and receives the row after its last, all in one tensor."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = torch.empty(258, 1 << 16)

    def step():
        operations = [
            dist.P2POp(dist.isend, x[1], (rank - 1) % ranks),
            dist.P2POp(dist.irecv, x[257], (rank + 1) % ranks),
            dist.P2POp(dist.isend, x[256], (rank + 1) % ranks),
            dist.P2POp(dist.irecv, x[0], (rank - 1) % ranks),
        ]
        for work in dist.batch_isend_irecv([operations[place] for place in order]):
            work.wait()
        return x * 2

    return step


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2), (1, 3, 0, 2)])
def test_a_batch_of_messages_in_one_tensor_does_not_deadlock(order):
    workload = capture(partial(halo_exchange, order), 4)
    ops = workload.steps[0].ops
    messages = [number for number, op in enumerate(ops) if op.kind == "collective"]
    assert len(messages) == 4
    for later in messages:
        assert not any(waits_for(ops, later, earlier) for earlier in messages if earlier < later)
        assert waits_for(ops, len(ops) - 1, later)
    assert predict(workload, platform("h100-8", num_ranks=4)).seconds > 0


def chunks_of_one_buffer():
    return list(torch.empty(4, 8, 64))


@pytest.mark.parametrize(
    "buffers", [chunks_of_one_buffer, lambda: [vector() for _ in range(4)]], ids=["one", "four"]
)
def test_slices_of_one_buffer_are_independent(buffers):
    def step():
        made, works = buffers(), []
        for each in made:
            torch.mul(vector(), 2, out=each)
            works.append(dist.all_reduce(each, async_op=True))
        for work in works:
            work.wait()
        return made[1] * 2

    ops = capture(lambda: step, 4).steps[0].ops
    reduced = [number for number, op in enumerate(ops) if op.kind == "collective"]
    products = [number for number, op in enumerate(ops) if op.name == "aten.mul"]
    for earlier, later in zip(reduced, products[1:4], strict=False):
        assert not waits_for(ops, later, earlier)
    assert waits_for(ops, len(ops) - 1, reduced[1])


@pytest.mark.parametrize("part", [lambda x: x[2:6], lambda x: x[:, 1:3], lambda x: x.t()])
def test_views_of_the_same_bytes_are_ordered(part):
    def step():
        x = torch.empty(8, 8)
        work = dist.all_reduce(x, async_op=True)  # noqa: F841 - never waited for
        return part(x) * 2

    ops = capture(lambda: step, 4).steps[0].ops
    reduced = next(number for number, op in enumerate(ops) if op.kind == "collective")
    assert waits_for(ops, len(ops) - 1, reduced)


def test_the_host_waits_where_it_synchronizes():
    def step():
        x = torch.empty(WIDTH, WIDTH)
        y = x @ x
        torch.cuda.synchronize()
        return y + 1

    ops = capture(lambda: step, 1).steps[0].ops
    assert [op.kind for op in ops] == ["kernel", "host", "kernel"]
    assert ops[1].after == (0,)


def test_streams_and_events_order_what_they_are_told_to():
    def step():
        side, event = torch.cuda.Stream(), torch.cuda.Event()
        x, y = vector(), vector()
        first = x * 2
        with torch.cuda.stream(side):
            aside = y.exp()  # noqa: F841 - nobody reads it
            event.record()
        before = first.abs()  # noqa: F841
        torch.cuda.current_stream().wait_event(event)
        return first.neg()

    ops = capture(lambda: step, 1).steps[0].ops
    number = {op.name: n for n, op in enumerate(ops)}
    assert not waits_for(ops, number["aten.exp"], number["aten.mul"])
    assert not waits_for(ops, number["aten.abs"], number["aten.exp"])
    assert waits_for(ops, number["aten.neg"], number["aten.exp"])


def products(count, width=WIDTH, inner=WIDTH):
    def pair():
        up, down = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)
        return nn.Sequential(up, down).to(torch.bfloat16)

    return nn.Sequential(*(pair() for _ in range(count)))


def tensor_parallel():
    mesh = init_device_mesh("cuda", (8,))
    model = products(4, inner=4 * WIDTH)
    for layer in model:
        parallelize_module(layer, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    x = torch.empty(4096, WIDTH, dtype=torch.bfloat16)
    return torch.no_grad()(lambda: model(x))


def tensor_parallel_by_hand():
    model = products(4, inner=4 * WIDTH // 8)
    x = torch.empty(4096, WIDTH, dtype=torch.bfloat16)

    def step():
        y = x
        for layer in model:
            y = layer(y)
            dist.all_reduce(y)

    return torch.no_grad()(step)


def test_parallelize_module_takes_what_the_same_written_by_hand_takes():
    split, hand = predicted(tensor_parallel, 8), predicted(tensor_parallel_by_hand, 8)
    assert split.seconds == pytest.approx(hand.seconds, rel=0.01)
    assert split.breakdown["exposed"] == pytest.approx(hand.breakdown["exposed"], rel=0.01)
    assert split.breakdown["exposed"] > 1e-3  # four sums of 64 MiB, and nothing to hide them


def chain():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, x = products(1), torch.empty(WIDTH, WIDTH, dtype=torch.bfloat16)

    def step():
        if rank:
            dist.recv(x, rank - 1)
        y = model(x)
        if rank < ranks - 1:
            dist.send(y, rank + 1)

    return torch.no_grad()(step)


def test_a_chain_of_ranks_takes_as_long_as_its_ranks_one_after_another():
    alone = predicted(chain, 1).seconds
    for ranks in (2, 4, 8):
        assert predicted(chain, ranks).seconds > ranks * 0.98 * alone


@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
@pytest.mark.parametrize("ranks", [2, 8])
def test_a_pipeline_has_its_bubble(schedule, ranks):
    micro_batches, tokens, width = 8, 2048, 4096

    def prepare():
        rank = dist.get_rank()
        shape = torch.empty(tokens, width, dtype=torch.bfloat16, requires_grad=True)
        stage = PipelineStage(
            products(2, width, width),
            rank,
            dist.get_world_size(),
            torch.device("cuda"),
            input_args=(shape,),
            output_args=(shape,),
        )
        run = schedule(stage, micro_batches, loss_fn=nn.MSELoss())
        x = torch.empty(micro_batches * tokens, width, dtype=torch.bfloat16)
        last = rank == dist.get_world_size() - 1
        return lambda: run.step(*(() if rank else (x,)), **({"target": x} if last else {}))

    busy = predicted(prepare, 1).seconds
    expected = busy * (micro_batches + ranks - 1) / micro_batches
    # The first stage needs no gradient of its input: its backward pass is shorter.
    assert predicted(prepare, ranks).seconds > 0.9 * expected
