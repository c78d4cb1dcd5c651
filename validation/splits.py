"""Which part of each data set is fitted to, and which part is only looked at afterwards.

Splits are by whole machine, model or scale, never by row. Each was written down before any
value of its data set was looked at; the held-out part is scored once, after the fit.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Split:
    """A data set under ``WEFT_DATA``, the names that are fitted to, and those held out."""

    folder: str
    fitted: tuple[str, ...]
    held_out: tuple[str, ...]
    reason: str


NCCL_BETWEEN_NODES = Split(
    "nccl_tests_h100",
    fitted=("N2_G1", "N2_G2", "N2_G8", "N10_G1"),
    held_out=("N2_G4", "N10_G4"),
    reason="every log with 4 GPUs per node is held out: a number of rails that no fit has seen, "
    "and many nodes with several rails each",
)

VIDUR_LAYERS = Split(
    "vidur/compute",
    fitted=("a100/CodeLlama-34b-Instruct-hf", "a100/Llama-2-7b-hf"),
    held_out=(
        "a100/Llama-2-70b-hf",
        "a100/Meta-Llama-3-8B",
        "a40/Llama-2-70b-hf",
        "a40/Llama-2-7b-hf",
    ),
    reason="two models of other shapes on the device that was fitted, and a whole device",
)

RECORDED_MI300X = Split(
    "tracelens/traces",
    fitted=("qwen1.5-0.5b_MI300X_single",),
    held_out=("bert-small_MI300X_single", "resnet_ddp_8xMI300X_rank0"),
    reason="kernels of two other models",
)

MEMORY_SIMUMAX = Split(
    "simumax_b200",
    fitted=("llama3-70b",),
    held_out=("llama3-405b",),
    reason="a whole model of other widths",
)

MEMORY_MEGATRON = Split(
    "megatron_goldens",
    fitted=("gpt",),
    held_out=("bert", "mixtral", "moe"),
    reason="whole families of models: encoders, and models of experts",
)

DEEPBENCH_T4 = Split(
    "deepbench/NV_T4_gemm.csv",
    fitted=("DeepSpeech",),
    held_out=("Speaker ID", "Language Modelling"),
    reason="products of other applications, on a card whose clock falls under its power limit",
)

PUBLISHED_ATTENTION = Split(
    "",
    fitted=("h100: arXiv 2407.08608, head dimension 128, forward and backward",),
    held_out=(
        "h100: arXiv 2407.08608, head dimensions 64 and 256",
        "h100: other authors, backward with a causal mask among them",
    ),
    reason="other head dimensions, masks and machines than those fitted; all were printed before",
)

STEPS_FSDP = Split(
    "llm_foundry/fsdp_mpt.csv",
    fitted=("760m", "1b", "7b", "13b"),
    held_out=("125m", "350m", "3b", "30b", "70b"),
    reason="whole models, smaller and larger than those fitted and between them, on all GPUs",
)

STEPS_MEGATRON = Split(
    "vtrain/single_node_a100.csv",
    fitted=("hidden 1024",),
    held_out=("hidden 2048",),
    reason="every model of the other width, with all of its layouts",
)

STEPS_TORCHTITAN = Split(
    "published_tables/torchtitan_llama3_h100_2024-12.csv",
    fitted=("table 1",),
    held_out=("table 2", "table 3"),
    reason="long sequences with context parallelism, and 128 GPUs",
)

STEPS_ZERO = Split(
    "internevo/throughput_7b_a100.csv",
    fitted=(),
    held_out=("every row",),
    reason="nothing is fitted to it: another program on another network",
)

STEPS_405B = Split(
    "mlperf_training_v5.0/step_times.csv",
    fitted=("H100 512", "H100 2048"),
    held_out=("H100 2432", "H100 2560", "GB200, every number of GPUs"),
    reason="the two rows that were in view while parallelism was modelled; no constant is fitted "
    "to them. Other numbers of GPUs and a whole device are held out",
)
