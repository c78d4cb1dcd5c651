"""What a program that does not fuse adds to a step: losses, softmax, gradients, broadcasts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from weft.models.folding import MANY_OPS, ops_of, shortened
from weft.models.named import job_of
from weft.models.transformer import Transformer
from weft.models.transformer_layout import Layout
from weft.models.transformer_memory import stage_memories
from weft.models.transformer_step import build
from weft.models.zoo import MODELS

GPT = Transformer(512, 2, 8, 2048, 1024, 256, batch=4, micro_batch=1, flash=False)


def names(model, ranks=1):
    return Counter(op.name for op in build("gpt", model, ranks).ops())


def test_an_unfused_loss_makes_passes_over_the_logits():
    fused, apart = names(GPT), names(replace(GPT, fused_loss=False))
    assert fused["loss"] == 4
    assert apart["loss"] == 0
    assert apart["loss exp"] == apart["loss scale backward"] == 4


@pytest.mark.parametrize(("heads", "casts"), [(8, 0), (2, 8)])
def test_the_fused_softmax_needs_a_multiple_of_four_matrices(heads, casts):
    found = names(replace(GPT, heads=heads, fused_softmax=True))
    assert found["mask"] == casts  # two layers, four micro batches
    assert found["cast"] == 2 * casts


def test_a_causal_fused_softmax_moves_less_than_one_of_whole_matrices():
    def rows(causal):
        model = replace(GPT, fused_softmax=True, causal=causal)
        ops = build("gpt", model, 1).ops()
        softmaxes = [op for op in ops if op.name.startswith("softmax")]
        return {op.name: op.cost.shape[0] for op in softmaxes if op.cost is not None}

    masked, whole = rows(causal=True), rows(causal=False)
    assert masked["softmax"] == 0.75 * whole["softmax"]  # one half is read, all is written
    assert masked["softmax backward"] == pytest.approx(whole["softmax backward"] * 2 / 3, rel=1e-3)


def test_gradients_are_added_from_the_second_micro_batch_on():
    found = names(replace(GPT, fused_accumulation=False))
    assert found["accumulate gradients"] == 3 * (2 + 2)  # layers, the head and the embedding
    assert names(GPT)["accumulate gradients"] == 0


EXPERTS = replace(
    MODELS["gpt-oss-20b"], layers=2, seq=1024, batch=8, ep=8, micro_batch=1, fused_experts=False
)


def bytes_of(model, *starts):
    ops = build("experts", model, 8).steps[0].ops
    return sum(op.cost.nbytes for op in ops if op.cost is not None and op.name.startswith(starts))


def test_experts_that_are_not_fused_move_their_tokens_many_times():
    fused = replace(EXPERTS, fused_experts=True)
    assert bytes_of(fused, "experts bias", "experts clamp") == 0
    tokens = 2 * 1024 * EXPERTS.topk * EXPERTS.hidden  # of two layers; as wide as an expert
    # in fp32 a bias is written, read with the result, joined and cast; the gradient comes back
    assert bytes_of(EXPERTS, "experts bias") == 68 * tokens
    assert bytes_of(EXPERTS, "experts clamp") > bytes_of(fused, "activation of experts")
    assert bytes_of(replace(EXPERTS, expert_bias=False, clamped=False), "experts bias") == 0


def test_recomputing_the_activation_of_experts_runs_it_again_and_keeps_less():
    again = replace(EXPERTS, recompute="moe_act")
    assert names(EXPERTS, 8)["experts clamp"] == 2
    assert names(again, 8)["experts clamp"] == names(again, 8)["activation of experts"] == 4
    assert names(again, 8)["experts clamp backward"] == 2
    kept, less = (max(each.activations for each in stage_memories(model, Layout(model, 8)))
                  for model in (EXPERTS, again))  # fmt: skip
    assert kept - less == 2 * 1024 * EXPERTS.topk * EXPERTS.hidden * 2  # its output, in bf16


def test_recomputing_what_latent_attention_expands_runs_it_again_and_keeps_its_inputs_alone():
    plain = replace(EXPERTS, kv_heads=0, head_size=64, q_rank=96, kv_rank=64, rope_dim=32)
    again = replace(plain, recompute="mla_up_proj")
    added = names(again, 8) - names(plain, 8)
    assert added == {"norm": 4, "kv up": 2, "q up": 2, "rotate": 2}
    kept, less = (max(each.activations for each in stage_memories(model, Layout(model, 8)))
                  for model in (plain, again))  # fmt: skip
    assert kept - less == 2 * 1024 * plain.qkv_of(1) * 2  # of two layers, in bf16
    assert names(replace(EXPERTS, recompute="mla_up_proj"), 8) == names(EXPERTS, 8)


def test_positions_turned_by_torchs_kernels_leave_values_alone():
    apart = replace(EXPERTS, fused_rotary=False)
    turned = 2 * 1024 * (64 + 8) * 64  # queries and keys of two layers
    assert bytes_of(apart, "rotate") == (12 + 14) * 2 * turned
    assert bytes_of(apart, "rotate") > 5 * bytes_of(EXPERTS, "rotate")


def test_owners_broadcast_all_weights_behind_the_optimizer():
    model = replace(GPT, batch=8, zero=1, param_broadcast=True)
    ops = build("gpt", model, 8).steps[0].ops
    sent = [op.collective for op in ops if op.collective and op.collective.kind == "broadcast"]
    assert [each.peer for each in sent] == list(range(8))
    whole = sum(op.nbytes for op in sent)
    gathered = sum(
        op.collective.nbytes
        for op in build("gpt", replace(model, param_broadcast=False), 8).steps[0].ops
        if op.collective and op.collective.kind == "all_gather"
    )
    assert whole == pytest.approx(gathered, rel=0.01)


def test_a_chunk_may_hold_the_embedding_or_the_head_alone():
    settings = {"pp": "2", "vp": "4", "layers": "6", "batch": "8", "count_ends": "true"}
    model = job_of("gpt2", 2, settings).model
    assert isinstance(model, Transformer)
    layout = Layout(model, 2)
    assert [len(chunk) for chunk in layout.chunks] == [0, 1, 1, 1, 1, 1, 1, 0]


def test_a_long_step_is_shortened_and_a_short_one_is_not():
    long = job_of("llama-8b", 8, {"pp": "4", "batch": "1024", "micro_batch": "1"}).model
    assert isinstance(long, Transformer)
    short = shortened(long, 8)
    assert ops_of(short, 8) <= MANY_OPS < ops_of(long, 8)
    assert shortened(short, 8) is short
    assert (short.tp, short.pp, short.layers) == (long.tp, long.pp, long.layers)


@pytest.mark.parametrize("mode", ["train", "prefill"])
def test_norms_over_all_heads_sum_squares_over_the_ranks_that_share_them(mode):
    apart = replace(GPT, tp=2, qk_norm=True, mode=mode, flash=True)
    spanning = replace(apart, qk_norm_span=True)
    sent = []
    for model in (apart, spanning):
        what = (op.collective for op in build("gpt", model, 2).ops())
        sent.append(Counter(each.nbytes for each in what if each is not None))
    more = sent[1] - sent[0]
    assert more.total() == names(spanning, 2)["squares"] > 0
    assert set(more) == {8 * spanning.seq * spanning.micro_batch}
    alone = replace(spanning, tp=1)
    assert names(alone)["squares"] == 0
