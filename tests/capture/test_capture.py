"""Torch steps written down without a GPU: ops, collectives, streams, memory."""

import subprocess
import sys
from functools import partial

import pytest

pytest.importorskip("torch")

import torch

from tests.capture import torch_steps as steps
from weft.errors import CaptureError, UsageError
from weft.hardware import platform
from weft.planner.predict import predict
from weft.torch.capture.capture_step import capture

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def ops_of(workload, kind=None):
    return [op for op in workload.steps[0].ops if kind in (None, op.kind)]


def families(workload):
    return [op.cost.family for op in ops_of(workload, "kernel")]


def test_a_step_has_forward_backward_and_optimizer():
    workload = capture(steps.alone)
    phases = list(dict.fromkeys(op.phase for op in ops_of(workload)))
    assert phases == ["forward", "backward", "optimizer"]
    assert families(workload).count("gemm") == 3 + 5  # the first layer's input needs no gradient
    assert not workload.unsupported


def test_a_barrier_after_init_that_the_user_asked_for_does_not_stop_a_capture(monkeypatch):
    monkeypatch.setenv("TORCH_DIST_INIT_BARRIER", "1")
    assert not capture(steps.ddp, 8).unsupported


def test_products_have_their_shapes():
    first = next(op for op in ops_of(capture(steps.alone)) if op.cost.family == "gemm")
    assert first.cost.shape == (8, 64, 64)
    assert first.cost.flops == 2 * 8 * 64 * 64
    assert first.cost.dtype == "fp32"


def test_a_sparse_gradient_changes_rows_and_not_a_table():
    workload = capture(steps.sparse)
    found = {op.name: op.cost for op in ops_of(workload, "kernel")}
    assert found["aten._embedding_bag_backward"].family == "embedding-backward"
    assert found["aten._embedding_bag_backward"].shape == (8, 100_000, 16, 4)
    assert found["aten.add_"].nbytes == 0  # with the lookups that the gradient is of


def test_ddp_reduces_buckets_as_they_fill():
    workload = capture(steps.ddp, 8)
    reduced = [op.collective.nbytes for op in ops_of(workload, "collective")]
    weights = 4 * (1024 * 1024 + 1024) * 4
    assert sum(reduced) == weights
    assert len(reduced) == 2  # a first bucket of one layer, then those that fit into 25 MiB
    first = next(n for n, op in enumerate(workload.steps[0].ops) if op.kind == "collective")
    later = workload.steps[0].ops[first + 1 :]
    assert any(op.cost and op.cost.family == "gemm" for op in later)  # it overlaps with these


def test_fsdp_gathers_and_scatters_each_layer():
    workload = capture(steps.fsdp, 64)
    kinds = [op.collective.kind for op in ops_of(workload, "collective")]
    assert kinds.count("reduce_scatter") == 3
    assert kinds.count("all_gather") >= 3 + 2  # the last layer may stay gathered
    streams = {op.stream for op in ops_of(workload)}
    assert len(streams) > 2  # copies into buffers run on a stream of FSDP's own
    gather = next(op for op in ops_of(workload) if op.kind == "collective")
    assert gather.after  # what is copied in


def test_tensor_parallel_products_are_local_and_summed():
    workload = capture(steps.tensor_parallel, 8)
    first = next(op for op in ops_of(workload) if op.cost and op.cost.family == "gemm")
    assert first.cost.shape == (8, 64, 64)  # a quarter of 256 columns
    summed = ops_of(workload, "collective")[0].collective
    assert (summed.kind, summed.nbytes) == ("all_reduce", 8 * 64 * 4)
    assert workload.members(summed.group, 5) == (4, 5, 6, 7)


def test_stages_of_a_pipeline_are_captured_each():
    workload = capture(steps.pipeline, 2)
    assert [step.ranks for step in workload.steps] == [(0,), (1,)]
    kinds = [[op.collective.kind for op in s.ops if op.collective] for s in workload.steps]
    assert kinds == [["send", "recv"], ["recv", "send"]]
    found = predict(workload, platform("h100-8", num_ranks=2))
    assert found.breakdown["waiting"] > 0


def test_every_rank_can_be_captured_by_itself():
    workload = capture(steps.uneven, 4, every_rank=True)
    assert [step.ranks for step in workload.steps] == [(0,), (1, 2, 3)]
    found = predict(workload, platform("h100-8", num_ranks=4))
    assert found.timeline.waiting[1] > 0
    assert len(capture(steps.alone, 2, every_rank=True).steps) == 1


def test_ranks_that_do_the_same_and_meet_different_ones_are_predicted():
    workload = capture(steps.uneven_pairs, 4, every_rank=True)
    assert sorted(rank for step in workload.steps for rank in step.ranks) == [0, 1, 2, 3]
    found = predict(workload, platform("h100-8", num_ranks=4))
    waiting = {
        rank: found.timeline.waiting[n]
        for n, step in enumerate(workload.steps)
        for rank in step.ranks
    }
    assert waiting[2] > 0
    assert waiting[0] == waiting[1] == pytest.approx(0.0, abs=1e-6)


def test_memory_is_counted():
    memory = capture(steps.alone).memory
    assert memory is not None
    weights = 3 * (64 * 64 + 64) * 4
    assert weights <= memory.weights <= weights + 8 * 64 * 4 + 64
    assert memory.optimizer >= 2 * weights
    assert memory.total >= 4 * weights  # and the gradients


def test_a_value_that_is_read_holds_the_host_up():
    workload = capture(steps.reads_its_loss)
    assert [op.blocking for op in ops_of(workload, "copy")] == [True]
    assert workload.unsupported[0].name == "aten._local_scalar_dense"


def test_shapes_that_depend_on_data_are_named():
    workload = capture(steps.depends_on_data)
    assert workload.unsupported[0].name == "aten.index"
    assert "depends on data" in workload.unsupported[0].why
    found = predict(workload, platform("h100-8", num_ranks=1))
    assert found.row()["unsupported"][0]["count"] == 1


def test_ops_that_no_model_knows_are_named():
    workload = capture(steps.uses_what_nobody_knows)
    assert "svd" in workload.unsupported[0].name
    found = predict(workload, platform("h100-8", num_ranks=1))
    assert found.high > found.seconds > found.low


def test_rms_norm_is_one_kernel_as_on_a_gpu():
    assert families(capture(steps.normalised))[0] == "norm"


def test_the_same_step_is_captured_the_same_twice():
    assert capture(steps.alone).steps == capture(steps.alone).steps


@pytest.mark.parametrize(
    ("step", "message"),
    [(steps.fails, "no data here"), (steps.does_nothing, "did nothing on tensors")],
)
def test_what_cannot_be_captured_is_said_in_a_line(step, message):
    with pytest.raises(CaptureError, match=message):
        capture(step)


def test_no_ranks_are_refused():
    with pytest.raises(UsageError, match="at least 1 rank"):
        capture(steps.alone, 0)


def test_weft_starts_without_torch():
    code = "import sys, weft.models.find, weft.planner.predict; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_causal_only_where_it_was_asked_for(causal):
    costs = [
        op.cost
        for op in capture(partial(steps.attending, causal=causal)).ops()
        if op.cost is not None
    ]
    assert [cost.shape[-1] for cost in costs if cost.family == "attention"] == [int(causal)]


def table():
    return torch.empty(1000, 64)


def rows(count=8):
    return torch.zeros(count, dtype=torch.int64)


ROW, TABLE, INDEX = 64 * 4, 1000 * 64 * 4, 8 * 8
CACHE = 2 * 4 * 16 * 4  # of the elements that a decoding step writes into a cache
# By what a line does: the line, and the bytes that it reads and writes.
TRAFFIC = {
    "copy_": (lambda: table().copy_(table()), 2 * TABLE),
    "zero_": (lambda: table().zero_(), TABLE),
    "fill_": (lambda: table().fill_(2.0), TABLE),
    "normal_": (lambda: table().normal_(), TABLE),
    "add_": (lambda: table().add_(table()), 3 * TABLE),
    "mul_": (lambda: table().mul_(2), 2 * TABLE),
    "x + x": (lambda: (x := table()) + x, 2 * TABLE),
    "x + y": (lambda: table() + table(), 3 * TABLE),
    "out": (lambda: torch.add(table(), table(), out=table()), 3 * TABLE),
    "foreach copy": (lambda: torch._foreach_copy_([table()], [table()]), 2 * TABLE),
    "foreach zero": (lambda: torch._foreach_zero_([table()]), TABLE),
    "foreach add": (lambda: torch._foreach_add_([table()], [table()]), 3 * TABLE),
    "index_copy_": (
        lambda: table().index_copy_(0, rows(), torch.empty(8, 64)),
        2 * 8 * ROW + INDEX,
    ),
    "index_add_": (lambda: table().index_add_(0, rows(), torch.empty(8, 64)), 3 * 8 * ROW + INDEX),
    "index_fill_": (lambda: table().index_fill_(0, rows(), 0.0), 8 * ROW + INDEX),
    "index_put_": (
        lambda: table().index_put_((rows(),), torch.empty(8, 64)),
        2 * 8 * ROW + INDEX,
    ),
    "index_put_ of one number": (
        lambda: table().index_put_((rows(),), torch.zeros(())),
        8 * ROW + INDEX + 4,
    ),
    "index_put_ that adds": (
        lambda: table().index_put_((rows(),), torch.empty(8, 64), accumulate=True),
        3 * 8 * ROW + INDEX,
    ),
    "scatter_": (
        lambda: table().scatter_(0, rows()[:, None], torch.empty(8, 1)),
        2 * 8 * 4 + INDEX,
    ),
    "scatter_add_": (
        lambda: table().scatter_add_(0, rows()[:, None], torch.empty(8, 1)),
        3 * 8 * 4 + INDEX,
    ),
    "cache[:, :, places]": (
        lambda: torch.empty(2, 4, 512, 16).index_copy_(2, rows(1), torch.empty(2, 4, 1, 16)),
        2 * CACHE + 8,
    ),
}


@pytest.mark.parametrize("line", TRAFFIC)
def test_traffic_is_what_is_read_and_written(line):
    run, expected = TRAFFIC[line]
    costs = [op.cost for op in capture(lambda: run).ops() if "zeros" not in op.name]
    assert [cost.nbytes for cost in costs if cost is not None] == [expected]


def test_a_fused_optimizer_reads_four_tensors_and_writes_three():
    def prepare():
        weight = torch.nn.Parameter(torch.empty(1024, 1024))
        optimizer = torch.optim.AdamW([weight], fused=True)

        def step():
            weight.grad = torch.empty_like(weight)
            optimizer.step()

        return step

    costs = [op.cost for op in capture(prepare).ops() if op.name == "aten._fused_adamw_"]
    assert [cost.nbytes for cost in costs if cost] == [pytest.approx(7 * 4 * 1024**2, rel=1e-5)]
