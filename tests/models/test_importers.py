"""Files of other programs: the model that they describe, and what of them is left out."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.samples import TORCHTITAN
from tests.models.configs import CONFIGS
from weft.errors import FormatError, UsageError, WeftError
from weft.models.find import find_job, find_workload, is_configuration
from weft.models.huggingface import model_of
from weft.models.transformer_layout import Layout
from weft.models.transformer_memory import fullest_memory
from weft.models.zoo import MODELS
from weft.step import check


def imported(path: str, num_ranks: int, settings: dict[str, str] | None = None) -> Any:
    """Return the job of a file."""
    return find_job(path, num_ranks, settings)


def written(path, text):
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return str(path)


@pytest.mark.parametrize(("name", "document"), CONFIGS.items())
def test_a_configuration_is_the_model_of_that_name(name, document):
    model, _ = model_of(document, "config.json")
    known = MODELS[name]
    # where all heads have keys of their own, or a head is as wide as usual, files may say so
    kv, size = known.kv_heads or known.heads, known.head_dim
    same = replace(known, seq=model.seq, batch=model.batch, kv_heads=0, head_size=0)
    assert replace(model, kv_heads=0, head_size=0) == same
    assert (model.kv_heads or model.heads, model.head_dim) == (kv, size)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_can_be_trained(tmp_path, name):
    path = written(tmp_path / "config.json", CONFIGS[name])
    graph = find_workload(path, 8, {"batch": "8", "layers": "4", "seq": "256"})
    check(graph)
    assert graph.name == tmp_path.name


def test_what_is_left_out_is_named():
    model, notes = model_of({**CONFIGS["llama-3-8b"], "residual_gate": True}, "config.json")
    assert notes == ("config.json: not understood and left out: residual_gate",)
    assert model == MODELS["llama-3-8b"]
    model, notes = model_of({**CONFIGS["llama-3-8b"], "torch_dtype": "float32"}, "config.json")
    assert model.dtype == "fp32"
    assert "--set dtype=bf16" in notes[0]
    _, notes = model_of(CONFIGS["deepseek-v3"], "config.json")
    assert any("quantization_config" in note for note in notes)
    assert any("8192 of at most 163840" in note for note in notes)


@pytest.mark.parametrize(("full", "window"), [(28, 0), (0, 4096)])
def test_windows_of_qwen_begin_behind_its_full_layers(full, window):
    changed = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": full}
    model, _ = model_of({**CONFIGS["qwen2.5-7b"], **changed}, "config.json")
    assert model.window == window
    with pytest.raises(FormatError, match="max_window_layers 14 of 28"):
        model_of({**CONFIGS["qwen2.5-7b"], **changed, "max_window_layers": 14}, "config.json")


def test_an_unknown_architecture_is_named_with_the_nearest_and_what_is_missing():
    with pytest.raises(UsageError, match="'llama5'") as error:
        model_of({"model_type": "llama5", "hidden_size": 8}, "config.json")
    assert "llama4" in error.value.hint
    assert "num_hidden_layers" in error.value.hint
    with pytest.raises(UsageError, match="MambaForCausalLM"):
        model_of({"architectures": ["MambaForCausalLM"]}, "config.json")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "many"}, "hidden_size must be a whole number"),
        ({"num_hidden_layers": 0}, "layers must be above zero"),
        ({"vocab_size": -1}, "vocab_size must be a whole number"),
        ({"tie_word_embeddings": "perhaps"}, "must be true or false"),
        (
            {"sliding_window": 8, "layer_types": ["full_attention", "full_attention", "s"]},
            "do not repeat",
        ),
    ],
)
def test_a_broken_configuration_is_named(changed, message):
    with pytest.raises(FormatError, match=message):
        model_of({**CONFIGS["llama-3-8b"], **changed}, "config.json")


@given(
    key=st.sampled_from(sorted(CONFIGS["deepseek-v3"])),
    value=st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text() | st.floats()
    | st.lists(st.integers()) | st.dictionaries(st.text(), st.integers()),
)  # fmt: skip
def test_no_value_of_a_key_ends_in_anything_but_an_error_of_weft(key, value):
    with suppress(WeftError):
        model_of({**CONFIGS["deepseek-v3"], key: value}, "config.json")


TITAN = """
[job]
description = "Llama 3 70B"
[model]
name = "llama3"
flavor = "70B"
converters = ["float8"]
[training]
local_batch_size = 8
seq_len = 4096
steps = 1000
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
[activation_checkpoint]
mode = "full"
"""


def test_a_torchtitan_job_is_a_model_with_its_layout(tmp_path):
    job = imported(written(tmp_path / "train.toml", TITAN), 64)
    expected = replace(
        MODELS["llama-3.1-70b"], seq=4096, batch=64, micro_batch=8, tp=8, dp=8, sp=True, zero=3,
        shard=4, math="fp8", tp_overlap=True, recompute="full", clip=True, grad_dtype="fp32",
        cp_kind="allgather",
    )  # fmt: skip
    assert job.model == expected
    assert job.notes == ()
    assert job.settings["dp"] == 8


@pytest.mark.parametrize(
    ("old", "new", "field", "value"),
    [
        ('mode = "full"', 'mode = "none"', "recompute", "none"),
        ('"full"', '"selective"\nselective_ac_option = "op"', "recompute", "selective_op"),
        ('"full"', '"selective"\nselective_ac_option = "2"', "recompute_layers", 40),
        ("shard_degree = -1", 'shard_degree = 4\nfsdp_reshard_after_forward = "never"', "reshard",
         False),
        ("seq_len = 4096", "seq_len = 4096\nglobal_batch_size = 128", "batch", 128),
    ],
)  # fmt: skip
def test_settings_of_a_torchtitan_job_are_read(tmp_path, old, new, field, value):
    job = imported(written(tmp_path / "train.toml", TITAN.replace(old, new)), 64)
    assert getattr(job.model, field) == value


def piped(tmp_path, *keys, ranks=64):
    """Return the job of a pipeline of torchtitan with these keys."""
    stages = "\n".join(f"pipeline_parallel_{key}" for key in keys)
    text = TITAN.replace("tensor_parallel_degree = 8", stages)
    return imported(written(tmp_path / "train.toml", text), ranks)


_NO_ENDS = ("first_stage_less_layers = 0", "last_stage_less_layers = 0")


def test_a_torchtitan_pipeline_is_read(tmp_path):
    keys = ("degree = 4", 'schedule = "Interleaved1F1B"', "layers_per_stage = 5")
    job = piped(tmp_path, *keys, *_NO_ENDS)
    assert (job.model.pp, job.model.interleave, job.model.schedule) == (4, 4, "1f1b")
    assert not job.model.reshard  # as torchtitan does by default in a pipeline


@pytest.mark.parametrize(
    ("ends", "held"),
    [
        ((), [20, 21, 20, 19]),  # the embedding and the head count as a layer each
        (_NO_ENDS, [20, 20, 20, 20]),
        (("first_stage_less_layers = 0", "last_stage_less_layers = 4"), [21, 21, 21, 17]),
    ],
)
def test_stages_of_torchtitan_have_fewer_layers_at_the_ends(tmp_path, ends, held):
    job = piped(tmp_path, "degree = 4", *ends)
    assert [len(chunk) for chunk in Layout(job.model, 64).chunks] == held


def test_stages_of_torchtitan_that_ranks_cannot_share_are_named(tmp_path):
    with pytest.raises(UsageError, match="makes 17 stages"):
        piped(tmp_path, "degree = 4", "layers_per_stage = 5")


def test_accumulation_around_a_torchtitan_pipeline_is_named(tmp_path):
    text = TITAN.replace("tensor_parallel_degree = 8", "pipeline_parallel_degree = 4")
    for batch, told in ((128, False), (256, True)):
        size = f"seq_len = 4096\nglobal_batch_size = {batch}"
        path = written(tmp_path / "train.toml", text.replace("seq_len = 4096", size))
        notes = " ".join(imported(path, 64).notes)
        assert ("2 pipelines one after another" in notes) == told


@pytest.mark.parametrize(
    ("added", "etp"),
    [("", 1), ("expert_tensor_parallel_degree = 8", 8), ("expert_tensor_parallel_degree = 1", 1)],
)
def test_ranks_of_tensor_parallelism_have_experts_of_their_own_in_torchtitan(tmp_path, added, etp):
    text = TITAN.replace("llama3", "llama4").replace('"70B"', '"17bx16e"')
    text = text.replace("degree = 8", f"degree = 8\nexpert_parallel_degree = 2\n{added}")
    assert imported(written(tmp_path / "train.toml", text), 64).model.expert_tp == etp
    alone = text.replace("expert_parallel_degree = 2", "expert_parallel_degree = 1")
    assert imported(written(tmp_path / "train.toml", alone), 64).model.expert_tp == 8


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('["float8"]', '["quantize.linear.mx"]', "converter quantize.linear.mx is not modelled"),
        ('mode = "full"', 'mode = "memory_budget"', "'memory_budget' is not modelled"),
        ("degree = 8", "degree = 8\ndisable_loss_parallel = true", "disable_loss_parallel"),
        ("[training]", "[experimental]\ncontext_parallel_degree = 2\n[training]",
         "experimental.context_parallel_degree"),
        ("[training]", "[float8]\nenable_fsdp_float8_all_gather = true\n[training]",
         "enable_fsdp_float8_all_gather"),
    ],
)  # fmt: skip
def test_what_a_torchtitan_job_asks_for_and_nothing_stands_for_is_named(tmp_path, old, new, said):
    assert said not in " ".join(imported(written(tmp_path / "a.toml", TITAN), 64).notes)
    job = imported(written(tmp_path / "b.toml", TITAN.replace(old, new)), 64)
    assert said in " ".join(job.notes)


def test_a_torchtitan_model_that_is_not_compiled_runs_eagerly(tmp_path):
    stacks = {"": "torchtitan", '"loss"': "eager", '"model", "loss"': "torchtitan"}
    for parts, stack in stacks.items():
        given = f"components = [{parts}]\n" if parts else ""
        text = f"{TITAN}[compile]\nenable = true\n{given}"
        assert imported(written(tmp_path / "train.toml", text), 64).stack == stack


def test_torchtitan_predicts_one_token(tmp_path):
    text = TITAN.replace("llama3", "deepseek_v3").replace('"70B"', '"671B"')
    assert imported(written(tmp_path / "train.toml", text), 64).model.mtp == 0


def test_torchtitan_computes_in_the_precision_that_is_written(tmp_path):
    wide = TITAN.replace("steps", 'mixed_precision_param = "float32"\nsteps')
    for text, dtype in ((TITAN, "bf16"), (wide, "fp32")):
        assert imported(written(tmp_path / "train.toml", text), 64).model.dtype == dtype


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("shard_degree = -1", "shard_degree = 3", r"is 48 \(got 64 ranks\)"),
        ('flavor = "70B"', 'flavor = "71B"', "unknown model 'llama3 71B'"),
        ("tensor_", 'pipeline_parallel_schedule = "DualPipeV"\npipeline_',
         "'DualPipeV' is not modelled"),
        ("tensor_parallel_degree = 8", "tensor_parallel_degree = 0", "must be above zero"),
        ("seq_len = 4096", "seq_len = 'long'", "seq_len must be a whole number"),
    ],
)  # fmt: skip
def test_a_torchtitan_job_that_cannot_be_is_named(tmp_path, old, new, message):
    with pytest.raises(WeftError, match=message):
        imported(written(tmp_path / "train.toml", TITAN.replace(old, new)), 64)


def test_keys_of_a_torchtitan_job_that_are_not_understood_are_named(tmp_path):
    text = TITAN.replace("seq_len", "ring_size = 4\nenable_cpu_offload = true\nseq_len")
    job = imported(written(tmp_path / "train.toml", text), 64)
    assert "training.ring_size" in " ".join(job.notes)
    assert "enable_cpu_offload is not modelled" in " ".join(job.notes)


MEGATRON = """#!/bin/bash
TP=4
PP=${PP:-2}
export HIDDEN="4096"
MODEL_ARGS=(
    --num-layers 32
    --hidden-size $HIDDEN --ffn-hidden-size 14336   # of Llama 3
    --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --seq-length 8192 --max-position-embeddings 8192
    --swiglu --normalization RMSNorm --position-embedding-type rope
    --untie-embeddings-and-output-weights --disable-bias-linear
    --attention-dropout 0.0 --hidden-dropout 0.0
)
torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL_ARGS[@]} \\
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size $PP \\
    --num-layers-per-virtual-pipeline-stage 4 --sequence-parallel \\
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \\
    --micro-batch-size 1 --global-batch-size=128 --vocab-size 128256 --bf16 \\
    --recompute-granularity selective --lr 3e-4 --clip-grad 1.0
"""


def test_arguments_of_megatron_are_a_model_with_its_layout(tmp_path):
    job = imported(written(tmp_path / "train.sh", MEGATRON), 16)
    expected = replace(
        MODELS["llama-3-8b"], tp=4, pp=2, interleave=4, sp=True, zero=1, batch=128, micro_batch=1,
        recompute="selective", clip=True, grad_dtype="fp32", bucket=160_000_000, fused_loss=False,
    )  # fmt: skip
    assert job.model == expected
    assert job.notes == ()
    check(job.graph())


@pytest.mark.parametrize(
    ("added", "setting", "expected"),
    [
        ("", "fused_loss", False),  # Megatron's own default
        ("--cross-entropy-loss-fusion", "fused_loss", True),
        ("", "fused_accumulation", True),
        ("--no-gradient-accumulation-fusion", "fused_accumulation", False),
        ("", "fused_rotary", True),
        ("--no-rope-fusion", "fused_rotary", False),
        ("--position-embedding-type yarn", "fused_rotary", False),
        ("--num-experts 8", "expert_bias", False),  # --disable-bias-linear is among the others
        ("--num-experts 8 --activation-func-clamp-value 7.0", "clamped", True),
        ("--num-experts 8 --activation-func-clamp-value 7.0", "fused_experts", False),
        ("--num-experts 8 --use-transformer-engine-op-fuser", "fused_experts", True),
        ("--num-experts 8 --recompute-modules moe_act", "recompute", "moe_act"),
        ("--recompute-modules layernorm", "recompute", "none"),
        ("--recompute-modules mla_up_proj", "recompute", "none"),  # has no latent attention
        ("--recompute-modules mla_up_proj --multi-latent-attention", "recompute", "mla_up_proj"),
    ],
)
def test_megatron_says_what_it_fuses_and_recomputes(tmp_path, added, setting, expected):
    job = imported(written(tmp_path / "train.sh", f"{MEGATRON.rstrip()} {added}\n"), 16)
    assert getattr(job.model, setting) == expected
    assert not any("fusion" in note or "clamp" in note for note in job.notes)


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ("--optimizer-cpu-offload --optimizer-offload-fraction 1.0", "optimizer_cpu_offload"),
        ("--recompute-modules core_attn layernorm mlp", "recompute_modules layernorm, mlp"),
        ("--recompute-modules moe_act layernorm --num-experts 8", "recompute_modules layernorm"),
        ("--num-experts 8", "moe_token_dispatcher_type allgather is predicted as alltoall"),
    ],
)
def test_megatron_arguments_that_change_the_step_are_named(tmp_path, added, said):
    job = imported(written(tmp_path / "train.sh", f"{MEGATRON.rstrip()} {added}\n"), 16)
    assert said in " ".join(job.notes)


@pytest.mark.parametrize(
    ("added", "layers", "held"),
    [
        ("", 32, [4] * 8),
        ("--account-for-embedding-in-pipeline-split", 31, [3, *[4] * 7]),
        ("--account-for-loss-in-pipeline-split", 31, [*[4] * 7, 3]),
        (
            "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
            30,
            [3, *[4] * 6, 3],
        ),
    ],
)
def test_the_ends_of_a_megatron_pipeline_may_count_as_layers(tmp_path, added, layers, held):
    text = f"{MEGATRON.rstrip()} {added}\n".replace("--num-layers 32", f"--num-layers {layers}")
    job = imported(written(tmp_path / "train.sh", text), 16)
    assert [len(chunk) for chunk in Layout(job.model, 16).chunks] == held


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("--bf16", "fp32"),
        ("--bf16 --grad-reduce-in-bf16", ""),
        ("--fp16", ""),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", "fp32"),
    ],
)
def test_megatron_reduces_gradients_in_the_precision_it_is_asked_for(tmp_path, precision, expected):
    text = MEGATRON.replace("--bf16", precision)
    assert imported(written(tmp_path / "train.sh", text), 16).model.grad_dtype == expected


def test_a_list_of_megatron_arguments_may_end_in_one_without_a_value(tmp_path):
    text = MEGATRON.replace("--hidden-dropout 0.0", "--hidden-dropout 0.0 --qk-layernorm")
    assert imported(written(tmp_path / "train.sh", text), 16).model.qk_norm


def test_experts_of_megatron_have_biases_unless_they_are_disabled(tmp_path):
    text = MEGATRON.replace("--disable-bias-linear", "--num-experts 8")
    assert imported(written(tmp_path / "train.sh", text), 16).model.expert_bias


def test_megatron_yaml_is_read_as_its_arguments(tmp_path):
    text = """
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --seq-length: 1024
  --micro-batch-size: 4
  --global-batch-size: 32
  --tensor-model-parallel-size: 2
  --context-parallel-size: 2
  --cp-comm-type: a2a
  --num-experts: 8
  --moe-router-topk: 2
  --moe-layer-freq: ([0]*2+[1]*10)
  --moe-token-dispatcher-type: flex
  --moe-flex-dispatcher-backend: hybridep
  --overlap-moe-expert-parallel-comm: true
  --expert-model-parallel-size: 2
  --sequence-parallel: true
  --bf16: true
  --tokenizer-type: NullTokenizer
"""
    job = imported(written(tmp_path / "model_config.yaml", text), 8)
    model = job.model
    assert (model.layers, model.ffn, model.cp_kind, model.experts) == (12, 2048, "ulysses", 8)
    assert (model.dense_layers, model.ep, model.tied, model.dropout) == (2, 2, True, True)
    assert (model.dispatcher, model.ep_overlap) == ("flex", True)
    assert any("vocab" in note for note in job.notes)
    nested = "language_model:\n  num_layers: 2\n  hidden_size: 64\n  num_attention_heads: 4\n"
    nested += "  seq_length: 32\nmodel_parallel:\n  tensor_model_parallel_size: 2\n"
    other = imported(written(tmp_path / "job.yaml", nested), 4)
    assert (other.model.layers, other.model.tp) == (2, 2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--num-layers 32", "", "num_layers is missing"),
        ("--num-layers 32", "--num-layers many", "num_layers must be a whole number"),
        ("--sequence-parallel", "--context-parallel-size 2 --cp-comm-type a2a+p2p",
         "'a2a[+]p2p' is not modelled"),
        ("--swiglu", "--num-experts 8 --moe-layer-freq [0,1,0]", "moe_layer_freq"),
        ("--sequence-parallel", "--decoder-first-pipeline-num-layers 3", "with virtual stages"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_are_named(tmp_path, old, new, message):
    with pytest.raises(WeftError, match=message):
        imported(written(tmp_path / "train.sh", MEGATRON.replace(old, new)), 16)


def test_arguments_that_are_not_understood_are_named(tmp_path):
    text = MEGATRON.replace("--swiglu", "--swiglu --enable-warp-drive 9")
    job = imported(written(tmp_path / "train.sh", text), 16)
    assert "enable_warp_drive" in " ".join(job.notes)


DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": 5e8},
    "optimizer": {"type": "AdamW"},
}


def test_deepspeed_says_how_a_model_is_run(tmp_path):
    path = written(tmp_path / "ds.json", DEEPSPEED)
    job = imported(path, 8, {"model": "llama-3-8b", "seq": "4096"})
    expected = replace(
        MODELS["llama-3-8b"], seq=4096, batch=64, micro_batch=2, dp=8, zero=3, clip=True,
        overlap_param=False, bucket=1_000_000_000,
    )  # fmt: skip
    assert job.model == expected
    config = written(tmp_path / "config.json", CONFIGS["qwen3-30b-a3b"])
    assert imported(path, 8, {"model": config}).model.experts == 128
    check(job.graph())


def test_a_key_that_repeats_another_one_is_not_named(tmp_path):
    config = CONFIGS["gemma-2-9b"] | {"sliding_window_size": 4096}
    job = imported(written(tmp_path / "config.json", config), 8)
    assert not any("not understood" in note for note in job.notes)


def test_deepspeed_leaves_what_is_automatic_to_the_model_and_says_so(tmp_path):
    automatic: dict[str, Any] = {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}
    automatic |= dict.fromkeys(("train_batch_size", "gradient_accumulation_steps"), "auto")
    zero = {"stage": 3, "reduce_bucket_size": "auto"}
    path = written(tmp_path / "ds.json", {**automatic, "zero_optimization": zero})
    job = imported(path, 8, {"model": "llama-3-8b"})
    assert (job.model.dtype, job.model.batch, job.model.zero) == ("bf16", 8, 3)
    assert any("has no batch" in note for note in job.notes)
    plain = written(tmp_path / "plain.json", {"zero_optimization": zero, "train_batch_size": 8})
    assert imported(plain, 8, {"model": "llama-3-8b"}).model.dtype == "fp32"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_batch_size": 63}, "63 is not micro batch 2 x accumulation 4 x 8"),
        ({"zero_optimization": {"stage": 4}}, "must be 0 to 3"),
        ({"zero_optimization": 3}, "must be a table"),
        ({"tensor_parallel": {"autotp_size": 3}}, "3 does not divide 8 ranks"),
    ],
)
def test_deepspeed_that_cannot_be_is_named(tmp_path, changed, message):
    path = written(tmp_path / "ds.json", {**DEEPSPEED, **changed})
    with pytest.raises(WeftError, match=message):
        imported(path, 8, {"model": "llama-3-8b"})


def test_a_file_without_a_model_asks_for_one(tmp_path):
    with pytest.raises(UsageError, match="has no model of its own"):
        imported(written(tmp_path / "ds.json", DEEPSPEED), 8)
    with pytest.raises(UsageError, match="has a model of its own"):
        imported(written(tmp_path / "config.json", CONFIGS["phi-4"]), 8, {"model": "gpt2"})


def test_offloading_is_named_as_not_modelled(tmp_path):
    zero = {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "none"}}
    path = written(tmp_path / "ds.json", {**DEEPSPEED, "zero_optimization": zero, "ring": 1})
    job = imported(path, 8, {"model": "llama-3-8b"})
    notes = " ".join(job.notes)
    assert "offload_param is not modelled" in notes
    assert "offload_optimizer" not in notes
    assert "left out: ring" in notes


@pytest.mark.parametrize(
    ("strategy", "zero", "reshard", "shard"),
    [("FULL_SHARD", 3, True, 0), ("SHARD_GRAD_OP", 3, False, 0), ("HYBRID_SHARD", 3, True, 8)],
)
def test_accelerate_says_how_weights_are_shared(tmp_path, strategy, zero, reshard, shard):
    text = f"""
distributed_type: FSDP
mixed_precision: bf16
num_processes: 16
fsdp_config:
  fsdp_sharding_strategy: {strategy}
  fsdp_activation_checkpointing: true
  fsdp_offload_params: false
"""
    job = imported(written(tmp_path / "fsdp.yaml", text), 16, {"model": "llama-3-8b"})
    model = job.model
    assert (model.zero, model.reshard, model.shard) == (zero, reshard, shard)
    assert any("use --set shard=" in note for note in job.notes) == (shard > 0)
    assert model.recompute == "full"
    assert any("has no batch" in note for note in job.notes)


def test_accelerate_assumes_a_batch_that_the_ranks_can_share(tmp_path):
    path = written(tmp_path / "ddp.yaml", "distributed_type: MULTI_GPU\nmixed_precision: bf16\n")
    for ranks, batch in ((6, 12), (8, 8), (16, 16)):
        job = imported(path, ranks, {"model": "gpt2"})
        assert job.model.batch == batch
        assert job.graph().num_ranks == ranks


def test_an_optimizer_on_the_host_is_named_by_its_old_key_too(tmp_path):
    document = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"cpu_offload": True}}
    path = written(tmp_path / "ds.json", json.dumps(document))
    assert "cpu_offload is not modelled" in " ".join(imported(path, 8, {"model": "gpt2"}).notes)


@pytest.mark.parametrize(
    ("kind", "precision", "expected"),
    [
        ("MULTI_GPU", "bf16", ("bf16", "fp32", "")),  # autocast: weights stay in fp32
        ("MULTI_GPU", "'no'", ("fp32", "", "")),
        ("FSDP", "bf16", ("bf16", "", "")),
        ("DEEPSPEED", "fp8", ("bf16", "", "fp8")),
        ("DEEPSPEED", "'no'", ("fp32", "", "")),
    ],
)
def test_accelerate_sums_gradients_in_the_dtype_of_weights(tmp_path, kind, precision, expected):
    text = f"distributed_type: {kind}\nmixed_precision: {precision}\n"
    job = imported(written(tmp_path / "a.yaml", text), 8, {"model": "gpt2"})
    assert (job.model.dtype, job.model.grad_dtype, job.model.math) == expected
    assert not any("not understood" in note for note in job.notes)


def test_a_second_partition_of_zero_says_what_it_is_predicted_as(tmp_path):
    zero = {"stage": 3, "zero_hpz_partition_size": 8}
    path = written(tmp_path / "ds.json", {**DEEPSPEED, "zero_optimization": zero})
    assert "shared among 8 ranks" in " ".join(imported(path, 16, {"model": "gpt2"}).notes)


def test_what_the_model_of_a_job_leaves_out_is_named_with_the_job(tmp_path):
    config = written(tmp_path / "config.json", CONFIGS["llama-3-8b"] | {"residual_gate": True})
    job = imported(written(tmp_path / "ds.json", DEEPSPEED), 8, {"model": config})
    assert "left out: residual_gate" in " ".join(job.notes)


def test_accelerate_with_deepspeed_is_read_as_deepspeed(tmp_path):
    text = "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n"
    text += "  zero_stage: 2\n  gradient_accumulation_steps: 4\n  offload_param_device: cpu\n"
    job = imported(written(tmp_path / "ds.yaml", text), 8, {"model": "llama-3-8b"})
    assert (job.model.zero, job.model.batch) == (2, 32)
    assert sum("has no batch" in note for note in job.notes) == 1
    assert "offload_param" in " ".join(job.notes)
    path = written(tmp_path / "xla.yaml", "distributed_type: XLA\n")
    with pytest.raises(UsageError, match="XLA is not modelled"):
        imported(path, 8, {"model": "gpt2"})


_MEGATRON = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 "
_STAGES = _MEGATRON + "--pipeline-model-parallel-size {} "
_LONG_NUMBER = "9" * 5000  # more digits than Python reads
_ENDLESS = "a: &a\n  b: *a\nnum_layers: 4\n"
_DOUBLING = "".join(
    f"a{n}: &a{n} {{x: {f'*a{n - 1}' if n else 1}, y: {f'*a{n - 1}' if n else 2}}}\n"
    for n in range(40)
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.yaml", _ENDLESS),
        ("t.yaml", _DOUBLING + "num_layers: 4\nhidden_size: *a39\n"),
        ("t.sh", _MEGATRON + "--window-size --5"),
        ("t.sh", _MEGATRON + f"--num-experts 2 --moe-layer-freq {_LONG_NUMBER}"),
        ("t.sh", _STAGES.format(2) + "--decoder-first-pipeline-num-layers 9"),
        (
            "t.sh",
            _STAGES.format(2**31) + "--decoder-last-pipeline-num-layers 1",
        ),
        (
            "config.json",
            json.dumps(CONFIGS["mpt-7b"] | {"expansion_ratio": 1e308}),
        ),
    ],
    ids=["endless", "doubling", "window", "frequency", "stage", "stages", "ratio"],
)
def test_hostile_values_are_refused_in_a_line(tmp_path, name, text):
    with suppress(WeftError):
        job = imported(written(tmp_path / name, text), 8)
        assert fullest_memory(job.model, Layout(job.model, 8)).total > 0


def test_numbers_as_keys_of_yaml_are_named(tmp_path):
    path = written(tmp_path / "a.yaml", "distributed_type: NO\n7: 1\n1.5: 2\nfsdp: 1\n")
    job = imported(path, 8, {"model": "gpt2"})
    assert any("left out: 1.5, 7, fsdp" in note for note in job.notes)


@pytest.mark.parametrize(
    ("written", "dtype"), [("no", "fp32"), ("'no'", "fp32"), ("bf16", "bf16"), ("FP16", "fp16")]
)
def test_accelerate_computes_in_the_precision_that_is_written(tmp_path, written, dtype):
    path = written_precision(tmp_path, written)
    assert imported(path, 8, {"model": "gpt2"}).model.dtype == dtype


def test_accelerate_with_a_precision_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(UsageError, match="bf61"):
        imported(written_precision(tmp_path, "bf61"), 8, {"model": "gpt2"})


def written_precision(folder, precision):
    return written(folder / "a.yaml", f"distributed_type: NO\nmixed_precision: {precision}\n")


def test_a_long_option_of_torchtitan_is_no_number(tmp_path):
    changed = TORCHTITAN.decode().replace(
        'mode = "selective"', f'mode = "selective"\nselective_ac_option = "{_LONG_NUMBER}"'
    )
    assert imported(written(tmp_path / "t.toml", changed), 8).model.recompute == "selective_op"


def test_files_of_no_known_program_are_named(tmp_path):
    with pytest.raises(FormatError, match="not a configuration of Megatron-LM or accelerate"):
        imported(written(tmp_path / "x.yaml", "a: 1\n"), 8)
    with pytest.raises(FormatError, match="is not YAML"):
        imported(written(tmp_path / "x.yaml", "a: [1\n"), 8)
    with pytest.raises(FormatError, match="cannot read"):
        imported(str(tmp_path / "none.yaml"), 8)
    assert not is_configuration(written(tmp_path / "trace.json", {"traceEvents": []}))
    assert is_configuration(written(tmp_path / "config.json", CONFIGS["phi-4"]))


def test_a_note_that_asks_for_a_setting_is_dropped_where_it_was_given(tmp_path):
    longest = {"max_position_embeddings": 131072}
    path = written(tmp_path / "config.json", CONFIGS["llama-3-8b"] | longest)
    asked = [note for note in imported(str(path), 8).notes if "--set seq=" in note]
    assert asked
    assert not set(asked) & set(imported(str(path), 8, {"seq": "4096"}).notes)
