"""DeepSpeed JSON: how a job is run; the model comes from elsewhere."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.errors import FormatError, UsageError
from weft.models.imported import Imported, Keys, not_understood, read_json
from weft.models.transformer import Transformer
from weft.units import file_name

_BATCHES = ("train_micro_batch_size_per_gpu", "train_batch_size")
_OWN = ("zero_optimization", *_BATCHES)
_HARMLESS = (
    *("optimizer", "scheduler", "steps_per_print", "wall_clock_breakdown", "dump_state"),
    *("tensorboard", "wandb", "csv_monitor", "flops_profiler", "comms_logger", "amp", "seed"),
    *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "prescale_gradients"),
    *("checkpoint", "data_types", "autotuning", "aio", "disable_allgather"),
    *("dataloader_drop_last",),
)
_HARMLESS_ZERO = (
    *("contiguous_gradients", "sub_group_size", "stage3_max_live_parameters"),
    *("round_robin_gradients", "stage3_max_reuse_distance", "stage3_param_persistence_threshold"),
    *("reduce_scatter", "stage3_gather_16bit_weights_on_model_save", "allgather_partitions"),
    *("ignore_unused_parameters", "stage3_gather_fp16_weights_on_model_save"),
    *("allgather_bucket_size", "stage3_prefetch_bucket_size", "elastic_checkpoint"),
    *("load_from_fp32_weights",),
)


def is_deepspeed(document: Mapping[str, Any]) -> bool:
    """Return whether an object is a configuration of DeepSpeed."""
    return any(key in document for key in _OWN)


def read_deepspeed(path: Path, num_ranks: int, model: Transformer | None = None) -> Imported:
    """Read a configuration, which says how ``model`` is run."""
    return imported(read_json(path), file_name(path.stem), str(path), num_ranks, model)


def imported(
    document: Mapping[str, Any], name: str, where: str, num_ranks: int, model: Transformer | None
) -> Imported:
    """Return the job of a configuration."""
    if model is None:
        raise UsageError(
            f"{where} has no model of its own",
            "Use --set model=llama-3.1-8b, or --set model=config.json of Hugging Face.",
        )
    keys = Keys(_without_auto(document), where)
    zero = Keys(keys.table("zero_optimization").values, f"{where}, zero_optimization")
    parallel = keys.table("tensor_parallel")
    tp = parallel.whole("autotp_size", parallel.whole("tp_size", model.tp))
    if not tp or num_ranks % tp:
        raise UsageError(
            f"{where}: autotp_size {tp} does not divide {num_ranks} ranks",
            "Use --ranks with a multiple of it, or another autotp_size.",
        )
    dp = num_ranks // tp
    micro, batch = _batches(keys, dp)
    dtype = _dtype(keys, document, model)
    stage = zero.whole("stage", 0)
    if stage > 3:
        raise FormatError(f"{where}: zero_optimization.stage must be 0 to 3 (got {stage})")
    shard = zero.whole("zero_hpz_partition_size", 1)
    changed = replace(
        model,
        tp=tp,
        dp=dp,
        dtype=dtype,
        batch=batch,
        micro_batch=micro,
        zero=stage,
        shard=shard if shard > 1 else max(0, zero.integer("mics_shard_size", 0)),
        overlap_grad=zero.truth("overlap_comm", default=stage == 3),
        overlap_param=False,  # the optimizer gathers what it has changed
        # elements, in the dtype that is reduced
        bucket=max(1, round(zero.real("reduce_bucket_size", 5e8))) * (4 if dtype == "fp32" else 2),
        clip=keys.real("gradient_clipping", 0.0) > 0,
        grad_dtype=_reduced(keys),
    )
    if "activation_checkpointing" in document and model.recompute == "none":
        keys.used.add("activation_checkpointing")
    notes = [
        f"{where}: zero_optimization.{key} is not modelled"
        for key in ("offload_optimizer", "offload_param", "cpu_offload", "zero_quantized_weights",
                    "zero_quantized_gradients", "zero_quantized_nontrainable_weights")
        if _is_on(zero.get(key))
    ]  # fmt: skip
    if shard > 1:
        notes.append(
            f"{where}: zero_optimization.zero_hpz_partition_size: optimizer states and gradients "
            f"are predicted as shared among {shard} ranks too, which takes more memory"
        )
    if not any(key in keys.values for key in _BATCHES):
        notes.append(f"{where} has no batch; {batch} is assumed, use --set batch= (micro_batch=)")
    unread = [f"zero_optimization.{key}" for key in zero.unread(_HARMLESS_ZERO)]
    unread += keys.unread(_HARMLESS)
    return Imported(name, changed, (*notes, *not_understood(where, unread)), "deepspeed")


def _dtype(keys: Keys, document: Mapping[str, Any], model: Transformer) -> str:
    """Return the dtype that is switched on; "auto" is that of the model."""
    for name in ("fp16", "bf16"):
        if keys.table(name).truth("enabled"):
            return name
    written = [document.get(name) for name in ("fp16", "bf16")]
    automatic = any(isinstance(each, Mapping) and each.get("enabled") == "auto" for each in written)
    return model.dtype if automatic else "fp32"


def _batches(keys: Keys, dp: int) -> tuple[int, int]:
    """Return the sequences of a rank at once, and those of all ranks in a step."""
    batch = keys.whole("train_batch_size", 0)
    micro = keys.whole("train_micro_batch_size_per_gpu", 0)
    steps = keys.whole("gradient_accumulation_steps", 0)
    if batch and not micro:
        micro = max(1, batch // dp // (steps or 1))
    micro = micro or 1
    if batch and not steps:
        steps = max(1, batch // (micro * dp))
    steps = steps or 1
    if batch and batch != micro * steps * dp:
        raise UsageError(
            f"{keys.where}: train_batch_size {batch} is not micro batch {micro} x accumulation "
            f"{steps} x {dp} data-parallel ranks",
            f"Use train_batch_size {micro * steps * dp}, or other --ranks.",
        )
    return micro, micro * steps * dp


def _reduced(keys: Keys) -> str:
    written = str(keys.get("communication_data_type", ""))
    return {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}.get(written, "")


def _is_on(value: Any) -> bool:
    if isinstance(value, Mapping):
        return str(value.get("device", "none")) != "none"
    return bool(value)


def _without_auto(document: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what the Hugging Face trainer fills in: "auto" is the default here."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            found[key] = _without_auto(value)
        elif value != "auto":
            found[key] = value
    return found
