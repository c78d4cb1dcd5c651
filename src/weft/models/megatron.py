"""Megatron-LM arguments: a shell script or a list of arguments, or the YAML of a test or job.

Shell variables that a script sets are filled in; arguments are taken wherever they stand.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.errors import FormatError, UsageError
from weft.models.imported import Imported, Keys, not_understood, read_text, read_yaml
from weft.models.transformer import Transformer
from weft.models.transformer_layout import split_with_ends
from weft.units import digits, file_name

_ASSIGNED = re.compile(r"^\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)=([^\s(]\S*|\"[^\"]*\"|'[^']*')")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
# Arguments that change no kernel or collective of a step.
_HARMLESS_STARTS = (
    *("lr", "min_lr", "log_", "save", "load", "eval", "tokenizer", "data_path", "data_cache"),
    *("split", "seed", "init_method", "adam", "weight_decay", "train_", "exit_", "tensorboard"),
    *("wandb", "ckpt", "distributed_", "no_load", "no_save", "merge_file", "vocab_file"),
    *("num_workers", "nproc", "nnodes", "node_rank", "master_", "rdzv", "use_mcore"),
    *("use_checkpoint", "dist_ckpt", "auto_detect", "timing", "rotary_", "use_rotary", "use_rope"),
    *("rope_", "no_rope", "norm_epsilon", "moe_aux", "moe_z_loss", "moe_router_dtype"),
    *("moe_router_score", "moe_router_enable", "moe_router_bias", "moe_router_num"),
    *("moe_router_group", "moe_router_topk_scaling", "moe_router_load", "moe_router_pre"),
    *("decoupled_", "override_opt", "calculate_per_token", "mock_data", "no_mmap", "profile"),
    *("use_pytorch", "manual_gc", "attention_softmax", "apply_query", "no_masked", "disable_bias"),
    *("add_qkv", "reset_", "eod_", "create_", "no_create", "async_save", "verify"),
    *("check_", "use_persistent", "no_ckpt", "dataloader", "record_", "memory_", "empty_unused"),
    *("use_tp_pp", "disable_gloo", "ddp_average", "no_persist", "apply_layernorm"),
    *("loss_scale", "initial_loss", "hysteresis", "sgd", "te_rng", "test_mode", "fim_", "bert_"),
)
_HARMLESS = (
    *("max_position_embeddings", "position_embedding_type", "normalization", "transformer_impl"),
    *("attention_backend", "use_flash_attn", "bf16", "no_bias_swiglu_fusion"),
    *("no_bias_gelu_fusion", "make_vocab_size_divisible_by", "moe_grouped_gemm"),
    *("moe_deepep_num_sms", "moe_hybridep_num_sms", "rerun_mode", "moe_permute_fusion"),
    *("moe_router_fusion", "cross_entropy_fusion_impl", "clip_grad"),
    *("no_overlap_p2p_communication", "overlap_p2p_communication", "mtp_loss_scaling_factor"),
    *("fp8_recipe", "fp8_amax_history_len", "fp8_amax_compute_algo", "fp8_margin", "fp8_interval"),
    *("mscale", "mscale_all_dim", "enable_experimental", "optimizer"),
    *("tensorboard",),
)
_SEVERAL = ("recompute_modules",)  # arguments that take several words
_MODULES = ("core_attn", "moe_act", "mla_up_proj", "layernorm", "mlp", "moe", "shared_experts")
_FLEX = ("deepep", "hybridep")  # kernels that send a token once to each node
_GATHERS = "allgather"  # the dispatcher of tokens that Megatron has if none is named
_CP = {"p2p": "ring", "all_gather": "allgather", "a2a": "ulysses"}


def is_megatron(document: Mapping[str, Any]) -> bool:
    """Return whether a YAML document has arguments of Megatron."""
    return "num_layers" in _flat(document) and "hidden_size" in _flat(document)


# Arguments that launch steps as CUDA graphs, whose host costs nothing.
_CUDA_GRAPHS = ("enable_cuda_graph", "external_cuda_graph", "cuda_graph_impl")


def read_megatron(path: Path, num_ranks: int, model: Transformer | None = None) -> Imported:
    """Read a script, a list of arguments or a YAML file; it has the whole shape of the model."""
    if model is not None:
        raise UsageError(f"{path} has a model of its own: --set model= is too late")
    if path.suffix in (".yaml", ".yml"):
        arguments: Mapping[str, Any] = _flat(read_yaml(path))
    else:
        arguments = dict(_written(read_text(path)))
    return imported(arguments, file_name(path.stem), str(path), num_ranks)


def imported(arguments: Mapping[str, Any], name: str, where: str, num_ranks: int) -> Imported:
    """Return the job of arguments whose names have underscores and no dashes in front."""
    keys = Keys(arguments, where)
    model, notes = _shape(keys)
    model, left = _run(keys, model)
    model, more = _layout(keys, model, num_ranks)
    graphs = any(keys.get(key) not in (None, False, "none", "0") for key in _CUDA_GRAPHS)
    stack = "mlperf" if graphs else "megatron"
    scope = str(keys.get("cuda_graph_scope", "") or "")
    if graphs and model.experts and scope and "full" not in scope:
        stack = "megatron-graphs"  # some modules are captured, and experts are not
    unread = keys.unread(_HARMLESS, _HARMLESS_STARTS)
    return Imported(name, model, (*notes, *left, *more, *not_understood(where, unread)), stack)


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """Put the keys of nested tables side by side, as arguments are called inside Megatron."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            found |= _flat(value)
        else:
            found[str(key).lstrip("-").replace("-", "_")] = value
    return found


def _written(text: str) -> Iterator[tuple[str, Any]]:
    """Read ``--name value`` pairs of a script; one without a value is true."""
    text = text.replace("\\\n", " ")
    lines = [re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines()]
    known: dict[str, str] = {}
    for line in lines:
        if match := _ASSIGNED.match(line):
            known[match[1]] = _filled(match[2].strip("\"'"), known)
    words: list[str] = []
    for line in lines:
        if line.strip() in (")", '"'):  # what follows a list is no value of its last argument
            words.append("--")
        filled = _filled(line, known).replace("(", " ").replace(")", " ").replace("=--", "= --")
        try:
            words += shlex.split(filled.replace('"', " ").replace("'", " "))
        except ValueError as error:
            raise FormatError(f"cannot read the arguments: {error}") from error
    for number, word in enumerate(words):
        if not word.startswith("--") or len(word) < 3:
            continue
        name, equals, value = word[2:].partition("=")
        values = []
        for each in words[number + 1 :]:
            if each.startswith("--") or re.fullmatch(r"[A-Za-z_]\w*=.*", each):
                break
            values.append(each)
        key = name.replace("-", "_")
        written = " ".join(values) if key in _SEVERAL else values[0] if values else True
        yield key, value if equals else written


def _filled(text: str, known: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return known.get(name, match[2] or match[0].replace("$", "").strip("{}"))

    return _VARIABLE.sub(value, text)


def _shape(keys: Keys) -> tuple[Transformer, list[str]]:
    notes = []
    hidden, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    gated = keys.truth("swiglu")
    # as Megatron: 4 hidden, or for gated products two thirds of it, in steps of 64
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    groups = keys.whole("num_query_groups", 1)
    kv = groups if keys.truth("group_query_attention") else 0
    vocab = keys.whole("padded_vocab_size", keys.whole("vocab_size", 0))
    if not vocab:
        vocab = 50304  # GPT-2's, padded, which Megatron's examples use
        notes.append(
            f"{keys.where}: the tokenizer decides the vocabulary; {vocab} is assumed (vocab)"
        )
    size = keys.whole("kv_channels", 0)
    position = str(keys.get("position_embedding_type", "learned_absolute"))
    model = Transformer(
        hidden=hidden,
        layers=keys.whole("num_layers"),
        heads=heads,
        ffn=keys.whole("ffn_hidden_size", usual),
        vocab=vocab,
        seq=keys.whole("seq_length"),
        kv_heads=kv,
        gated=gated,
        head_size=0 if size * heads == hidden else size,
        rotary=position in ("rope", "yarn"),
        tied=not keys.truth("untie_embeddings_and_output_weights"),
        dropout=keys.real("hidden_dropout", 0.1) > 0,
        qk_norm=keys.truth("qk_layernorm"),
        fused_loss=keys.truth("cross_entropy_loss_fusion"),
        fused_accumulation=not keys.truth("no_gradient_accumulation_fusion")
        and keys.truth("gradient_accumulation_fusion", default=True),
        # Transformer Engine's kernel has no scale, which YaRN needs (rope_utils of Megatron-Core)
        fused_rotary=not keys.truth("no_rope_fusion")
        and keys.truth("apply_rope_fusion", default=True)
        and (position != "yarn" or keys.truth("multi_latent_attention")),
    )
    keys.real("attention_dropout", 0.1)
    for name in ("hidden", "layers", "heads", "seq"):
        if getattr(model, name) < 1:
            raise FormatError(f"{keys.where}: {name} must be above zero")
    if (window := keys.get("window_size")) is not None:
        first = str(window).strip("()[] ").split(",")[0]
        model = replace(model, window=digits(first) or 0)
    return _experts(keys, _latent(keys, model)), notes


def _latent(keys: Keys, model: Transformer) -> Transformer:
    if not keys.truth("multi_latent_attention"):
        keys.used |= {"q_lora_rank", "kv_lora_rank", "v_head_dim"}
        keys.used |= {"qk_head_dim", "qk_pos_emb_head_dim"}
        return model
    return replace(
        model,
        kv_heads=0,
        head_size=keys.whole("qk_head_dim", 128),
        q_rank=keys.whole("q_lora_rank", 0),
        kv_rank=keys.whole("kv_lora_rank", 32),
        rope_dim=keys.whole("qk_pos_emb_head_dim", 64),
        v_dim=keys.whole("v_head_dim", 128),
    )


def _experts(keys: Keys, model: Transformer) -> Transformer:
    model = replace(model, mtp=keys.whole("mtp_num_layers", 0))
    if not keys.whole("num_experts", 0):
        return model
    width = keys.whole("moe_ffn_hidden_size", model.ffn)
    every, first = _frequency(str(keys.get("moe_layer_freq", 1)), keys.where)
    dispatcher = str(keys.get("moe_token_dispatcher_type", _GATHERS))
    backend = str(keys.get("moe_flex_dispatcher_backend", "deepep"))
    if backend not in _FLEX:
        raise UsageError(
            f"{keys.where}: moe_flex_dispatcher_backend {backend!r} is not modelled",
            f"Known: {', '.join(_FLEX)}.",
        )
    flex = dispatcher == "flex" or keys.truth("moe_enable_deepep")
    return replace(
        model,
        experts=keys.whole("num_experts"),
        topk=keys.whole("moe_router_topk", 2),
        expert_ffn=0 if width == model.ffn else width,
        shared_ffn=keys.whole("moe_shared_expert_intermediate_size", 0),
        expert_bias=not keys.truth("disable_bias_linear")
        and keys.truth("add_bias_linear", default=True),
        clamped=keys.real("activation_func_clamp_value", 0.0) > 0,
        fused_experts=keys.truth("use_transformer_engine_op_fuser"),
        capacity=keys.real("moe_expert_capacity_factor", 0.0),
        moe_every=every,
        dense_layers=first,
        dispatcher="flex" if flex else "alltoall",
        ep_overlap=keys.truth("overlap_moe_expert_parallel_comm"),
    )


def _frequency(written: str, where: str) -> tuple[int, int]:
    """Read which layers have experts: every n-th, or a list such as ``([0]*3+[1]*58)``."""
    if (every := digits(written)) is not None:
        return max(1, every), 0
    if match := re.fullmatch(
        r"\(*\[0\]\*([0-9]{1,15})\s*\+\s*\[1\]\*\d+\)*", written.strip("\"' ")
    ):
        return 1, int(match[1])
    raise FormatError(
        f"{where}: moe_layer_freq {written!r} is not understood",
        "Use a number, or ([0]*k+[1]*n): k first layers without experts.",
    )


def _run(keys: Keys, model: Transformer) -> tuple[Transformer, list[str]]:
    """Read precision and recomputation."""
    fp16 = keys.truth("fp16")
    fp8 = keys.get("fp8_format", keys.get("fp8"))
    half = fp16 or keys.truth("bf16")
    accumulates = keys.truth("accumulate_allreduce_grads_in_fp32")  # with bf16 the default
    wide = accumulates if fp16 else not keys.truth("grad_reduce_in_bf16")
    model = replace(
        model,
        dtype="fp16" if fp16 else "bf16" if half else "fp32",
        math="fp8" if fp8 else "",
        clip=keys.real("clip_grad", 1.0) > 0,
        grad_dtype="fp32" if half and wide else "",
    )
    local = str(keys.get("transformer_impl", "")) == "local" and not keys.truth("use_flash_attn")
    if local or str(keys.get("attention_backend", "auto")) in ("unfused", "local"):
        model = replace(model, flash=False)
    granularity = str(keys.get("recompute_granularity", ""))
    if keys.truth("recompute_activations"):
        granularity = "selective"
    asked = str(keys.get("recompute_modules", "core_attn"))
    modules = [name for name in _MODULES if re.search(rf"\b{name}\b", asked)]
    count = keys.whole("recompute_num_layers", 0)
    method = str(keys.get("recompute_method", ""))
    if granularity == "full":
        layers = count if method == "block" else 0
        return replace(model, recompute="full", recompute_layers=layers), []
    if not granularity:
        return replace(model, recompute="none"), []
    known = {"moe_act": bool(model.experts), "mla_up_proj": bool(model.kv_rank)}
    own = [name for name in modules if known.get(name, name not in known)]  # of this model
    chosen = next((name for name in ("core_attn", *known) if name in own), "")
    left = [name for name in own if name != chosen]
    note = f"{keys.where}: not modelled: recompute_modules {', '.join(left)}"
    recompute = "selective" if chosen == "core_attn" else chosen or "none"
    return replace(model, recompute=recompute), [note] if left else []


def _layout(keys: Keys, model: Transformer, num_ranks: int) -> tuple[Transformer, list[str]]:
    tp = keys.whole("tensor_model_parallel_size", 1)
    pp = keys.whole("pipeline_model_parallel_size", 1)
    cp = keys.whole("context_parallel_size", 1)
    # the embedding and the head may count as a layer each
    first = int(keys.truth("account_for_embedding_in_pipeline_split"))
    last = int(keys.truth("account_for_loss_in_pipeline_split"))
    each = keys.whole("num_layers_per_virtual_pipeline_stage", 0)
    chunks = keys.whole("num_virtual_stages_per_pipeline_rank", 1)
    if each and pp:
        chunks = max(1, (model.layers + first + last) // pp // each)
    written = str(keys.get("cp_comm_type", "p2p")).split(",")[0].strip("[] '\"")
    if cp > 1 and written not in _CP:
        raise UsageError(
            f"{keys.where}: cp_comm_type {written!r} is not modelled",
            f"Known: {', '.join(_CP)}.",
        )
    inner = max(1, tp * pp * cp)
    micro = keys.whole("micro_batch_size", 1)
    batch = keys.whole("global_batch_size", micro * max(1, num_ranks // inner))
    model = replace(
        model,
        tp=tp,
        pp=pp,
        cp=cp,
        cp_kind=_CP.get(written, "ring"),
        sp=keys.truth("sequence_parallel"),
        tp_overlap=keys.truth("tp_comm_overlap"),
        ep=keys.whole("expert_model_parallel_size", 1),
        etp=keys.whole("expert_tensor_parallel_size", 0),
        interleave=max(1, chunks),
        batch=batch,
        micro_batch=micro,
        count_ends=bool(first and last),
        bucket=keys.whole("ddp_bucket_size", max(40_000_000, 1_000_000 * (num_ranks // inner)))
        * (4 if model.grad_dtype == "fp32" else 2),
    )
    if first != last and pp:
        counts = split_with_ends(model.layers, pp * model.interleave, first, last)
        model = replace(model, stage_layers=tuple(counts))
    return _shards_and_stages(keys, model), _notes(keys)


def _shards_and_stages(keys: Keys, model: Transformer) -> Transformer:
    """Read sharding of the optimizer, and stages that hold other numbers of layers."""
    strategies = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
    zero = 1 if keys.truth("use_distributed_optimizer") else 0
    if keys.truth("use_megatron_fsdp") or keys.truth("use_custom_fsdp"):
        zero = strategies.get(str(keys.get("data_parallel_sharding_strategy", "no_shard")), zero)
    elif keys.truth("use_torch_fsdp2"):
        zero = 3
    else:
        keys.used.add("data_parallel_sharding_strategy")
    instances = keys.whole("num_distributed_optimizer_instances", 1)
    model = replace(
        model,
        zero=zero,
        overlap_grad=keys.truth("overlap_grad_reduce"),
        overlap_param=keys.truth("overlap_param_gather"),
    )
    if instances > 1:
        keys.used.discard("num_distributed_optimizer_instances")  # named as not understood
    first = keys.whole("decoder_first_pipeline_num_layers", 0)
    last = keys.whole("decoder_last_pipeline_num_layers", 0)
    if not (first or last):
        return model
    if model.interleave > 1:
        raise UsageError(
            f"{keys.where}: decoder_first_pipeline_num_layers with virtual stages is not modelled",
            "Use --set stage_layers=, one number for each chunk in model order.",
        )
    middle = model.pp - bool(first) - bool(last)
    left = model.layers - first - last
    if left < max(0, middle):
        raise UsageError(
            f"{keys.where}: decoder_first_pipeline_num_layers {first} and "
            f"decoder_last_pipeline_num_layers {last} leave {left} of {model.layers} layers to "
            f"{max(0, middle)} stages",
            "Use smaller numbers.",
        )
    counts = [left // middle + (n < left % middle) for n in range(middle)] if middle > 0 else []
    whole = ([first] if first else []) + counts + ([last] if last else [])
    return replace(model, stage_layers=tuple(whole))


def _notes(keys: Keys) -> list[str]:
    """Name what changes the step and is not modelled."""
    found = []
    if keys.get("pipeline_model_parallel_layout") is not None:
        found.append("pipeline_model_parallel_layout is left out; use --set stage_layers=")
    if keys.whole("num_experts", 0) and keys.get("moe_token_dispatcher_type") in (None, _GATHERS):
        found.append(f"moe_token_dispatcher_type {_GATHERS} is predicted as alltoall")
    return [f"{keys.where}: {each}" for each in found]
