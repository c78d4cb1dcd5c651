"""Known transformers by name, each with the page its shape is from.

A bare ``owner/name`` is the config.json of that Hugging Face repository. A model that is added is
one line here. ``seq`` is the context of pre-training, or 8192 where a longer one was added later.
"""

from dataclasses import replace
from typing import NamedTuple

from weft.models.transformer import Transformer


class NamedModel(NamedTuple):
    """A model that is known by name, and where its shape is written."""

    shape: Transformer
    source: str


_GPT2 = Transformer(768, 12, 12, 3072, 50257, 1024, tied=True)
_BERT = replace(_GPT2, vocab=30522, seq=512, causal=False)
_LLAMA3 = Transformer(4096, 32, 32, 14336, 128256, 8192, 8, gated=True, rotary=True)
_LLAMA2 = replace(_LLAMA3, ffn=11008, vocab=32000, seq=4096, kv_heads=32)
_LLAMA4 = replace(
    _LLAMA3, hidden=5120, layers=48, heads=40, head_size=128, ffn=16384, vocab=202048,
    experts=16, topk=1, expert_ffn=8192, shared_ffn=8192, window=8192, full_every=4, chunked=True,
    qk_norm=True,
)  # fmt: skip
_MISTRAL = replace(_LLAMA3, vocab=32768, head_size=128)
_QWEN2 = replace(_LLAMA3, vocab=152064)
_QWEN3 = replace(_LLAMA3, vocab=151936, head_size=128, qk_norm=True, seq=4096)
_QWEN3_MOE = replace(_QWEN3, experts=128, topk=8)
_DEEPSEEK = replace(
    _LLAMA3, seq=4096, kv_heads=0, head_size=128, kv_rank=512, rope_dim=64, v_dim=128,
    vocab=102400, dense_layers=1,
)  # fmt: skip
_GEMMA2 = replace(
    _LLAMA3, vocab=256000, head_size=256, tied=True, post_norm=True, window=4096, full_every=2
)
_GEMMA3 = replace(_GEMMA2, vocab=262208, qk_norm=True, window=1024, full_every=6)
_PHI3 = replace(_LLAMA3, vocab=32064, seq=4096)
_GPT_OSS = replace(
    _LLAMA3, hidden=2880, layers=24, heads=64, head_size=64, ffn=2880, vocab=201088, seq=4096,
    experts=32, topk=4, window=128, full_every=2, expert_bias=True, clamped=True,
)  # fmt: skip
_MPT = replace(_GPT2, vocab=50432, seq=2048)

_ARXIV_GPT3 = "arXiv 2005.14165, table 2.1; vocabulary padded as in MLPerf Training"
ZOO: dict[str, NamedModel] = {
    "gpt2": NamedModel(_GPT2, "openai-community/gpt2"),
    "gpt2-medium": NamedModel(
        replace(_GPT2, hidden=1024, layers=24, heads=16, ffn=4096), "openai-community/gpt2-medium"
    ),
    "gpt2-large": NamedModel(
        replace(_GPT2, hidden=1280, layers=36, heads=20, ffn=5120), "openai-community/gpt2-large"
    ),
    "gpt2-xl": NamedModel(
        replace(_GPT2, hidden=1600, layers=48, heads=25, ffn=6400), "openai-community/gpt2-xl"
    ),
    "gpt3-1.3b": NamedModel(
        replace(_GPT2, hidden=2048, layers=24, heads=16, ffn=8192, seq=2048, vocab=51200),
        _ARXIV_GPT3,
    ),
    "gpt3-6.7b": NamedModel(
        replace(_GPT2, hidden=4096, layers=32, heads=32, ffn=16384, seq=2048, vocab=51200),
        _ARXIV_GPT3,
    ),
    "gpt3-13b": NamedModel(
        replace(_GPT2, hidden=5120, layers=40, heads=40, ffn=20480, seq=2048, vocab=51200),
        _ARXIV_GPT3,
    ),
    "gpt3-175b": NamedModel(
        replace(
            _GPT2, hidden=12288, layers=96, heads=96, ffn=49152, seq=2048, batch=64, vocab=51200
        ),
        _ARXIV_GPT3,
    ),
    "bert-base": NamedModel(_BERT, "google-bert/bert-base-uncased"),
    "bert-large": NamedModel(
        replace(_BERT, hidden=1024, layers=24, heads=16, ffn=4096), "google-bert/bert-large-uncased"
    ),
    "xlnet-base": NamedModel(replace(_BERT, vocab=32000), "xlnet/xlnet-base-cased"),
    # "llama-7b" to "llama-405b" are older names of this table
    "llama-7b": NamedModel(_LLAMA2, "meta-llama/Llama-2-7b-hf"),
    "llama-8b": NamedModel(_LLAMA3, "meta-llama/Meta-Llama-3-8B"),
    "llama-13b": NamedModel(
        replace(_LLAMA2, hidden=5120, layers=40, heads=40, ffn=13824, kv_heads=40),
        "meta-llama/Llama-2-13b-hf",
    ),
    "llama-70b": NamedModel(
        replace(_LLAMA3, hidden=8192, layers=80, heads=64, ffn=28672), "meta-llama/Meta-Llama-3-70B"
    ),
    "llama-405b": NamedModel(
        replace(_LLAMA3, hidden=16384, layers=126, heads=128, ffn=53248),
        "meta-llama/Llama-3.1-405B",
    ),
    "llama-2-7b": NamedModel(_LLAMA2, "meta-llama/Llama-2-7b-hf"),
    "llama-2-13b": NamedModel(
        replace(_LLAMA2, hidden=5120, layers=40, heads=40, ffn=13824, kv_heads=40),
        "meta-llama/Llama-2-13b-hf",
    ),
    "llama-2-70b": NamedModel(
        replace(_LLAMA2, hidden=8192, layers=80, heads=64, ffn=28672, kv_heads=8),
        "meta-llama/Llama-2-70b-hf",
    ),
    "llama-3-8b": NamedModel(_LLAMA3, "meta-llama/Meta-Llama-3-8B"),
    "llama-3-70b": NamedModel(
        replace(_LLAMA3, hidden=8192, layers=80, heads=64, ffn=28672), "meta-llama/Meta-Llama-3-70B"
    ),
    "llama-3.1-8b": NamedModel(_LLAMA3, "meta-llama/Llama-3.1-8B"),
    "llama-3.1-70b": NamedModel(
        replace(_LLAMA3, hidden=8192, layers=80, heads=64, ffn=28672), "meta-llama/Llama-3.1-70B"
    ),
    "llama-3.1-405b": NamedModel(
        replace(_LLAMA3, hidden=16384, layers=126, heads=128, ffn=53248),
        "meta-llama/Llama-3.1-405B",
    ),
    "llama-3.2-1b": NamedModel(
        replace(_LLAMA3, hidden=2048, layers=16, ffn=8192, head_size=64, tied=True),
        "meta-llama/Llama-3.2-1B",
    ),
    "llama-3.2-3b": NamedModel(
        replace(_LLAMA3, hidden=3072, layers=28, heads=24, ffn=8192, head_size=128, tied=True),
        "meta-llama/Llama-3.2-3B",
    ),
    "llama-4-scout": NamedModel(_LLAMA4, "meta-llama/Llama-4-Scout-17B-16E"),
    "llama-4-maverick": NamedModel(
        replace(_LLAMA4, experts=128, moe_every=2, qk_norm=False),
        "meta-llama/Llama-4-Maverick-17B-128E",
    ),
    "mistral-7b": NamedModel(_MISTRAL, "mistralai/Mistral-7B-v0.3"),
    "mistral-7b-v0.1": NamedModel(
        replace(_MISTRAL, vocab=32000, window=4096), "mistralai/Mistral-7B-v0.1"
    ),
    "mistral-nemo-12b": NamedModel(
        replace(_MISTRAL, hidden=5120, layers=40, vocab=131072),
        "mistralai/Mistral-Nemo-Base-2407",
    ),
    "mistral-small-24b": NamedModel(
        replace(_MISTRAL, hidden=5120, layers=40, ffn=32768, vocab=131072),
        "mistralai/Mistral-Small-24B-Base-2501",
    ),
    "mistral-large-123b": NamedModel(
        replace(_MISTRAL, hidden=12288, layers=88, heads=96, ffn=28672),
        "mistralai/Mistral-Large-Instruct-2407",
    ),
    "mixtral-8x7b": NamedModel(
        replace(_LLAMA3, vocab=32000, seq=4096, experts=8), "mistralai/Mixtral-8x7B-v0.1"
    ),
    "mixtral-8x22b": NamedModel(
        replace(
            _LLAMA3,
            hidden=6144,
            layers=56,
            heads=48,
            ffn=16384,
            vocab=32768,
            seq=4096,
            experts=8,
        ),
        "mistralai/Mixtral-8x22B-v0.3",
    ),
    "qwen2.5-0.5b": NamedModel(
        replace(
            _QWEN2,
            hidden=896,
            layers=24,
            heads=14,
            kv_heads=2,
            ffn=4864,
            vocab=151936,
            tied=True,
        ),
        "Qwen/Qwen2.5-0.5B",
    ),
    "qwen2.5-1.5b": NamedModel(
        replace(
            _QWEN2,
            hidden=1536,
            layers=28,
            heads=12,
            kv_heads=2,
            ffn=8960,
            vocab=151936,
            tied=True,
        ),
        "Qwen/Qwen2.5-1.5B",
    ),
    "qwen2-7b": NamedModel(
        replace(_QWEN2, hidden=3584, layers=28, heads=28, kv_heads=4, ffn=18944), "Qwen/Qwen2-7B"
    ),
    "qwen2.5-7b": NamedModel(
        replace(_QWEN2, hidden=3584, layers=28, heads=28, kv_heads=4, ffn=18944), "Qwen/Qwen2.5-7B"
    ),
    "qwen2.5-14b": NamedModel(
        replace(_QWEN2, hidden=5120, layers=48, heads=40, ffn=13824), "Qwen/Qwen2.5-14B"
    ),
    "qwen2.5-32b": NamedModel(
        replace(_QWEN2, hidden=5120, layers=64, heads=40, ffn=27648), "Qwen/Qwen2.5-32B"
    ),
    "qwen2.5-72b": NamedModel(
        replace(_QWEN2, hidden=8192, layers=80, heads=64, ffn=29568), "Qwen/Qwen2.5-72B"
    ),
    "qwen2-57b-a14b": NamedModel(
        replace(
            _QWEN2,
            hidden=3584,
            layers=28,
            heads=28,
            kv_heads=4,
            ffn=18944,
            vocab=151936,
            experts=64,
            topk=8,
            expert_ffn=2560,
            shared_ffn=20480,
        ),
        "Qwen/Qwen2-57B-A14B",
    ),
    "qwen3-0.6b": NamedModel(
        replace(_QWEN3, hidden=1024, layers=28, heads=16, ffn=3072, tied=True),
        "Qwen/Qwen3-0.6B-Base",
    ),
    "qwen3-1.7b": NamedModel(
        replace(_QWEN3, hidden=2048, layers=28, heads=16, ffn=6144, tied=True),
        "Qwen/Qwen3-1.7B-Base",
    ),
    "qwen3-4b": NamedModel(
        replace(_QWEN3, hidden=2560, layers=36, ffn=9728, tied=True), "Qwen/Qwen3-4B-Base"
    ),
    "qwen3-8b": NamedModel(replace(_QWEN3, layers=36, ffn=12288), "Qwen/Qwen3-8B-Base"),
    "qwen3-14b": NamedModel(
        replace(_QWEN3, hidden=5120, layers=40, heads=40, ffn=17408), "Qwen/Qwen3-14B-Base"
    ),
    "qwen3-32b": NamedModel(
        replace(_QWEN3, hidden=5120, layers=64, heads=64, ffn=25600), "Qwen/Qwen3-32B"
    ),
    "qwen3-30b-a3b": NamedModel(
        replace(_QWEN3_MOE, hidden=2048, layers=48, kv_heads=4, ffn=6144, expert_ffn=768),
        "Qwen/Qwen3-30B-A3B-Base",
    ),
    "qwen3-235b-a22b": NamedModel(
        replace(_QWEN3_MOE, layers=94, heads=64, kv_heads=4, ffn=12288, expert_ffn=1536),
        "Qwen/Qwen3-235B-A22B",
    ),
    "deepseek-v2-lite": NamedModel(
        replace(
            _DEEPSEEK,
            hidden=2048,
            layers=27,
            heads=16,
            ffn=10944,
            experts=64,
            topk=6,
            expert_ffn=1408,
            shared_ffn=2816,
        ),
        "deepseek-ai/DeepSeek-V2-Lite",
    ),
    "deepseek-v2": NamedModel(
        replace(
            _DEEPSEEK,
            hidden=5120,
            layers=60,
            heads=128,
            q_rank=1536,
            ffn=12288,
            experts=160,
            topk=6,
            expert_ffn=1536,
            shared_ffn=3072,
        ),
        "deepseek-ai/DeepSeek-V2",
    ),
    "deepseek-v3": NamedModel(
        replace(
            _DEEPSEEK,
            hidden=7168,
            layers=61,
            heads=128,
            q_rank=1536,
            ffn=18432,
            experts=256,
            topk=8,
            expert_ffn=2048,
            shared_ffn=2048,
            dense_layers=3,
            vocab=129280,
            mtp=1,
        ),
        "deepseek-ai/DeepSeek-V3",
    ),
    "kimi-k2": NamedModel(
        replace(
            _DEEPSEEK,
            hidden=7168,
            layers=61,
            heads=64,
            q_rank=1536,
            ffn=18432,
            experts=384,
            topk=8,
            expert_ffn=2048,
            shared_ffn=2048,
            vocab=163840,
        ),
        "moonshotai/Kimi-K2-Base",
    ),
    "minimax-m2": NamedModel(
        replace(
            _QWEN3_MOE,
            hidden=3072,
            layers=62,
            heads=48,
            kv_heads=8,
            ffn=1536,
            experts=256,
            vocab=200064,
            qk_norm_span=True,
        ),
        "MiniMaxAI/MiniMax-M2",
    ),
    "gemma-2-2b": NamedModel(
        replace(_GEMMA2, hidden=2304, layers=26, heads=8, kv_heads=4, ffn=9216),
        "google/gemma-2-2b",
    ),
    "gemma-2-9b": NamedModel(
        replace(_GEMMA2, hidden=3584, layers=42, heads=16, kv_heads=8, ffn=14336),
        "google/gemma-2-9b",
    ),
    "gemma-2-27b": NamedModel(
        replace(_GEMMA2, hidden=4608, layers=46, heads=32, kv_heads=16, head_size=128, ffn=36864),
        "google/gemma-2-27b",
    ),
    "gemma-3-1b": NamedModel(
        replace(
            _GEMMA3,
            hidden=1152,
            layers=26,
            heads=4,
            kv_heads=1,
            ffn=6912,
            vocab=262144,
            window=512,
        ),
        "google/gemma-3-1b-pt",
    ),
    "gemma-3-4b": NamedModel(
        replace(_GEMMA3, hidden=2560, layers=34, heads=8, kv_heads=4, ffn=10240),
        "google/gemma-3-4b-pt",
    ),
    "gemma-3-12b": NamedModel(
        replace(_GEMMA3, hidden=3840, layers=48, heads=16, kv_heads=8, ffn=15360),
        "google/gemma-3-12b-pt",
    ),
    "gemma-3-27b": NamedModel(
        replace(_GEMMA3, hidden=5376, layers=62, heads=32, kv_heads=16, head_size=128, ffn=21504),
        "google/gemma-3-27b-pt",
    ),
    "phi-2": NamedModel(
        replace(
            _GPT2,
            hidden=2560,
            layers=32,
            heads=32,
            ffn=10240,
            vocab=51200,
            seq=2048,
            tied=False,
            rotary=True,
            parallel_block=True,
        ),
        "microsoft/phi-2",
    ),
    "phi-3-mini": NamedModel(
        replace(_PHI3, hidden=3072, kv_heads=32, ffn=8192, window=2047),
        "microsoft/Phi-3-mini-4k-instruct",
    ),
    "phi-3-medium": NamedModel(
        replace(_PHI3, hidden=5120, layers=40, heads=40, kv_heads=10, ffn=17920, window=2047),
        "microsoft/Phi-3-medium-4k-instruct",
    ),
    "phi-3.5-moe": NamedModel(
        replace(_PHI3, ffn=6400, experts=16), "microsoft/Phi-3.5-MoE-instruct"
    ),
    "phi-4": NamedModel(
        replace(_PHI3, hidden=5120, layers=40, heads=40, kv_heads=10, ffn=17920, vocab=100352),
        "microsoft/phi-4",
    ),
    "gpt-oss-20b": NamedModel(_GPT_OSS, "openai/gpt-oss-20b"),
    "gpt-oss-120b": NamedModel(replace(_GPT_OSS, layers=36, experts=128), "openai/gpt-oss-120b"),
    "mpt-1b": NamedModel(
        replace(_MPT, hidden=2048, layers=24, heads=16, ffn=8192, vocab=50368),
        "mosaicml/llm-foundry scripts/train/yamls/pretrain/mpt-1b.yaml",
    ),
    "mpt-7b": NamedModel(
        replace(_MPT, hidden=4096, layers=32, heads=32, ffn=16384), "mosaicml/mpt-7b"
    ),
    "mpt-30b": NamedModel(
        replace(_MPT, hidden=7168, layers=48, heads=64, ffn=28672, seq=8192), "mosaicml/mpt-30b"
    ),
}
MODELS: dict[str, Transformer] = {name: each.shape for name, each in ZOO.items()}
