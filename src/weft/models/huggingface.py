"""Hugging Face ``config.json``: the shape of a model, by its ``model_type``.

An architecture that is added is one line of ``ARCHITECTURES``, and a function if it names things
in a way of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.errors import FormatError, UsageError, nearest
from weft.models.imported import Imported, Keys, not_understood, read_json
from weft.models.transformer import LayerKind, Transformer
from weft.units import file_name

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_LONGEST = 8192  # tokens of a sequence where the file allows more: what pre-training uses
# Keys that change no kernel or collective of a step, or that are always as they are assumed.
_HARMLESS = frozenset(
    ("architectures", "auto_map", "model_type", "transformers_version", "torch_dtype", "dtype")
) | frozenset(
    (
        *("return_dict", "projector_hidden_act", "spatial_merge_size", "vision_feature_layer"),
        *("attention_multiplier", "embedding_multiplier", "logits_scaling", "swiglu_alpha"),
        *("residual_multiplier", "qkv_bias", "qk_head_dim", "image_seq_length"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "initializer_range"),
        *(
            "initializer_factor",
            "use_cache",
            "cache_implementation",
            "hidden_act",
            "hidden_activation",
        ),
        *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"),
        *("layernorm_epsilon", "rope_theta", "rope_scaling", "rope_parameters", "rope_interleave"),
        *("rope_local_base_freq", "partial_rotary_factor", "original_max_position_embeddings"),
        *("attention_bias", "mlp_bias", "attention_out_bias", "lm_head_bias", "use_bias", "bias"),
        *(
            "no_bias",
            "attn_implementation",
            "_attn_implementation",
            "pretraining_tp",
            "_name_or_path",
        ),
        *("name_or_path", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise"),
        *("aux_loss_alpha", "seq_aux", "scoring_func", "topk_method", "norm_topk_prob"),
        *("routed_scaling_factor", "n_group", "topk_group", "input_jitter_noise", "swiglu_limit"),
        *("initial_context_length", "experts_per_token", "num_experts_per_token", "ep_size"),
        *("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"),
        *("max_window_layers", "task_specific_params", "summary_type", "summary_activation"),
        *("summary_first_dropout", "summary_proj_to_labels", "summary_use_proj", "n_ctx"),
        *("activation_function", "scale_attn_weights", "reorder_and_upcast_attn"),
        *("scale_attn_by_inverse_layer_idx", "position_embedding_type", "type_vocab_size"),
        *("classifier_dropout", "gradient_checkpointing", "init_config", "init_device"),
        *("logit_scale", "embedding_fraction", "learned_pos_emb", "verbose", "norm_type"),
        *("tokenizer_name", "is_decoder", "rope_theta_local", "mrope_section", "moe_layers"),
        *("embd_layer", "attn_scale", "floor_scale", "attn_temperature_tuning", "no_rope_layers"),
        *(
            "no_rope_layer_interval",
            "for_llm_compressor",
            "resid_pdrop",
            "embd_pdrop",
            "attn_pdrop",
        ),
        *(
            "embed_pdrop",
            "resid_dropout",
            "embd_dropout",
            "moe_layer_freq",
            "first_k_dense_replace",
        ),
        *("layer_types", "use_sliding_window", "sliding_window_pattern"),
        *("_sliding_window_pattern", "max_position_embeddings", "vision_config"),
        *("image_token_index", "mm_tokens_per_image", "boi_token_index", "eoi_token_index"),
        *("image_token_id", "id2label", "label2id", "use_qk_norm", "qk_layernorm"),
        *("num_nextn_predict_layers", "debug", "n_shared_experts", "boi_token_id", "eoi_token_id"),
        *("vision_start_token_id", "vision_end_token_id", "decoder_sparse_step"),
        *("mlp_only_layers", "interleave_moe_layer_step", "emb_pdrop", "output_past"),
        "sliding_window_size",  # Gemma 2 writes sliding_window twice
    )
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """How configurations of one ``model_type`` are read, and what all of them have."""

    read: Callable[[Keys, Transformer], Transformer]
    given: Mapping[str, Any]


def read_huggingface(path: Path) -> Imported:
    """Read the model of a ``config.json``."""
    document = read_json(path)
    model, notes = model_of(document, str(path))
    stem = path.parent.name if path.stem == "config" and path.parent.name else path.stem
    return Imported(file_name(stem), model, notes)


def is_huggingface(document: Mapping[str, Any]) -> bool:
    """Return whether an object is a configuration of a model."""
    return "model_type" in document or "architectures" in document


def model_of(document: Mapping[str, Any], where: str) -> tuple[Transformer, tuple[str, ...]]:
    """Return the model of a configuration, and what of it was left out."""
    kind = str(document.get("model_type", ""))
    if kind not in ARCHITECTURES:
        raise UsageError(*_unknown(kind, document, where))
    architecture, notes = ARCHITECTURES[kind], []
    inner = document.get("text_config")
    if isinstance(inner, dict):  # a model of images and text: the text part is predicted
        notes.append(f"{where}: only text_config is predicted, without the vision part")
        document = {**document, **inner}
        document.pop("text_config")
    keys = Keys(document, where)
    base = Transformer(1, 1, 1, 1, 1, 1, gated=True, rotary=True)
    model = architecture.read(keys, base)
    model = replace(model, **architecture.given, dtype=_dtype(keys))
    if model.dtype == "fp32":
        notes.append(f"{where}: weights are float32 there; use --set dtype=bf16 if they are not")
    if keys.get("quantization_config") is not None:
        notes.append(f"{where}: quantization_config is left out; use --set math=fp8")
    longest = max(keys.whole("max_position_embeddings", 0), keys.whole("n_positions", 0))
    if model.seq < longest:
        notes.append(f"seq is {model.seq} of at most {longest} tokens; use --set seq=")
    for key in ("attention_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob"):
        if keys.real(key, 0.0) > 0:
            model = replace(model, dropout=True)
    notes += not_understood(where, keys.unread(_HARMLESS))
    return model, tuple(notes)


def _unknown(kind: str, document: Mapping[str, Any], where: str) -> tuple[str, str]:
    """Return an error that names the unknown architecture, a near one, and what is missing."""
    names = document.get("architectures")
    shown = kind or (str(names[0]) if isinstance(names, list) and names else "(none)")
    basics = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    missing = [key for key in (*basics, "vocab_size") if key not in document]
    hint = nearest(kind, ARCHITECTURES)
    if missing:
        hint += f" A Llama-like model needs {', '.join(missing)} too."
    else:
        hint += ' If it is like Llama, set "model_type": "llama" and see what is left out.'
    return f"{where}: unknown architecture {shown!r}", hint


def _dtype(keys: Keys) -> str:
    written = str(keys.get("torch_dtype") or keys.get("dtype") or "bfloat16")
    return _DTYPES.get(written.removeprefix("torch."), "bf16")


def _like_llama(keys: Keys, base: Transformer) -> Transformer:
    heads, hidden = keys.whole("num_attention_heads"), keys.whole("hidden_size")
    kv = keys.whole("num_key_value_heads", heads)
    size = keys.whole("head_dim", 0)
    model = replace(
        base,
        hidden=hidden,
        layers=keys.whole("num_hidden_layers"),
        heads=heads,
        kv_heads=kv,
        ffn=keys.whole("intermediate_size"),
        vocab=keys.whole("vocab_size"),
        seq=min(_LONGEST, keys.whole("max_position_embeddings", _LONGEST)),
        head_size=0 if size * heads == hidden else size,
        tied=keys.truth("tie_word_embeddings"),
    )
    _require_positive(keys, model)
    return _windowed(keys, model)


def _require_positive(keys: Keys, model: Transformer) -> None:
    for name in ("hidden", "layers", "heads", "ffn", "vocab", "seq"):
        if getattr(model, name) < 1:
            raise FormatError(f"{keys.where}: {name} must be above zero")


def _windowed(keys: Keys, model: Transformer) -> Transformer:
    """Read sliding attention: in all layers, or with one full layer in every few."""
    window = keys.whole("sliding_window", 0)
    if not window or not keys.truth("use_sliding_window", default=True):
        return model
    every = keys.whole("sliding_window_pattern", keys.whole("_sliding_window_pattern", 0))
    types = keys.get("layer_types")
    if isinstance(types, list):
        full = [n for n, kind in enumerate(types, 1) if kind == "full_attention"]
        every = full[0] if full else 0
        model = replace(model, window=window, full_every=every)
        expected: tuple[LayerKind, ...] = replace(model, layers=len(types)).kinds
        if [kind.full for kind in expected] != [kind == "full_attention" for kind in types]:
            raise FormatError(
                f"{keys.where}: layer_types do not repeat; one full layer in every n is modelled"
            )
        return model
    first = keys.whole("max_window_layers", 0)  # which see all positions, in Qwen's models
    if first >= model.layers:
        return model
    if first:
        raise FormatError(
            f"{keys.where}: max_window_layers {first} of {model.layers} layers is not modelled",
            "Use one window for all layers, or none.",
        )
    return replace(model, window=window, full_every=every)


def _qwen(keys: Keys, base: Transformer) -> Transformer:
    return _like_llama(keys.or_else(use_sliding_window=False), base)


def _mixtral(keys: Keys, base: Transformer) -> Transformer:
    return replace(
        _like_llama(keys, base),
        experts=keys.whole("num_local_experts"),
        topk=keys.whole("num_experts_per_tok"),
    )


def _qwen_experts(keys: Keys, base: Transformer) -> Transformer:
    model = _qwen(keys, base)
    if keys.get("mlp_only_layers"):
        raise FormatError(f"{keys.where}: mlp_only_layers is not modelled")
    return replace(
        model,
        experts=keys.whole("num_experts", keys.whole("num_local_experts", 0)),
        topk=keys.whole("num_experts_per_tok"),
        expert_ffn=keys.whole("moe_intermediate_size"),
        shared_ffn=keys.whole("shared_expert_intermediate_size", 0),
        moe_every=max(1, keys.whole("decoder_sparse_step", 1)),
    )


def _deepseek(keys: Keys, base: Transformer) -> Transformer:
    experts, width = keys.whole("n_routed_experts", 0), keys.whole("moe_intermediate_size", 0)
    nope = keys.whole("qk_nope_head_dim")
    keys.used.add("head_dim")
    known = {k: v for k, v in keys.values.items() if k not in ("head_dim", "num_key_value_heads")}
    keys.used.add("num_key_value_heads")
    return replace(
        _like_llama(Keys(known, keys.where, keys.used), base),
        kv_heads=0,
        head_size=nope,
        q_rank=keys.whole("q_lora_rank", 0),
        kv_rank=keys.whole("kv_lora_rank"),
        rope_dim=keys.whole("qk_rope_head_dim"),
        v_dim=keys.whole("v_head_dim", nope),
        experts=experts,
        topk=keys.whole("num_experts_per_tok", 2),
        expert_ffn=width,
        shared_ffn=keys.whole("n_shared_experts", 0) * width,
        dense_layers=keys.whole("first_k_dense_replace", 0),
        moe_every=max(1, keys.whole("moe_layer_freq", 1)),
        mtp=keys.whole("num_nextn_predict_layers", 0),
    )


def _llama4(keys: Keys, base: Transformer) -> Transformer:
    width = keys.whole("intermediate_size")
    dense = keys.whole("intermediate_size_mlp", width)
    chunk = keys.whole("attention_chunk_size", 0)
    return replace(
        _like_llama(keys, base),
        ffn=dense,
        experts=keys.whole("num_local_experts"),
        topk=keys.whole("num_experts_per_tok", 1),
        expert_ffn=width,
        shared_ffn=width,
        moe_every=max(1, keys.whole("interleave_moe_layer_step", 1)),
        window=chunk,
        full_every=keys.whole("no_rope_layer_interval", 4) if chunk else 0,
        chunked=bool(chunk),
        qk_norm=keys.truth("use_qk_norm", default=True),
    )


def _gemma(keys: Keys, base: Transformer) -> Transformer:
    return _like_llama(keys.or_else(tie_word_embeddings=True), base)


def _gemma2(keys: Keys, base: Transformer) -> Transformer:
    return _gemma(keys.or_else(_sliding_window_pattern=2), base)


def _gemma3(keys: Keys, base: Transformer) -> Transformer:
    usual = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
    usual |= {"_sliding_window_pattern": 6, "vocab_size": 262208}
    return _gemma(keys.or_else(**usual), base)  # files leave these out where they are as usual


def _gpt_oss(keys: Keys, base: Transformer) -> Transformer:
    return _mixtral(keys.or_else(_sliding_window_pattern=2), base)


def _gpt2(keys: Keys, base: Transformer) -> Transformer:
    hidden = keys.whole("n_embd")
    model = replace(
        base,
        hidden=hidden,
        layers=keys.whole("n_layer"),
        heads=keys.whole("n_head"),
        ffn=keys.whole("n_inner", 4 * hidden),
        vocab=keys.whole("vocab_size"),
        seq=keys.whole("n_positions", 1024),
        dropout=keys.real("resid_pdrop", 0.1) > 0,
        tied=keys.truth("tie_word_embeddings", default=True),
    )
    _require_positive(keys, model)
    return model


def _bert(keys: Keys, base: Transformer) -> Transformer:
    return _gemma(keys, base)  # the head has the weights of the embedding


def _mpt(keys: Keys, base: Transformer) -> Transformer:
    hidden, attention = keys.whole("d_model"), keys.table("attn_config")
    window = attention.integer("sliding_window_size", -1)
    model = replace(
        base,
        hidden=hidden,
        layers=keys.whole("n_layers"),
        heads=keys.whole("n_heads"),
        kv_heads=attention.whole("kv_n_heads", 0),
        ffn=round(keys.real("expansion_ratio", 4.0) * hidden),
        vocab=keys.whole("vocab_size"),
        seq=keys.whole("max_seq_len"),
        flash=str(attention.get("attn_impl", "flash")) != "torch",
        rotary=attention.truth("rope"),
        qk_norm=attention.truth("qk_ln"),
        window=max(0, window),
        tied=keys.truth("tie_word_embeddings", default=True),
    )
    _require_positive(keys, model)
    known = (
        *("softmax_scale", "attn_uses_sequence_id", "alibi", "alibi_bias_max", "prefix_lm"),
        *("attn_type", "clip_qkv", "rope_theta", "rope_impl", "attn_pdrop", "rope_dail_config"),
        *("rope_hf_config", "qk_gn", "fused_qkv"),
    )
    if unread := attention.unread((*known, *_HARMLESS)):
        raise FormatError(f"{keys.where}: attn_config.{unread[0]} is not understood")
    return model


_PLAIN = {"gated": False}
_ENCODER = {**_PLAIN, "causal": False, "rotary": False}
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(_like_llama, {}),
    "mistral": Architecture(_like_llama, {}),
    "ministral": Architecture(_like_llama, {}),
    "mistral3": Architecture(_like_llama, {}),
    "granite": Architecture(_like_llama, {}),
    "olmo2": Architecture(_like_llama, {"qk_norm": True, "qk_norm_span": True}),
    "mixtral": Architecture(_mixtral, {}),
    "phimoe": Architecture(_mixtral, {}),
    "qwen2": Architecture(_qwen, {}),
    "qwen3": Architecture(_qwen, {"qk_norm": True}),
    "qwen2_moe": Architecture(_qwen_experts, {}),
    "qwen3_moe": Architecture(_qwen_experts, {"qk_norm": True}),
    "deepseek_v2": Architecture(_deepseek, {}),
    "deepseek_v3": Architecture(_deepseek, {}),
    "kimi_k2": Architecture(_deepseek, {}),
    "llama4": Architecture(_llama4, {}),
    "llama4_text": Architecture(_llama4, {}),
    "gemma": Architecture(_gemma, {}),
    "gemma2": Architecture(_gemma2, {"post_norm": True}),
    "gemma3": Architecture(_gemma3, {"post_norm": True, "qk_norm": True}),
    "gemma3_text": Architecture(_gemma3, {"post_norm": True, "qk_norm": True}),
    "phi": Architecture(_like_llama, {**_PLAIN, "parallel_block": True}),
    "phi3": Architecture(_like_llama, {}),
    "gpt_oss": Architecture(_gpt_oss, {"expert_bias": True, "clamped": True}),
    "gpt2": Architecture(_gpt2, {**_PLAIN, "rotary": False}),
    "bert": Architecture(_bert, _ENCODER),
    "roberta": Architecture(_bert, _ENCODER),
    "mpt": Architecture(_mpt, _PLAIN),
}
