"""Layouts of transformers: nothing is lost when work is shared, and ranks agree about it."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from weft.cost.attention import visible_keys
from weft.errors import UsageError
from weft.hardware import platform
from weft.models.named import generate
from weft.models.transformer_layout import Layout
from weft.models.transformer_memory import fullest_memory
from weft.models.transformer_step import build
from weft.models.zoo import MODELS
from weft.planner.predict import predict_seconds
from weft.step import NO_HOST, StepEngine, check

pytestmark = pytest.mark.thorough

SMALL = {"hidden": 512, "heads": 8, "kv_heads": 8, "ffn": 1024, "vocab": 1000, "seq": 256}
EXPERTS = {"expert_ffn": 256, "experts": 8, "topk": 2, "shared_ffn": 256, "dense_layers": 1}


class CountedPrices:
    """Every kernel takes the same time and collectives next to none."""

    def kernel(self, _cost):
        return 1e-3

    def collective(self, _what, _ranks):
        return 1e-6


def made(num_ranks, model="llama-8b", **given):
    settings = {**SMALL, "layers": 4, "batch": num_ranks, **given}
    return generate(model, num_ranks, {key: str(value) for key, value in settings.items()})


def flops(graph):
    """Floating-point operations of all products of all ranks."""
    return sum(
        op.cost.flops * len(step.ranks)
        for step in graph.steps
        for op in step.ops
        if op.cost and op.cost.family in ("gemm", "bmm")
    )


def scores(graph):
    """Pairs of a query and a key of all attention kernels of all ranks."""
    total = 0.0
    for step in graph.steps:
        for op in step.ops:
            if op.cost and op.cost.family == "attention":
                batch, heads, _, queries, keys, _, causal = op.cost.shape[:7]
                total += len(step.ranks) * batch * heads * queries * keys / (2 if causal else 1)
    return total


def moved(graph, *groups):
    """Bytes of collectives of these groups, by kind, summed over classes of ranks."""
    found: Counter[str] = Counter()
    for op in graph.ops():
        if op.collective and op.collective.group in groups:
            found[op.collective.kind] += op.collective.nbytes
    return found


def run(graph):
    machine = platform("h100-8x8", num_ranks=graph.num_ranks)
    return StepEngine(graph, machine, CountedPrices(), host=NO_HOST).run(pressure=0)


LAYOUTS = st.fixed_dictionaries(
    {
        "tp": st.sampled_from((1, 2)),
        "cp": st.sampled_from((1, 2)),
        "cp_kind": st.sampled_from(("ring", "allgather", "ulysses")),
        "pp": st.sampled_from((1, 2, 4)),
        "sp": st.booleans(),
        "tp_overlap": st.booleans(),
        "zero": st.sampled_from((0, 1, 2, 3)),
        "overlap_param": st.booleans(),
        "overlap_grad": st.booleans(),
        "reshard": st.booleans(),
        "prefetch": st.sampled_from((0, 1, 3)),
        "schedule": st.sampled_from(("1f1b", "gpipe", "zb")),
        "recompute": st.sampled_from(("none", "selective", "selective_op", "full")),
        "tied": st.booleans(),
        "lora": st.sampled_from((0, 0, 8)),
        "mtp": st.sampled_from((0, 1)),
        "clip": st.booleans(),
    }
)


@given(options=LAYOUTS, experts=st.booleans(), latent=st.booleans(), ep=st.sampled_from((1, 2, 4)))
@settings(max_examples=120, deadline=None)
def test_ranks_of_every_layout_agree_about_their_collectives(options, experts, latent, ep):
    extra = {"ep": ep, **EXPERTS} if experts else {}
    if latent:
        extra |= {"q_rank": 64, "kv_rank": 32, "rope_dim": 16, "kv_heads": 0}
    num_ranks = 4 * options["tp"] * options["cp"] * options["pp"]
    graph = made(num_ranks, **options, **extra, batch=32)
    check(graph)
    assert run(graph).seconds > 0


@given(options=LAYOUTS, experts=st.booleans(), etp=st.sampled_from((0, 1)))
@settings(max_examples=80, deadline=None)
def test_no_product_is_lost_or_done_twice(options, experts, etp):
    # the policy by op keeps scattered sums, and then computes no projection again
    assume(not (options["recompute"] == "selective_op" and options["sp"] and options["tp"] > 1))
    extra = {"ep": 2, "etp": etp, **EXPERTS} if experts else {}
    num_ranks = 4 * options["tp"] * options["cp"] * options["pp"]
    alone = {k: options[k] for k in ("recompute", "tied", "mtp", "lora")}
    whole = made(1, **alone, **{k: v for k, v in extra.items() if k in EXPERTS}, batch=32)
    spread = made(num_ranks, **options, **extra, batch=32)
    # routers and the down-projections of adapters are on every rank of tp
    slack = 0.02 if options["tp"] > 1 and (experts or options["lora"]) else 1e-9
    assert flops(spread) == pytest.approx(flops(whole), rel=slack)
    assert scores(spread) == pytest.approx(scores(whole), rel=1e-9)


@given(options=LAYOUTS, experts=st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_weight_is_reduced_once(options, experts):
    options = options | {"lora": 0, "schedule": "1f1b", "zero": min(1, options["zero"])}
    extra = {"ep": 2, **EXPERTS} if experts else {}
    num_ranks = 4 * options["tp"] * options["cp"] * options["pp"]
    graph = made(num_ranks, **options, **extra, batch=num_ranks * 2)
    kind = "reduce_scatter" if options["zero"] else "all_reduce"
    dense, expert = moved(graph, "dp")[kind], moved(graph, "edp")[kind]
    if experts:
        dense, expert = dense * options["tp"], expert * options["tp"] * 2
    else:
        dense *= options["tp"]
    model = made_model(options, extra)
    replicated = (options["tp"] - 1) * 2 * (4 + options["mtp"]) * (2 * 512 + 8 * 512 * experts)
    copies = 2 if options["tied"] and options["pp"] > 1 else 1
    tied = (copies - 1) * 1000 * 512 * 2
    final_norm = 2 * 512
    expected = 2 * model.parameters + replicated + tied - final_norm
    assert dense + expert == pytest.approx(expected, rel=5e-4)


@given(options=LAYOUTS, experts=st.booleans(), zero=st.sampled_from((1, 3)))
@settings(max_examples=40, deadline=None)
def test_every_weight_is_gathered_once(options, experts, zero):
    """As many bytes are gathered as are reduced, by the same groups."""
    options = options | {"lora": 0, "schedule": "1f1b", "zero": zero, "reshard": False}
    extra = {"ep": 2, **EXPERTS} if experts else {}
    num_ranks = 4 * options["tp"] * options["cp"] * options["pp"]
    graph = made(num_ranks, **options, **extra, batch=num_ranks, micro_batch=0)
    for group in ("dp", "edp"):
        found = moved(graph, group)
        assert found["all_gather"] == pytest.approx(found["reduce_scatter"], rel=1e-6)


def made_model(options, extra):
    given: dict[str, Any] = {**SMALL, **{k: v for k, v in extra.items() if k != "ep"}}
    given |= {"layers": 4, "tied": options["tied"], "mtp": options["mtp"]}
    return replace(MODELS["llama-8b"], **given)


@pytest.mark.parametrize(
    "given",
    [
        {"sp": True},
        {"tp_overlap": True},
        {"cp_kind": "ulysses"},
        {"schedule": "gpipe"},
        {"schedule": "zb"},
        {"etp": 1},
        {"overlap_param": False},
        {"shard": 4, "zero": 0},
        {"recompute_layers": 2},
        {"stage_layers": "4"},
        {"prefetch": 5},
        {"reshard": False},
        {"dp": 4},
        {"capacity": 1.5},
        {"window": 256},
        {"window": 128, "full_every": 1},
    ],
)
def test_a_setting_that_changes_nothing_changes_nothing(given):
    plain, same = made(4), made(4, **given)
    ignored = {"shard"}
    assert [s.ops for s in same.steps] == [s.ops for s in plain.steps]
    assert given.keys() & ignored or same.memory == plain.memory


def test_sequence_parallelism_scatters_what_tensor_parallelism_sums():
    summed, scattered = made(2, tp=2, batch=1), made(2, tp=2, sp=True, batch=1)
    assert not moved(summed, "tp")["reduce_scatter"]
    assert moved(scattered, "tp")["all_reduce"] == 12 * 256  # the loss alone
    # forward sums twice a layer and once at each end, and so does the backward pass
    size = 256 * 512 * 2
    assert moved(scattered, "tp")["reduce_scatter"] == (2 * 4 + 1 + 2 * 4 + 1) * size
    norms = {op.cost.shape[0] for op in scattered.ops() if op.name == "norm"}
    assert norms == {128}


@pytest.mark.parametrize("sp", [False, True])
def test_the_sum_of_a_gradient_runs_while_the_weights_gradient_is_computed(sp):
    (step,) = made(2, tp=2, batch=1, sp=sp).steps
    kind = "reduce_scatter" if sp else "all_reduce"
    for number, op in enumerate(step.ops):
        if op.name in ("up weight gradient", "qkv weight gradient"):
            before = step.ops[number - 1]
            assert before.name == kind
            assert step.ops[before.after[-1]].name == op.name.replace("weight", "input")
            assert number - 1 not in op.after
            assert number - 1 in step.ops[number + 1].after


def test_overlapped_sums_are_as_many_bytes_in_pieces():
    whole, pieces = (made(4, tp=4, sp=True, tp_overlap=o, batch=1) for o in (False, True))
    assert moved(whole, "tp") == moved(pieces, "tp")
    assert flops(whole) == flops(pieces)
    count = [sum(op.name == "up" for op in w.ops()) for w in (whole, pieces)]
    assert count == [4, 20]  # the part that is here, and four that are gathered


@pytest.mark.parametrize("tp_overlap", [False, True])
def test_inputs_of_fp8_products_are_gathered_in_fp8(tp_overlap):
    given = {"tp": 4, "sp": True, "batch": 1, "tp_overlap": tp_overlap}
    wide, narrow = (moved(made(4, **given, math=math), "tp") for math in ("", "fp8"))
    head = 256 * 512 * 2  # which is not multiplied in fp8
    assert narrow["all_gather"] - head == (wide["all_gather"] - head) // 2
    assert narrow["reduce_scatter"] == wide["reduce_scatter"]


@pytest.mark.parametrize("tp_overlap", [False, True])
def test_inputs_of_fp4_products_are_gathered_with_their_scales(tp_overlap):
    given = {"tp": 4, "sp": True, "batch": 1, "layers": 1, "tp_overlap": tp_overlap}
    fp8, fp4 = (moved(made(4, **given, math=m), "tp")["all_gather"] for m in ("fp8", "nvfp4"))
    head = 256 * 512 * 2  # which is multiplied in neither
    assert fp4 - head == (fp8 - head) * 9 // 16


def test_weights_in_fp8_are_gathered_as_such():
    weights = [op for op in made(4, zero=3, dtype="fp8").ops() if op.name == "all_gather"]
    assert {op.collective.dtype for op in weights} == {"fp8"}


def test_overlapped_sums_shorten_a_step():
    machine = platform("h100-8", num_ranks=8)
    given = {"tp": "8", "sp": "true", "batch": "2", "layers": "2"}
    plain, overlapped = (
        predict_seconds(generate("llama-70b", 8, {**given, "tp_overlap": o}), machine, host=NO_HOST)
        for o in ("false", "true")
    )
    assert overlapped < plain


def test_a_ring_passes_all_other_keys_and_values_on():
    ring = made(4, cp=4, batch=1, kv_heads=2, layers=1)
    keys = 256 // 4 * 2 * 2 * 64 * 2  # tokens of a rank, heads, keys and values, width, bytes
    assert moved(ring, "cp") == {"send": 3 * keys + 3 * 2 * keys}
    gathered = made(4, cp=4, batch=1, kv_heads=2, layers=1, cp_kind="allgather")
    assert moved(gathered, "cp") == {"all_gather": 2 * 4 * keys, "reduce_scatter": 4 * keys}


def test_zero_bubble_fills_the_drain():
    plain, filled = (
        made(4, pp=4, batch=8, layers=8, schedule=s, micro_batch=1) for s in ("1f1b", "zb")
    )
    assert [len(s.ops) for s in plain.steps] == [len(s.ops) for s in filled.steps]
    assert run(filled).seconds < 0.95 * run(plain).seconds


def test_gpipe_takes_as_long_as_1f1b_and_keeps_more():
    plain, filled = (
        made(4, pp=4, batch=16, layers=8, schedule=s, micro_batch=1) for s in ("1f1b", "gpipe")
    )
    assert run(filled).seconds == pytest.approx(run(plain).seconds, rel=0.1)
    assert filled.memory.activations > 2 * plain.memory.activations


def test_adapters_train_next_to_frozen_weights():
    full, adapted = made(4, batch=4), made(4, batch=4, lora=16)
    names = Counter(op.name for op in adapted.ops())
    assert not [n for n in names if n.endswith("weight gradient") and "adapter" not in n]
    assert names["qkv adapter down weight gradient"] == 4
    adapters = 4 * 16 * (512 + 3 * 512 + 512 + 512)
    assert moved(adapted, "dp") == {"all_reduce": 2 * adapters}
    assert adapted.memory.optimizer == 12 * adapters
    assert flops(adapted) < 0.75 * flops(full)


LATENT = {"kv_rank": 32, "rope_dim": 16, "kv_heads": 0}


@pytest.mark.parametrize(
    "given",
    [{"lora_mlp": True}, {"q_rank": 64, **LATENT}, {"lora_mlp": True, **EXPERTS}],
    ids=["mlp", "latent", "experts"],
)
def test_adapters_have_the_weights_whose_gradients_are_computed(given):
    graph = made(4, batch=4, lora=16, **given)
    sides = [
        op.cost.shape[:2]
        for op in graph.ops()
        if op.cost and "adapter" in op.name and op.name.endswith("weight gradient")
    ]
    weights = sum(high * wide for high, wide in sides)
    assert graph.memory.optimizer == 12 * weights
    assert moved(graph, "dp") == {"all_reduce": 2 * weights}


def test_frozen_ends_of_a_pipeline_exchange_no_gradients():
    assert moved(made(4, pp=4, batch=4, tied=True), "embedding")
    assert not moved(made(4, pp=4, batch=4, tied=True, lora=16), "embedding")


@pytest.mark.parametrize("sp", [False, True])
def test_queries_that_are_not_compressed_are_products_of_the_hidden_state(sp):
    given = {**LATENT, "layers": 1, "batch": 1, "tp": 2, "sp": sp}
    plain, compressed = (moved(made(2, q_rank=rank, **given), "tp") for rank in (0, 64))
    hidden, narrow = 256 * 512 * 2, 256 * 64 * 2  # tokens, width, bytes
    sums = "reduce_scatter" if sp else "all_reduce"
    assert plain[sums] - compressed[sums] == hidden - narrow
    if sp:  # gathered for the product, and again for the gradient of its weights
        assert plain["all_gather"] - compressed["all_gather"] == 2 * hidden - narrow


def test_adapters_are_not_quantized_where_other_products_are():
    graph = made(4, batch=4, lora=16, math="fp8")
    products = [op for op in graph.ops() if op.cost is not None and op.cost.family == "gemm"]
    dtypes = {("adapter" in op.name, op.cost.dtype) for op in products if "head" not in op.name}
    assert {(True, "bf16"), (False, "fp8")} <= dtypes
    assert (True, "fp8") not in dtypes


def test_sharded_replicas_reduce_among_each_other():
    graph = made(8, zero=3, shard=4, batch=8)
    whole = made(8, zero=3, batch=8)
    assert moved(graph, "shard") == moved(whole, "dp")
    assert moved(graph, "replica") == {"all_reduce": moved(whole, "dp")["reduce_scatter"] // 4}
    assert graph.members("shard", 5) == (4, 5, 6, 7)
    assert graph.members("replica", 5) == (1, 5)


def test_prefetching_no_layer_exposes_every_gather():
    none, some = (run(made(4, zero=3, prefetch=p, layers=6)).timeline() for p in (0, 1))
    assert none.makespan >= some.makespan


def test_weights_that_are_not_dropped_are_gathered_once():
    once, twice = (moved(made(4, zero=3, reshard=r), "dp") for r in (False, True))
    layers = once["all_gather"] - 2 * 1000 * 512 * 2
    assert twice["all_gather"] == once["all_gather"] + layers


def test_optimizer_shards_are_gathered_in_the_next_forward_pass_or_behind():
    hidden, exposed = (made(4, zero=1, overlap_param=o) for o in (True, False))
    phases = [
        {op.phase for op in w.ops() if op.collective and op.name == "all_gather"}
        for w in (hidden, exposed)
    ]
    assert phases == [{"forward"}, {"optimizer"}]
    assert moved(hidden, "dp") == moved(exposed, "dp")


@pytest.mark.parametrize("zero", [1, 3])
def test_weights_are_gathered_before_the_input_of_a_stage_has_come(zero):
    graph = made(8, pp=4, batch=8, zero=zero)
    for step in graph.steps:
        received = {n for n, op in enumerate(step.ops) if op.name == "recv"}
        gathers = [op for op in step.ops if op.name == "all_gather"]
        assert gathers
        assert not any(received & set(op.after) for op in gathers)


def test_embedding_and_head_are_gathered_and_reduced():
    dp = made(2, layers=1)
    sharded = made(2, layers=1, zero=3)
    ends = 2 * 1000 * 512
    layer = 4 * 512 * 512 + 3 * 512 * 1024 + 2 * 512
    assert moved(dp, "dp") == {"all_reduce": 2 * (layer + ends)}
    assert moved(sharded, "dp") == {
        "all_gather": 2 * (2 * layer + ends),
        "reduce_scatter": 2 * (layer + ends),
    }


def test_tied_ends_on_two_stages_sum_their_gradients():
    graph = made(4, pp=4, batch=4, tied=True)
    sums = [sum(op.collective is not None and op.collective.group == "embedding" for op in s.ops)
            for s in graph.steps]  # fmt: skip
    assert sums == [1, 0, 0, 1]
    assert graph.members("embedding", 0) == (0, 3)


def test_uneven_stages_hold_what_they_are_told():
    graph = made(4, pp=4, layers=10, batch=1, stage_layers="2-3-3-2")
    held = [sum(op.name == "attention" for op in step.ops) for step in graph.steps]
    assert held == [2, 3, 3, 2]
    counted = made(4, pp=4, layers=10, batch=1, count_ends=True)
    held = [sum(op.name == "attention" for op in step.ops) for step in counted.steps]
    assert held == [2, 3, 3, 2]


def test_expert_groups_may_span_tensor_parallel_ranks():
    graph = made(8, tp=2, sp=True, ep=8, etp=1, **EXPERTS, batch=4)
    assert graph.members("ep", 3) == tuple(range(8))
    assert graph.groups["edp"].size == 1
    layout = Layout(MODELS["mixtral-8x7b"], 8)
    assert "edp" not in layout.groups


def test_an_imbalance_costs_products_and_exchange():
    even, uneven = (made(8, ep=8, **EXPERTS, imbalance=i) for i in (1.0, 1.5))
    assert moved(uneven, "ep")["all_to_all"] == pytest.approx(
        1.5 * moved(even, "ep")["all_to_all"], rel=1e-6
    )
    assert flops(uneven) > flops(even)
    capped = made(8, ep=8, **EXPERTS, imbalance=3.0, capacity=1.5)
    assert moved(capped, "ep") == moved(uneven, "ep")


def test_a_window_is_what_the_kernel_sees():
    graph = made(1, window=64, full_every=2)
    shapes = [op.cost.shape for op in graph.ops() if op.name == "attention"]
    assert [len(shape) > 7 and shape[7] for shape in shapes] == [64, False, 64, False]
    chunks = made(1, window=64, chunked=True, layers=1)
    (shape,) = [op.cost.shape for op in chunks.ops() if op.name == "attention"]
    assert shape[:7] == (4, 8, 8, 64, 64, 64, 1)


def pairs_seen(graph):
    """Pairs of a query and a key that attention kernels of one rank compute."""
    found = 0.0
    for op in graph.ops():
        if op.cost and op.cost.family == "attention":
            batch, heads, _, queries, keys, _, causal, *more = op.cost.shape
            sides = {"queries": queries, "keys": keys, "causal": causal, "window": (*more, 0)[0]}
            seen, _ = visible_keys({k: np.array([float(v)]) for k, v in sides.items()})
            found += batch * heads * queries * float(seen[0])
    return found


@pytest.mark.parametrize("cp_kind", ["allgather", "ulysses", "ring"])
def test_a_window_that_reaches_into_the_part_before_is_computed(cp_kind):
    found = pairs_seen(made(2, cp=2, cp_kind=cp_kind, window=64, layers=1))
    each = [min(place + 1, 64) for place in range(256)]  # keys that each query sees
    # a part is as long as any but the first, which has nothing before it
    assert found == pytest.approx(2 * 8 * sum(each) / 2, rel=0.15 if cp_kind != "ulysses" else 1e-9)
    assert found >= 2 * 8 * sum(each) / 2 * (1 - 1e-9)


@pytest.mark.parametrize("cp_kind", ["allgather", "ulysses", "ring"])
def test_a_window_that_is_longer_than_a_part_is_not_the_whole_sequence(cp_kind):
    found = pairs_seen(made(4, cp=4, cp_kind=cp_kind, window=96, layers=1, batch=1))
    each = [min(place + 1, 96) for place in range(256)]  # keys that each query sees
    assert found == pytest.approx(8 * sum(each) / 4, rel=0.02)


@pytest.mark.parametrize(
    ("ranks", "given", "message"),
    [
        (8, {"cp": 3}, "do not divide into tp 1 times pp 1 times cp 3"),
        (8, {"cp": 8, "seq": 250}, "250 tokens do not divide into 16 parts"),
        (8, {"dp": 4}, r"times dp 4 is 4 \(got 8 ranks\)"),
        (8, {"tp": 8, "kv_heads": 6, "heads": 24, "hidden": 768}, "6 kv_heads do not divide"),
        (8, {"experts": 6, "ep": 4}, "ep 4 must divide the 6 experts"),
        (8, {"experts": 2, "topk": 4}, r"1 to 2, the experts \(got 4\)"),
        (8, {"experts": 2, "topk": 0}, "topk: must be at least 1"),
        (8, {"grad_dtype": "nvfp4"}, "no collective moves nvfp4"),
        (8, {"cp": 8, "cp_kind": "ulysses", "heads": 4, "kv_heads": 4}, "4 heads a rank"),
        (8, {"cp_kind": "star"}, "unknown cp_kind 'star'"),
        (8, {"schedule": "zig"}, "unknown schedule 'zig'"),
        (8, {"recompute": "half"}, "unknown recompute 'half'"),
        (8, {"zero": 4}, "stages are 0 to 3"),
        (8, {"shard": 3}, "shard 3 does not divide the 8 ranks"),
        (8, {"etp": 3, "experts": 8}, "etp must be 1 or tp 1"),
        (4, {"pp": 4, "stage_layers": "1-1-1"}, r"3 counts with 3 layers \(expected 4 with 4\)"),
        (4, {"pp": 4, "schedule": "zb", "interleave": 2, "layers": 8}, "has one chunk a stage"),
        (4, {"pp": 2, "ep": 2, "ep_overlap": True, "schedule": "zb", **EXPERTS}, "as 1f1b does"),
        (8, {"batch": 4}, "8 data-parallel ranks are more than the 4 samples"),
        (8, {"cp": 2, "mode": "prefill"}, "only training"),
        (8, {"layers": 10**9}, "at most 100,000 can be laid out"),
    ],
)
def test_layouts_that_do_not_divide_are_named(ranks, given, message):
    with pytest.raises(UsageError, match=message) as found:
        made(ranks, **given)
    assert found.value.hint


def test_torchtitans_policy_computes_keys_projection_and_up_again():
    model = replace(MODELS["llama-8b"], layers=2, batch=1, recompute="selective_op")
    (step,) = build("m", model, 1).steps
    (plain,) = build("m", replace(model, recompute="none"), 1).steps
    again = Counter((op.name, op.cost) for op in step.ops) - Counter(
        (op.name, op.cost) for op in plain.ops
    )
    products = {name: cost.shape for name, cost in again if cost and cost.family == "gemm"}
    assert products == {
        "keys": (8192, 1024, 4096),
        "projection": (8192, 4096, 4096),
        "up": (8192, 14336, 4096),
    }
    assert "attention" not in {name for name, _ in again}


def test_torchtitans_policy_keeps_less_than_none_and_more_than_full():
    model = replace(MODELS["llama-8b"], batch=4)
    kept = [
        fullest_memory(each, Layout(each, 1)).activations
        for each in (replace(model, recompute=r) for r in ("none", "selective_op", "full"))
    ]
    assert kept[0] > kept[1] > kept[2]
