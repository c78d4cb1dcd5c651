"""Configurations of published models, with the keys of their files that matter, and some more."""

from typing import Any

_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3-8b": _LLAMA,
    "llama-3.2-1b": {
        **_LLAMA, "hidden_size": 2048, "num_hidden_layers": 16, "head_dim": 64,
        "intermediate_size": 8192, "tie_word_embeddings": True, "max_position_embeddings": 131072,
    },
    "mistral-7b-v0.1": {
        **_LLAMA, "model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096,
        "max_position_embeddings": 32768,
    },
    "mixtral-8x22b": {
        **_LLAMA, "model_type": "mixtral", "hidden_size": 6144, "num_hidden_layers": 56,
        "num_attention_heads": 48, "intermediate_size": 16384, "vocab_size": 32768,
        "num_local_experts": 8, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.001,
        "sliding_window": None, "max_position_embeddings": 65536,
    },
    "qwen2.5-7b": {
        **_LLAMA, "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
        "vocab_size": 152064, "sliding_window": 131072, "use_sliding_window": False,
        "max_window_layers": 28, "max_position_embeddings": 131072,
    },
    "qwen2-57b-a14b": {
        **_LLAMA, "model_type": "qwen2_moe", "hidden_size": 3584, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
        "vocab_size": 151936, "num_experts": 64, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2560, "shared_expert_intermediate_size": 20480,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 131072,
    },
    "qwen3-30b-a3b": {
        **_LLAMA, "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
        "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "norm_topk_prob": True, "max_position_embeddings": 32768,
    },
    "deepseek-v2-lite": {
        **_LLAMA, "model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27,
        "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 10944,
        "vocab_size": 102400, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2,
        "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "scoring_func": "softmax", "max_position_embeddings": 163840,
    },
    "deepseek-v3": {
        **_LLAMA, "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
        "vocab_size": 129280, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1, "quantization_config": {"quant_method": "fp8"},
        "max_position_embeddings": 163840,
    },
    "llama-4-maverick": {
        "model_type": "llama4",
        "vision_config": {"model_type": "llama4_vision_model"},
        "text_config": {
            **_LLAMA, "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48,
            "num_attention_heads": 40, "head_dim": 128, "intermediate_size": 8192,
            "intermediate_size_mlp": 16384, "vocab_size": 202048, "num_local_experts": 128,
            "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "use_qk_norm": False,
            "attention_chunk_size": 8192, "max_position_embeddings": 1048576,
        },
    },
    "gemma-2-9b": {
        **_LLAMA, "model_type": "gemma2", "hidden_size": 3584, "num_hidden_layers": 42,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
        "intermediate_size": 14336, "vocab_size": 256000, "sliding_window": 4096,
        "tie_word_embeddings": None, "query_pre_attn_scalar": 256,
    },
    "gemma-3-12b": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 3840, "num_hidden_layers": 48,
            "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 15360,
            "sliding_window": 1024, "max_position_embeddings": 131072,
        },
        "vision_config": {"hidden_size": 1152},
        "torch_dtype": "bfloat16",
    },
    "phi-2": {
        **_LLAMA, "model_type": "phi", "hidden_size": 2560, "num_key_value_heads": 32,
        "intermediate_size": 10240, "vocab_size": 51200, "max_position_embeddings": 2048,
        "partial_rotary_factor": 0.4, "resid_pdrop": 0.1,
    },
    "phi-4": {
        **_LLAMA, "model_type": "phi3", "hidden_size": 5120, "num_hidden_layers": 40,
        "num_attention_heads": 40, "num_key_value_heads": 10, "intermediate_size": 17920,
        "vocab_size": 100352, "sliding_window": None, "max_position_embeddings": 16384,
    },
    "gpt-oss-120b": {
        **_LLAMA, "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "intermediate_size": 2880, "vocab_size": 201088, "num_local_experts": 128,
        "num_experts_per_tok": 4, "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
        "max_position_embeddings": 131072,
    },
    "gpt2-xl": {
        "model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024,
        "n_ctx": 1024, "vocab_size": 50257, "resid_pdrop": 0.0, "torch_dtype": "bfloat16",
    },
    "bert-large": {
        "model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24,
        "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 30522,
        "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_dropout_prob": 0.0,
    },
    "mpt-7b": {
        "model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4,
        "max_seq_len": 2048, "vocab_size": 50432, "no_bias": True,
        "attn_config": {"alibi": True, "attn_impl": "flash", "clip_qkv": None},
    },
}  # fmt: skip
