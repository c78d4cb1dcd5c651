"""Known models: their shapes have as many parameters as was published."""

import pytest

from weft.models.named import generate
from weft.models.zoo import MODELS, ZOO
from weft.step import check

# Billions of parameters, and those a token meets, from the model cards (of Hugging Face, where
# nothing else is said); a card rounds, so the last digit may differ.
PUBLISHED = {
    "gpt2-xl": (1.56, None),
    "gpt3-175b": (174.6, None),
    "llama-2-7b": (6.74, None),
    "llama-2-13b": (13.0, None),
    "llama-2-70b": (69.0, None),
    "llama-3-8b": (8.03, None),
    "llama-3.1-70b": (70.6, None),
    "llama-3.1-405b": (405.9, None),
    "llama-3.2-1b": (1.24, None),
    "llama-3.2-3b": (3.21, None),
    "llama-4-scout": (108.0, 17.0),
    "llama-4-maverick": (400.0, 17.0),
    "mistral-7b": (7.25, None),
    "mistral-nemo-12b": (12.2, None),
    "mistral-small-24b": (23.6, None),
    "mistral-large-123b": (122.6, None),
    "mixtral-8x7b": (46.7, 12.9),
    "mixtral-8x22b": (140.6, 39.1),
    "qwen2.5-7b": (7.62, None),
    "qwen2.5-72b": (72.7, None),
    "qwen2-57b-a14b": (57.4, 14.2),
    "qwen3-8b": (8.19, None),
    "qwen3-32b": (32.8, None),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-235b-a22b": (235.1, 22.2),
    "deepseek-v2-lite": (15.7, 2.7),
    "deepseek-v2": (235.7, 21.4),
    "deepseek-v3": (671.0 + 11.6, None),  # 11.6 of the module that predicts a further token
    "gemma-2-9b": (9.24, None),
    "gemma-2-27b": (27.2, None),
    "gemma-3-27b": (27.0, None),
    "phi-2": (2.78, None),
    "phi-3-mini": (3.82, None),
    "phi-3.5-moe": (41.9, 6.6),
    "phi-4": (14.7, None),
    "gpt-oss-20b": (20.9, None),
    "gpt-oss-120b": (116.8, None),
    "mpt-7b": (6.65, None),
    "mpt-30b": (30.0, None),
}


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_a_model_has_as_many_parameters_as_published(name, published):
    total, active = published
    model = MODELS[name]
    assert model.parameters / 1e9 == pytest.approx(total, rel=0.005)
    if active:
        assert model.active_parameters / 1e9 == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.experts])
def test_models_of_experts_spread_over_expert_parallel_ranks(name):
    graph = generate(name, 16, {"batch": "16", "ep": "8", "layers": "4", "tp": "2", "sp": "1"})
    check(graph)
    assert any(op.name == "experts up" for op in graph.ops())


def test_every_model_names_its_source():
    assert all("/" in each.source or "arXiv" in each.source for each in ZOO.values())
