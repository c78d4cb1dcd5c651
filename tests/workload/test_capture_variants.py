"""Ordinary training code is predicted, or refused with the user's line and the way out."""

from functools import partial

import pytest

pytest.importorskip("torch")

import torch

from tests.workload import torch_variants as variants
from weft.errors import CaptureError
from weft.hardware import platform
from weft.planner.predict import predict
from weft.workload import torch_recorder
from weft.workload.torch_capture import capture

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
EVERY = [(made, ranks) for ranks, all_of in variants.VARIANTS.items() for made in all_of]


def captured(made, ranks=1):
    return capture(made, ranks, name=variants.name_of(made))


def families(workload):
    return [op.cost.family for op in workload.ops() if op.cost is not None]


@pytest.mark.parametrize(
    ("made", "ranks"), EVERY, ids=[variants.name_of(made) for made, _ in EVERY]
)
def test_ordinary_training_code_is_predicted(made, ranks):
    workload = captured(made, ranks)
    found = predict(workload, platform("h100-8", num_ranks=ranks))
    assert 0 < found.low <= found.seconds <= found.high
    assert workload.memory is not None
    assert workload.memory.total > 0


@pytest.mark.parametrize("made", variants.REFUSED, ids=variants.name_of)
def test_what_cannot_be_captured_is_refused_with_the_line_of_the_user(made):
    with pytest.raises(CaptureError, match=r"torch_variants\.py:\d+") as refused:
        captured(made)
    assert refused.value.hint


def test_an_error_names_the_line_of_the_user_and_not_of_torch():
    def step():
        return torch.empty(3, 4) @ torch.empty(3, 4)

    with pytest.raises(CaptureError, match=r"test_capture_variants\.py:\d+ \(return torch\.empty"):
        capture(step)


@pytest.mark.parametrize(
    "made",
    [variants.hf_gpt2, variants.hf_bert, variants.hf_vit, variants.hf_llama, variants.hf_deepseek],
    ids=variants.name_of,
)
def test_attention_is_the_kernel_of_a_gpu(made):
    found = families(captured(made))
    assert found.count("attention") == found.count("attention-backward") == 2


def test_attention_outside_autograd_is_the_kernel_of_a_gpu():
    def step():
        query = torch.empty(1, 4, 64, 32)
        mask = torch.ones(64, 64, dtype=torch.bool)
        with torch.inference_mode():
            torch.nn.functional.scaled_dot_product_attention(query, query, query, mask)

    assert "attention" in families(capture(step))


def test_heads_of_two_widths_count_with_both():
    def step():
        query, value = torch.empty(1, 4, 64, 192), torch.empty(1, 4, 64, 128)
        torch.nn.functional.scaled_dot_product_attention(query, query, value)

    cost = next(op.cost for op in capture(step).ops() if op.cost and op.cost.family == "attention")
    assert cost.flops == 2 * 4 * 64 * 64 * (192 + 128)


def test_grouped_products_are_priced_as_products():
    costs = [op.cost for op in captured(variants.experts_by_grouped_products).ops()]
    products = [cost for cost in costs if cost is not None and cost.family == "bmm"]
    assert [cost.flops for cost in products] == [2.0 * 1024 * 128 * 256] * 3
    assert products[0].shape == (8, 128, 256, 128)


def test_a_scaler_of_gradients_does_not_skip_the_optimizer():
    phases = [op.phase for op in captured(variants.automatic_mixed_precision, 8).ops()]
    assert "optimizer" in phases


def test_compiled_code_is_recorded_and_named():
    eager = capture(lambda: variants.training(variants.Transformer().cuda()))
    compiled = captured(variants.compiled)
    assert compiled.steps == eager.steps
    assert [each.name for each in compiled.unsupported] == ["torch.compile"]


def test_a_loop_that_only_data_can_end_is_refused_with_its_line(monkeypatch):
    monkeypatch.setattr(torch_recorder, "MOST_READS", 32)

    def step():
        x = torch.ones(4)
        while (x > 0).any():
            x = x - 1

    with pytest.raises(CaptureError, match=r"test_capture_variants\.py:\d+.*does not end"):
        capture(step)


def test_memory_has_the_state_of_the_optimizer_without_a_warm_up():
    def prepare(warm_up):
        step = variants.training(variants.Transformer(layers=8).cuda())
        for _ in range(warm_up):
            step()
        return step

    first, second = (capture(partial(prepare, warm_up)).memory for warm_up in (0, 1))
    assert first is not None
    assert second is not None
    assert first.optimizer == pytest.approx(2 * first.weights, rel=0.01)
    assert first.total == pytest.approx(second.total, rel=0.01)
    assert first.optimizer == pytest.approx(second.optimizer, rel=0.01)
