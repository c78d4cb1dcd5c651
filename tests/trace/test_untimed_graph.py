"""Graphs without times become steps: what runs, once, in which order, and what is not known."""

import json

import pytest
from typer.testing import CliRunner

import weft
from weft.cli.app import app
from weft.errors import UsageError
from weft.step import check
from weft.trace.formats.graph import Graph, GraphNode
from weft.trace.formats.reading import read_untimed
from weft.trace.recorded.untimed_graph import step_of_graph

GPU = "cuda:0"


def tensor(storage, *shape, device=GPU):
    count = 1
    for side in shape:
        count *= side
    return [storage, storage, 0, count, 4, device], list(shape), "Tensor(float)"


def node(number, name, parent, inputs=(), outputs=(), **attributes):
    """One node as ExecutionTraceObserver writes it (schema 1.1)."""
    sides = {}
    for key, given in (("inputs", inputs), ("outputs", outputs)):
        columns = zip(*given, strict=True) if given else ((), (), ())
        names = ("values", "shapes", "types")
        sides[key] = {n: list(c) for n, c in zip(names, columns, strict=True)}
    attrs = [{"name": key, "value": value} for key, value in {"tid": 1, **attributes}.items()]
    return {"id": number, "name": name, "ctrl_deps": parent, "attrs": attrs, **sides}


def iteration(first):
    """A linear layer, its gradient, an all-reduce, a custom op and the optimizer."""
    x, w, y = tensor(1, 512, 256), tensor(2, 256, 1024), tensor(3, 512, 1024)
    grad, on_host = tensor(4, 256, 1024), tensor(9, 8, device="cpu")
    comm = {"collective_name": "allreduce", "in_msg_nelems": 1 << 18, "out_msg_nelems": 1 << 18}
    comm |= {"dtype": "Float", "pg_size": 2, "pg_name": "0"}
    backward = "autograd::engine::evaluate_function: MmBackward0"
    return [
        node(first, "aten::add", 1, [on_host, on_host], [on_host]),
        node(first + 1, "aten::linear", 1, [x, w], [y]),
        node(first + 2, "aten::t", first + 1, [w], [w]),
        node(first + 3, "aten::mm", first + 1, [x, w], [y]),
        node(first + 4, "aten::copy_", first + 3, [x, x], [x]),
        node(first + 5, "mine::op", 1, [y], [y]),
        node(first + 6, backward, 1),
        node(first + 7, "aten::mm", first + 6, [tensor(1, 256, 512), y], [grad]),
        node(first + 8, "record_param_comms", first + 6, [grad], [grad], **comm),
        node(first + 9, "nccl:all_reduce", first + 8, [grad]),
        node(first + 10, "aten::mul", first + 6, [x, x], [x]),
        node(first + 11, "Optimizer.step#SGD.step", 1),
        node(first + 12, "aten::_foreach_add_", first + 11, [w, grad], [w]),
    ]


@pytest.fixture
def path(tmp_path):
    nodes = [node(1, "[pytorch|profiler|execution_trace|process]", 1)]
    nodes += [*iteration(10), *iteration(40)]
    found = tmp_path / "rank0.json"
    found.write_text(json.dumps({"schema": "1.1.0-chakra.0.0.4", "pid": 1, "nodes": nodes}))
    return found


def step_of(path, num_ranks):
    graph = read_untimed(path)
    assert graph is not None
    return step_of_graph(graph, num_ranks)


def test_a_graph_without_times_is_one_iteration_of_its_outermost_kernels(path):
    step = step_of(path, 2)
    check(step)
    ops = step.steps[0].ops
    names = ["aten::mm", "mine::op", "aten::mm", "all_reduce", "aten::mul", "aten::_foreach_add_"]
    assert [op.name for op in ops] == names
    assert [op.phase for op in ops] == ["forward"] * 2 + ["backward"] * 3 + ["optimizer"]
    assert [op.cost.shape for op in ops if op.name == "aten::mm"] == [
        (512, 1024, 256),
        (256, 1024, 512),
    ]
    assert ops[3].collective == weft.step.Collective("all_reduce", 1 << 20, "fp32")


def test_what_uses_reduced_gradients_waits_for_them_and_nothing_else_does(path):
    ops = step_of(path, 2).steps[0].ops
    assert [op.after for op in ops] == [(), (), (), (2,), (), (3,)]


def test_ops_that_no_cost_is_known_of_are_named(path):
    (unknown,) = step_of(path, 2).unsupported
    assert (unknown.name, unknown.count, unknown.nbytes) == ("mine::op", 1, 2 * 4 * 512 * 1024)


def test_a_group_that_is_larger_than_the_job_is_refused(path):
    with pytest.raises(UsageError, match="all_reduce of 2 ranks"):
        step_of(path, 1)


@pytest.mark.parametrize("verb", ["predict", "plan"])
def test_the_command_line_takes_graphs_without_times(path, verb):
    words = [verb, str(path), "--on", "h100-8", "--ranks", "2", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["platform"].startswith("h100-8")


def test_python_takes_graphs_without_times(path):
    packed = path.with_suffix(".et.json.gz")
    packed.write_bytes(path.read_bytes())  # readers look at the bytes, not at the name
    assert weft.predict(packed, "h100-8", num_ranks=2).seconds > 0


def test_chakra_nodes_of_counted_operations_wait_for_what_they_need():
    def made(number, name, needs, **arguments):
        return GraphNode(number, name, needs=needs, is_gpu=True, arguments=arguments)

    sizes = {"In msg nelems": 1 << 20, "Out msg nelems": 1 << 20, "dtype": "Byte"}
    nodes = (
        made(1, "COMP_A", (), Operations=10**12, Bytes=10**6),
        made(2, "AllReduce_B", (1,), **{"Collective name": "all_reduce", **sizes}),
        made(3, "COMP_C", (1,), Operations=10**12, Bytes=10**6),
        made(4, "COMP_D", (2, 3), Operations=10**9, Bytes=10**6),
    )
    step = step_of_graph(Graph("made.et", "chakra", "0.0.4", nodes), 8)
    ops = step.steps[0].ops
    assert [op.after for op in ops] == [(), (0,), (0,), (1, 2)]
    assert [op.cost.flops for op in ops if op.cost] == [1e12, 1e12, 1e9]
    assert weft.predict(step, "h100-8").breakdown["exposed"] == 0.0


def test_a_graph_that_says_nothing_of_its_work_is_refused():
    nodes = (GraphNode(1, "void kernel<int>()", is_gpu=True),)
    with pytest.raises(UsageError, match="no node has shapes"):
        step_of_graph(Graph("made.et", "chakra", "", nodes), 8)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "num_ranks", "kernels", "collectives"),
    [
        ("param_et/resnet_2gpu_rank_et_schema1.1.0.json.gz", 2, 53, 5),
        ("param_et/linear_et.json.gz", 1, 0, 0),
        ("chakra/pytorch_et_1.0.2-chakra.0.0.4.json.gz", 2, 0, 10),
    ],
)
def test_recorded_graphs_have_their_convolutions_and_sums(
    data, name, num_ranks, kernels, collectives
):
    step = step_of(data / name, num_ranks)
    check(step)
    forward = [op for op in step.ops() if op.phase == "forward"]
    assert sum(op.name == "aten::cudnn_convolution" for op in forward) == kernels
    kinds = [op.collective.kind for op in step.ops() if op.collective]
    assert len([kind for kind in kinds if kind != "broadcast"]) == collectives
    assert step.unsupported == ()
    assert 1e-4 < weft.predict(step, weft.platform("a100-8", num_ranks=num_ranks)).seconds < 0.1


def test_ops_move_what_they_read_and_write(tmp_path):
    x, table, rows = tensor(1, 64, 8), tensor(2, 10_000, 8), tensor(3, 64, 8)
    indices = ([4, 4, 0, 64, 8, GPU], [64], "Tensor(long int)")
    nodes = [
        node(2, "aten::copy_", 1, [x, rows], [x]),
        node(3, "aten::zero_", 1, [x], [x]),
        node(4, "aten::add_", 1, [x, rows], [x]),
        node(5, "aten::embedding", 1, [table, indices], [rows]),
    ]
    found = tmp_path / "rank0.json"
    nodes = [node(1, "[pytorch|profiler|execution_trace|process]", 1), *nodes]
    found.write_text(json.dumps({"schema": "1.1.0-chakra.0.0.4", "pid": 1, "nodes": nodes}))
    each = 4 * 64 * 8
    costs = [op.cost for op in step_of(found, 1).ops()]
    assert [cost.nbytes for cost in costs] == [2 * each, each, 3 * each, 2 * each + 64 * 8]
