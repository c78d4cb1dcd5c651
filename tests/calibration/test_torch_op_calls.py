"""Ops of captured steps as calls that are carried out by themselves."""

import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch_step_prediction import warm_sum  # noqa: E402
from benchmarks.torch_trained_models import training  # noqa: E402
from weft.calibration.torch_op_calls import OpCall, TensorSpec  # noqa: E402
from weft.calibration.torch_op_grid import samples  # noqa: E402
from weft.calibration.torch_op_times import OpTime  # noqa: E402
from weft.calibration.torch_timed_steps import captured_step  # noqa: E402
from weft.hardware import platform  # noqa: E402
from weft.hardware.measured import Ddp, TorchHost  # noqa: E402
from weft.local_runs.synthetic_models import SyntheticDlrm, SyntheticTransformer  # noqa: E402

pytestmark = pytest.mark.torch
DLRM = SyntheticDlrm(((50, 2, 0.0), (70, 3, 1.05), (90, 1, 0.0)), 8, (16, 8), (16, 1), 12)
GPT2 = SyntheticTransformer("gpt2", 16, 1, 2, 32, 64, 8, 4, 1)
MODELS = (DLRM, GPT2, replace(GPT2, model="bert"), replace(GPT2, model="llama"))


def _captured(model):
    zipfs = {rows: zipf for rows, _, zipf in model.tables} if model is DLRM else {}
    step = partial(training, model)
    return captured_step(step, 2, name=model.model, zipfs=zipfs, every_rank=model is DLRM)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.model)
def test_every_op_of_a_step_can_be_carried_out_by_itself(model):
    found = _captured(model)
    assert len(found.unique) > 20
    drawn = np.random.default_rng(0)
    with torch.no_grad():
        for call in found.unique:
            args, kwargs = call.made(drawn)
            call.function(*args, **kwargs)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.model)
def test_every_op_has_its_call(model):
    found = _captured(model)
    for step in found.graph.steps:
        assert sorted(found.calls[step.ranks[0]]) == list(range(len(step.ops)))


def test_ranks_of_a_dlrm_hold_different_tables_and_meet_in_the_same_collectives():
    found = _captured(DLRM).graph
    kinds = [[op.collective.kind for op in step.ops if op.collective] for step in found.steps]
    assert len(found.steps) == 2
    assert kinds[0] == kinds[1]
    assert kinds[0].count("all_to_all") == 2
    assert "all_reduce" in kinds[0]


def test_calls_can_be_pickled():
    calls = _captured(DLRM).unique
    assert pickle.loads(pickle.dumps(calls)) == calls


def test_a_timed_step_lies_between_its_hot_and_its_cold_sum():
    found, here = _captured(MODELS[1]), platform("cpu")
    times = {call: OpTime(2e-3, 1e-3) for call in found.unique}
    ops = found.timed(times, here, "gloo").steps[0].ops
    seconds = [op.seconds for op in ops if op.kind == "kernel"]
    assert all(1e-3 <= each <= 2e-3 for each in seconds if each)
    assert warm_sum(found, times) == pytest.approx(1e-3 * len(seconds))
    assert seconds.count(0.0) == 2 * len(list(_parameters()))  # copies of DDP, in and out


def test_the_host_and_ddp_are_added():
    host = TorchHost(1e-6, 2e-6, -1.0, ddp={"gloo": Ddp(5e-4, 1e-5, 1e-9)})
    found, here = _captured(MODELS[1]), replace(platform("cpu"), torch=host)
    times = {call: OpTime(2e-3, 1e-3) for call in found.unique}
    ops = found.timed(times, here, "gloo").steps[0].ops
    forward = [op.host for op in ops if op.phase == "forward"]
    assert min(forward) == pytest.approx(1e-6)
    assert max(forward) > 3e-6  # with views before it
    assert {op.host for op in ops if op.phase == "optimizer"} == {0.0}
    assert all(op.seconds <= 1e-3 for op in ops if op.phase == "optimizer")
    count = len(list(_parameters()))
    nbytes = sum(4 * each.numel() for each in _parameters())
    assert ops[-1].seconds == pytest.approx(5e-4 + 1e-5 * count + 1e-9 * nbytes, rel=1e-3)


def _parameters():
    from weft.local_runs.torch_synthetic_models import TorchTransformer as Built

    return Built(GPT2).parameters()


def test_lookups_draw_their_rows_below_the_table_and_by_its_distribution():
    rows = TensorSpec((10_000,), (1,), "int64", 50, 1.05).make(np.random.default_rng(0))
    counts = np.bincount(rows.numpy(), minlength=50)
    assert counts.sum() == 10_000
    assert counts.max() > 5 * np.median(counts)


def test_sparse_gradients_have_as_many_rows_as_were_looked_up():
    made = TensorSpec((40, 4), (), "float32", 1, 0.0, 0, 12).make(np.random.default_rng(0))
    assert made.layout == torch.sparse_coo
    assert made._nnz() == 12


def test_samples_of_the_grid_can_be_carried_out():
    drawn = np.random.default_rng(0)
    every = samples()
    assert {each.family for each in every} >= {"gemm", "attention-backward", "norm", "copy"}
    with torch.no_grad():
        for sample in every[::5]:
            args, kwargs = sample.call.made(drawn)
            sample.call.function(*args, **kwargs)


def test_a_call_names_its_overload():
    assert OpCall("aten::add.Tensor", ()).function is torch.ops.aten.add.Tensor
    assert OpCall("aten::mm", ()).function is torch.ops.aten.mm.default


def test_a_sparse_gradient_is_handed_on_and_not_copied():
    ops = _captured(DLRM).graph.steps[0].ops
    names = [op.name for op in ops if op.phase == "backward"]
    assert "aten.clone" not in names[names.index("aten._embedding_bag_backward") :]
