"""Ordinary training code is predicted, or refused with the user's line and the way out."""

import sys
from collections import Counter
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.capture import torch_variants as variants
from weft.errors import CaptureError
from weft.hardware import platform
from weft.planner.predict import predict
from weft.torch.capture import fake_execution as torch_fake_execution
from weft.torch.capture.capture_step import capture

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


@pytest.mark.parametrize("made", variants.NO_STEP, ids=variants.name_of)
def test_a_preparation_that_returns_no_step_is_refused(made):
    with pytest.raises(CaptureError, match=f"^{variants.name_of(made)} returned") as refused:
        captured(made)
    assert "function without arguments" in str(refused.value.hint)


def test_a_preparation_that_needs_arguments_is_refused():
    def prepare(layers, width=8):
        return lambda: torch.empty(layers, width) * 2

    step: Any = prepare
    with pytest.raises(CaptureError, match=r"^prepare needs arguments \(layers\)"):
        capture(step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_grouped_products_of_other_dtypes_run_as_on_a_gpu(dtype):
    def step():
        a = torch.empty(64, 32, dtype=dtype, requires_grad=True)
        b = torch.empty(4, 32, 48, dtype=dtype, requires_grad=True)
        ends = torch.tensor([16, 32, 48, 64], dtype=torch.int32)
        product = torch._grouped_mm(a, b, offs=ends)
        assert product.dtype == dtype
        product.sum().backward()

    assert families(capture(lambda: step)).count("bmm") == 3


@pytest.mark.parametrize("line", variants.LINES, ids=variants.name_of)
def test_lines_of_programs_for_gpus_run(line, monkeypatch, capfd):
    monkeypatch.setattr("sys.argv", ["weft", "predict", "module:step", "--on", "h100-8"])

    def step():
        line()
        return torch.randn(8) * 2

    capture(lambda: step, 2)
    assert not capfd.readouterr().out


def test_statistics_of_a_synchronized_norm_are_exchanged():
    found = capture(lambda: variants._synchronized_norm, 4).ops()
    sizes = [(op.collective.kind, op.collective.nbytes) for op in found if op.collective]
    assert ("all_gather", 4 * (2 * 8 + 1) * 4) in sizes
    assert ("all_reduce", 2 * 8 * 4) in sizes


def test_a_default_device_that_was_set_before_is_that_of_the_capture():
    torch.set_default_device("cuda")
    try:
        assert len(capture(lambda: lambda: torch.randn(8) * 2).steps[0].ops) == 2
    finally:
        torch.set_default_device(None)


def test_all_elements_are_read_at_once():
    ops = capture(lambda: lambda: torch.randn(64).tolist()).ops()
    assert [op.name for op in ops if op.blocking] == ["aten._local_scalar_dense"]


def test_captures_leave_no_hook_for_errors_behind():
    before = sys.excepthook
    capture(lambda: lambda: torch.randn(8) * 2)
    assert sys.excepthook is before


@pytest.mark.parametrize(
    ("raised", "word"),
    [
        (FileNotFoundError("train.bin"), "Files"),
        (ModuleNotFoundError("No module named 'apex'"), "Install"),
        (NameError("name 'modle' is not defined"), "code itself"),
        (NotImplementedError("no rule registered for HigherOrderOperator x"), "Higher-order"),
        (RuntimeError("Cannot access data pointer of Tensor (FakeTensor)"), "fake tensors"),
    ],
)
def test_the_hint_of_an_error_is_chosen_by_the_error(raised, word):
    def step():
        raise raised

    with pytest.raises(CaptureError) as refused:
        capture(step)
    assert word in str(refused.value.hint)


def test_a_model_that_was_made_before_is_named_as_the_cause():
    model = torch.nn.Linear(8, 8)
    with pytest.raises(CaptureError) as refused:
        capture(lambda: lambda: model(torch.empty(4, 8)))
    assert "inside the function" in str(refused.value.hint)


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


LAYERS: dict[str, Any] = {
    "linear": lambda: torch.nn.Linear(64, 64),
    "matmul": lambda: lambda x: x @ x.transpose(-1, -2),
    "convolution": lambda: torch.nn.Conv1d(8, 8, 3),
    "layer norm": lambda: torch.nn.LayerNorm(64),
    "rms norm": lambda: torch.nn.RMSNorm(64),
    "batch norm": lambda: torch.nn.BatchNorm1d(8),
    "group norm": lambda: torch.nn.GroupNorm(2, 8),
    "softmax": lambda: torch.nn.Softmax(-1),
    "attention": variants.Block,
    "reshape": lambda: lambda x: x.transpose(0, 1).reshape(-1) * 2,
}


@pytest.mark.parametrize("layer", LAYERS)
def test_inference_mode_runs_the_ops_of_no_grad(layer):
    def prepare(mode):
        module, x = (
            LAYERS[layer](),
            torch.empty(4, 8, variants.WIDTH if layer == "attention" else 64),
        )
        return mode()(lambda: module(x))

    first, second = (
        [(op.name, op.cost) for op in capture(partial(prepare, mode)).ops()]
        for mode in (torch.no_grad, torch.inference_mode)
    )
    assert first == second


def scaled_product():
    a = torch.empty(64, 32, dtype=torch.float8_e4m3fn)
    b = torch.empty(48, 32, dtype=torch.float8_e4m3fn).t()
    one = torch.ones(())
    return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def half(*shape):
    return torch.empty(*shape, dtype=torch.bfloat16)


def with_new_precision():
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        return torch.empty(8, 8) @ torch.empty(8, 8)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


PRODUCTS = {
    "fp8 to bf16": (scaled_product, "fp8"),
    "bf16 to fp32": (lambda: torch.mm(half(8, 8), half(8, 8), out_dtype=torch.float32), "bf16"),
    "bf16 with bias": (lambda: torch.addmm(half(8), half(8, 8), half(8, 8)), "bf16"),
    "fp32": (lambda: torch.empty(8, 8) @ torch.empty(8, 8), "fp32"),
    "tf32": (with_new_precision, "tf32"),
    "convolution": (lambda: torch.nn.functional.conv1d(vector(), torch.empty(8, 8, 3)), "tf32"),
    "bf16 convolution": (
        lambda: torch.nn.functional.conv1d(half(4, 8, 64), half(8, 8, 3)),
        "bf16",
    ),
}


def vector():
    return torch.empty(4, 8, 64)


@pytest.mark.parametrize("kind", PRODUCTS)
def test_products_are_priced_by_what_is_multiplied(kind):
    step, dtype = PRODUCTS[kind]
    costs = [op.cost for op in capture(lambda: step).ops() if op.cost is not None]
    assert [each.dtype for each in costs if each.flops] == [dtype]


def test_names_that_modules_imported_from_torch_are_torchs_own_after_a_capture():
    before = dict(vars(variants))
    captured(variants.main_of_torchrun, 2)
    assert dict(vars(variants)) == before


def test_every_rank_of_a_pipeline_of_meshes_has_the_same_work():
    steps = captured(variants.three_dimensions, 8).steps
    assert [step.ranks for step in steps] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    kinds = [{op.collective.kind for op in step.ops if op.collective} for step in steps]
    assert kinds[0] == kinds[1]


def test_the_first_cause_of_an_error_is_named():
    def step():
        layers: dict[str, int] = {}
        try:
            return layers["tok_embeddings"]
        except KeyError as error:
            raise RuntimeError("stage 1 failed") from error

    with pytest.raises(CaptureError, match=r"stage 1 failed.*KeyError.*tok_embeddings"):
        capture(step)


def test_a_loop_over_is_completed_holds_the_host_up():
    ops = captured(variants.polls_its_work, 8).steps[0].ops
    assert [op.kind for op in ops] == ["collective", "host", "kernel"]
    assert ops[1].after == (0,)


def flops(workload):
    return [op.cost.flops for op in workload.ops() if op.cost is not None and op.cost.flops]


@pytest.mark.parametrize("first", [False, True], ids=["first layer", "later layer"])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_multiply_what_they_filter(stride, first):
    def prepare(layer, size):
        def step():
            layer(torch.empty(2, 16, size, size, requires_grad=not first)).sum().backward()

        return step

    one = 2 * 2 * 16 * 32 * 3 * 3 * 32 * 32  # of the side where one filter is one element
    down = partial(torch.nn.Conv2d, 16, 32, 3, stride=stride, padding=1)
    found = flops(capture(lambda: prepare(down(), 32 * stride)))
    assert found == [one, one if first else 2 * one]
    up = partial(torch.nn.ConvTranspose2d, 16, 32, 3, stride=stride, padding=1)
    found = flops(capture(lambda: prepare(up(), 32)))
    assert found == [one, one if first else 2 * one]


RNNS = {torch.nn.LSTM: 4, torch.nn.GRU: 3, torch.nn.RNN: 1}


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", RNNS, ids=lambda kind: kind.__name__)
def test_an_rnn_is_the_products_that_cudnn_runs(kind, bidirectional):
    steps, batch, width, layers = 8, 4, 32, 2
    directions = 2 if bidirectional else 1

    def prepare():
        model = kind(64, width, layers, batch_first=True, bidirectional=bidirectional).cuda()
        x = torch.empty(batch, steps, 64)

        def step():
            y, state = model(x)
            assert y.shape == (batch, steps, directions * width)
            assert (state[0] if kind is torch.nn.LSTM else state).shape[0] == layers * directions
            y.sum().backward()
            assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())

        return step

    workload = capture(prepare)
    gates = RNNS[kind] * width
    inner = directions * width
    inputs = 2 * steps * batch * gates * 64, 2 * steps * batch * gates * inner
    states = 2 * steps * batch * gates * width
    forward = directions * (sum(inputs) + 2 * states)
    # cuDNN works out the gradient of the input of the first layer, too.
    assert sum(flops(workload)) == 3 * forward
    assert not workload.unsupported


def test_an_rnn_without_gradients_is_the_same_kernels():
    def prepare(mode):
        model, x = torch.nn.LSTM(64, 32).cuda(), torch.empty(8, 4, 64)
        return mode()(lambda: model(x))

    first, second = (
        flops(capture(partial(prepare, m))) for m in (torch.no_grad, torch.inference_mode)
    )
    assert first == second
    assert len(first) == 1 + 8


def test_ddp_divides_while_it_copies_into_buckets():
    names = [op.name for op in captured(variants.ddp, 8).ops() if op.phase == "backward"]
    assert "aten.div_" not in names


def of_two_layers(find_unused, *, uses_both):
    """Return a preparation of DDP with two layers of 64 x 64, of which a step may use one."""

    def made():
        layers = torch.nn.ModuleList(torch.nn.Linear(64, 64, bias=False) for _ in range(2))
        layers.forward = lambda x: layers[1](layers[0](x)) if uses_both else layers[0](x)
        model = DistributedDataParallel(layers, find_unused_parameters=find_unused)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step():
            model(torch.randn(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return made


def test_ddp_asks_its_host_which_parameters_were_used():
    """One map of the parameters is reduced; what the host reads of its own holds nothing up."""
    usual, asking = (
        capture(of_two_layers(find, uses_both=True), 2).steps[0].ops for find in (False, True)
    )
    more = Counter(op.name for op in asking) - Counter(op.name for op in usual)
    assert more == {"aten.clone": 1, "aten.copy_": 1, "c10d.allreduce_": 1}  # clone: of its output
    assert not any(op.blocking for op in asking)
    assert [op.collective.nbytes for op in asking if op.collective] == [2 * 64 * 64 * 4, 2 * 4]


def test_ddp_leaves_parameters_that_no_rank_used_as_they_are():
    ops = capture(of_two_layers(True, uses_both=False), 2).steps[0].ops
    assert not any(op.blocking for op in ops)
    updates = [op.cost for op in ops if op.phase == "optimizer"]
    assert [cost.nbytes for cost in updates if cost is not None] == [3 * 64 * 64 * 4]


AUTOCAST: dict[str, Any] = {
    "linear": (lambda x: torch.nn.functional.linear(x, torch.empty(64, 64)), "gemm", "bf16"),
    "softmax": (lambda x: x.softmax(-1), "softmax", "fp32"),
    "log_softmax": (lambda x: x.log_softmax(-1), "softmax", "fp32"),
    "layer_norm": (lambda x: torch.nn.functional.layer_norm(x, (64,)), "norm", "fp32"),
    "group_norm": (lambda x: torch.nn.functional.group_norm(x, 2), "norm", "fp32"),
    "exp": (torch.exp, "elementwise", "fp32"),
    "pow": (lambda x: x**2, "elementwise", "fp32"),
    "sum": (torch.sum, "reduction", "fp32"),
    "norm": (torch.norm, "reduction", "fp32"),
    "cumsum": (lambda x: x.cumsum(0), "reduction", "fp32"),
    "relu": (torch.relu, "elementwise", "bf16"),
}


@pytest.mark.parametrize("kind", AUTOCAST)
def test_autocast_runs_ops_in_the_dtypes_of_cuda(kind):
    run, family, dtype = AUTOCAST[kind]

    def step():
        x = torch.empty(16, 64, dtype=torch.bfloat16, requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert torch.is_autocast_enabled()
            assert torch.get_autocast_dtype("cuda") == torch.bfloat16
            y = run(x)
            assert y.dtype == (torch.bfloat16 if dtype == "bf16" else torch.float32)
        assert not torch.is_autocast_enabled()

    costs = [op.cost for op in capture(lambda: step).ops() if op.cost is not None]
    assert (family, dtype) in [(cost.family, cost.dtype) for cost in costs]


def test_autocast_on_cuda_is_fp16_by_default():
    def step():
        with torch.autocast("cuda"):
            return torch.nn.functional.linear(torch.empty(16, 64), torch.empty(64, 64)).dtype

    assert "fp16" in [op.cost.dtype for op in capture(lambda: step).ops() if op.cost]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_attention_is_what_sdpa_kernel_asks_for(dtype):
    def step(*backends):
        x = torch.empty(2, 4, 64, 32, dtype=dtype, requires_grad=True)
        with torch.nn.attention.sdpa_kernel(list(backends)):
            torch.nn.functional.scaled_dot_product_attention(x, x, x).sum().backward()

    backend = torch.nn.attention.SDPBackend
    by_hand = families(capture(lambda: partial(step, backend.MATH)))
    assert "attention" not in by_hand
    assert by_hand.count("bmm") == 6
    assert "attention" in families(capture(lambda: partial(step, backend.EFFICIENT_ATTENTION)))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.squeeze_(),
        lambda x: x.unsqueeze_(0),
        lambda x: x.transpose_(0, 1),
        lambda x: x.t_(),
        lambda x: x.as_strided_((4, 4), (4, 1)),
        lambda x: x.unsafe_split(2),
        lambda x: x.unsafe_chunk(2),
    ],
)
def test_views_are_no_kernels(view):
    def step():
        x = torch.empty(8, 8)
        view(x)
        return torch.empty(4) * 2

    assert [op.name for op in capture(lambda: step).ops()] == ["aten.mul"]


@pytest.mark.parametrize("made", [variants.shuffled_loader, variants.asks_the_device])
def test_a_loader_of_data_does_not_hold_the_host_up(made):
    assert not any(op.blocking or op.kind == "host" for op in captured(made).ops())


@pytest.mark.parametrize(
    ("copy", "waits"),
    [
        (lambda x: x.cpu(), True),
        (lambda x: x.to("cpu"), True),
        (lambda x: x.to(torch.device("cpu")), True),
        (lambda x: x.to("cpu", non_blocking=True), False),
        (lambda x: x.to("cuda"), False),
    ],
)
def test_the_host_waits_for_a_copy_to_it(copy, waits):
    def step():
        x = torch.empty(8, device="cuda") * 2
        return copy(x)

    kinds = [op.kind for op in capture(lambda: step).ops()]
    assert kinds == (["kernel", "host"] if waits else ["kernel"])


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


OPTIMIZERS = (torch.optim.AdamW, torch.optim.Adam, partial(torch.optim.SGD, lr=0.1, momentum=0.9))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_runs_kernels_over_lists_of_parameters(optimizer):
    def prepare(layers):
        model = variants.Transformer(layers).cuda()
        return variants.training(model, optimizer=optimizer(model.parameters()))

    def updates(layers):
        ops = capture(partial(prepare, layers)).ops()
        return [op.name for op in ops if op.phase == "optimizer"]

    assert updates(4) == updates(2)
    assert updates(2)


def test_gradients_are_clipped_by_kernels_over_lists():
    def clipped(layers):
        model = variants.Transformer(layers).cuda()
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        return lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    names = [[op.name for op in capture(partial(clipped, layers)).ops()] for layers in (2, 4)]
    assert names[0] == names[1]
    assert "aten._foreach_norm" in names[0]


def detecting_anomalies(loss):
    with torch.autograd.set_detect_anomaly(True):
        loss.square().backward()
    return True


CHECKS: dict[str, Any] = {
    "isnan": lambda loss: not torch.isnan(loss),
    "isinf": lambda loss: not loss.isinf().item(),
    "any": lambda loss: not torch.isnan(loss.expand(8)).any(),
    "or": lambda loss: not (torch.isnan(loss) | torch.isinf(loss)).any(),
    "logical or": lambda loss: not torch.logical_or(loss.isnan(), loss.isinf()),
    "isfinite": torch.isfinite,
    "not isfinite": lambda loss: not (~torch.isfinite(loss)).any(),
    "by hand": lambda loss: not (loss != loss).any(),  # noqa: PLR0124
    "count": lambda loss: torch.isnan(loss.expand(8)).sum() == 0,
    "count on the host": lambda loss: torch.isnan(loss.expand(8)).sum().item() == 0,
    "as a number": lambda loss: torch.isnan(loss).float().item() == 0.0,
    "anomalies": detecting_anomalies,
    "filled": lambda _: torch.full((3,), 7).max().item() == 7,
    "ones": lambda _: torch.ones(4, 8).sum().item() == 32,
    "written": lambda loss: torch.zeros(()).copy_(loss.detach()).item() == 1.0,
    "partly written": lambda loss: (x := torch.zeros(2))[0].add_(loss) is not None and x.sum() == 1,
}


@pytest.mark.parametrize("kind", CHECKS)
def test_the_branch_of_a_healthy_step_is_taken(kind):
    def step():
        loss = torch.empty(8, requires_grad=True).sum()
        assert CHECKS[kind](loss)

    capture(lambda: step)


def test_a_flag_of_all_ranks_is_that_of_one():
    def step():
        bad = torch.isnan(torch.empty(8)).any().float()
        torch.distributed.all_reduce(bad)
        assert bad.item() == 0

    assert [op.blocking for op in capture(lambda: step, 4).ops()][-1]


def test_gradients_are_clipped_with_a_check_for_numbers_that_are_not_finite():
    def prepare():
        model = variants.Transformer().cuda()

        def step():
            model(variants.tokens()).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)

        return step

    assert any(op.blocking for op in capture(prepare).ops())


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("end", [None, 2])
def test_a_generation_loop_makes_the_tokens_it_is_asked_for(tokens, end):
    hf = pytest.importorskip("transformers")

    def prepare():
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**variants.LLAMA, eos_token_id=end)).eval()
        options = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        ids = torch.randint(512, (2, 16))
        mask = torch.ones_like(ids)
        return torch.no_grad()(lambda: model.generate(ids, attention_mask=mask, **options))

    assert families(capture(prepare)).count("attention") == 2 * tokens


def test_compiled_code_is_recorded_and_named():
    eager = capture(lambda: variants.training(variants.Transformer().cuda()))
    compiled = captured(variants.compiled)
    assert compiled.steps == eager.steps
    assert [each.name for each in compiled.unsupported] == ["torch.compile"]


def test_a_loop_that_only_data_can_end_is_refused_with_its_line(monkeypatch):
    monkeypatch.setattr(torch_fake_execution, "MOST_READS", 32)

    def step():
        x = torch.ones(4)
        while (x > 0).any():
            x = x - 1

    with pytest.raises(CaptureError, match=r"test_capture_variants\.py:\d+.*does not end"):
        capture(step)


# The update over lists holds square roots of all second moments at once; the fused one does not.
@pytest.mark.parametrize(("fused", "copies"), [(True, 2), (None, 3)])
def test_memory_has_the_state_of_the_optimizer_without_a_warm_up(fused, copies):
    def prepare(warm_up):
        model = variants.Transformer(layers=8).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        step = variants.training(model, optimizer=optimizer)
        for _ in range(warm_up):
            step()
        return step

    first, second = (capture(partial(prepare, warm_up)).memory for warm_up in (0, 1))
    assert first is not None
    assert second is not None
    assert first.optimizer == pytest.approx(copies * first.weights, rel=0.01)
    assert first.total == pytest.approx(second.total, rel=0.01)
    assert first.optimizer == pytest.approx(second.optimizer, rel=0.01)


def test_an_optimizer_communicates_and_reads_values_of_single_numbers():
    def prepare():
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = variants.OptimizerByHand(model.parameters())

        def step():
            model(torch.empty(8, 64)).sum().backward()
            optimizer.step()

        return step

    ops = [op for op in capture(prepare, 4).ops() if op.phase == "optimizer"]
    assert [op.collective.nbytes for op in ops if op.collective is not None] == [4]
    assert [op.name for op in ops if op.blocking] == ["aten._local_scalar_dense"]
    assert "aten.zeros_like" not in [op.name for op in ops]


def test_the_counters_of_an_optimizer_are_no_kernels_and_hold_nothing_up():
    ops = captured(variants.ddp, 8).ops()
    assert not any(op.blocking for op in ops)


def test_gradients_that_are_kept_are_there_in_the_forward_pass():
    def prepare(warm_up, to_none):
        model = variants.Transformer(layers=2).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        batch = torch.randint(512, (64, 256), device="cuda")

        def step():
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)

        for _ in range(warm_up):
            step()
        return step

    freed, kept, later = (
        capture(partial(prepare, *options)).memory
        for options in ((0, True), (0, False), (1, False))
    )
    assert freed is not None
    assert kept is not None
    assert later is not None
    assert kept.gradients == pytest.approx(kept.weights, rel=0.1)
    assert kept.total > freed.total
    assert kept.total == pytest.approx(later.total, rel=0.02)


STRIDED = {
    "a transposed clone": (lambda x: x.t().contiguous(), True),
    "a sum with the transposed tensor": (lambda x: x + x.t(), True),
    "a row for all rows": (lambda x: x * x[:1], True),
    "two tensors of one layout": (lambda x: x + x.relu(), False),
    "both operands transposed": (lambda x: x.t() + x.t(), False),
    "a scalar": (lambda x: x * 2, False),
    "another dtype": (lambda x: x.bfloat16(), False),
}


@pytest.mark.parametrize("kind", STRIDED)
def test_kernels_that_compute_where_elements_lie_are_priced_as_such(kind):
    run, strided = STRIDED[kind]

    def step():
        run(torch.empty(256, 256))

    assert ("strided" in families(capture(lambda: step))) is strided
