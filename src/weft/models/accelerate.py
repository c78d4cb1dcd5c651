"""Hugging Face accelerate YAML: FSDP, DeepSpeed or DDP settings; the model comes from elsewhere."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.errors import UsageError
from weft.models import deepspeed
from weft.models.imported import Imported, Keys, not_understood, read_yaml
from weft.models.transformer import Transformer
from weft.units import file_name

# Sharding strategies of FSDP by their names and, in older files, their numbers.
_STRATEGIES = {
    "FULL_SHARD": (3, True),
    "1": (3, True),
    "SHARD_GRAD_OP": (3, False),
    "2": (3, False),
    "NO_SHARD": (0, True),
    "3": (0, True),
    "HYBRID_SHARD": (3, True),
    "4": (3, True),
    "HYBRID_SHARD_ZERO2": (3, False),
    "5": (3, False),
}
_HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5")
_DTYPES = {"no": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}
_NODE = 8  # ranks of a node, among which hybrid sharding shares weights
_HARMLESS = (
    *("compute_environment", "debug", "downcast_bf16", "machine_rank", "main_training_function"),
    *("num_machines", "num_processes", "rdzv_backend", "same_network", "tpu_env", "use_cpu"),
    *("tpu_use_cluster", "tpu_use_sudo", "main_process_ip", "main_process_port", "gpu_ids"),
    *("enable_cpu_affinity", "dynamo_config"),
)
_HARMLESS_FSDP = (
    *("fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap", "fsdp_state_dict_type"),
    *("fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states", "fsdp_use_orig_params"),
    *("fsdp_version", "fsdp_min_num_params", "fsdp_backward_prefetch_policy"),
)


def is_accelerate(document: Mapping[str, Any]) -> bool:
    """Return whether a YAML document is a configuration of accelerate."""
    return "distributed_type" in document


def read_accelerate(path: Path, num_ranks: int, model: Transformer | None = None) -> Imported:
    """Read a configuration, which says how ``model`` is run."""
    keys = Keys(read_yaml(path), str(path))
    if model is None:
        raise UsageError(
            f"{path} has no model of its own",
            "Use --set model=llama-3.1-8b, or --set model=config.json of Hugging Face.",
        )
    # YAML reads a bare NO, and a bare no, as false.
    kind = str(keys.get("distributed_type") or "NO")
    name, written = file_name(path.stem), str(keys.get("mixed_precision") or "no").lower()
    if written not in _DTYPES:
        raise UsageError(
            f"{path}: unknown mixed_precision {written!r}", f"Known: {', '.join(_DTYPES)}."
        )
    if kind == "DEEPSPEED":
        model = replace(model, math="fp8" if written == "fp8" else "")
        return _by_deepspeed(keys, name, num_ranks, model, _DTYPES[written])
    model = replace(
        model,
        dtype=_DTYPES[written],
        math="fp8" if written == "fp8" else "",
        batch=-(-model.batch // num_ranks) * num_ranks,
    )
    if kind == "FSDP":
        model, unread = _sharded(keys, model, num_ranks)
    elif kind in ("MULTI_GPU", "NO"):
        # autocast leaves weights, and so the gradients that DDP sums, in fp32
        model = replace(model, grad_dtype="" if written == "no" else "fp32")
        unread = []
    else:
        raise UsageError(
            f"{path}: distributed_type {kind} is not modelled",
            "Known: DEEPSPEED, FSDP, MULTI_GPU, NO.",
        )
    notes = not_understood(str(path), [*unread, *keys.unread(_HARMLESS)])
    if model.shard:
        nodes = f"{path}: weights are shared among {model.shard} ranks of a node; use --set shard="
        notes = (*notes, nodes)
    batch = f"{path} has no batch; {model.batch} is assumed, use --set batch= (and seq=)"
    return Imported(name, model, (*notes, batch), "eager")


def _sharded(keys: Keys, model: Transformer, num_ranks: int) -> tuple[Transformer, list[str]]:
    own = keys.table("fsdp_config")
    written = str(own.get("fsdp_sharding_strategy", "FULL_SHARD"))
    if written not in _STRATEGIES:
        raise UsageError(
            f"{own.where}: fsdp_sharding_strategy {written} is not modelled",
            f"Known: {', '.join(name for name in _STRATEGIES if not name.isdecimal())}.",
        )
    zero, reshard = _STRATEGIES[written]
    again = own.get("fsdp_reshard_after_forward", reshard)
    ahead = str(own.get("fsdp_backward_prefetch", "BACKWARD_PRE"))
    own.truth("fsdp_forward_prefetch")
    model = replace(
        model,
        zero=zero,
        reshard=again if isinstance(again, bool) else reshard,
        shard=min(_NODE, num_ranks) if written in _HYBRID else 0,
        prefetch=0 if ahead in ("NO_PREFETCH", "None") else 1,
        recompute="full" if own.truth("fsdp_activation_checkpointing") else model.recompute,
    )
    unread = [f"fsdp_config.{key}" for key in own.unread(_HARMLESS_FSDP)]
    return model, unread  # offloading among them


def _by_deepspeed(
    keys: Keys, name: str, num_ranks: int, model: Transformer, dtype: str
) -> Imported:
    own = keys.table("deepspeed_config")
    document: dict[str, Any] = {
        "zero_optimization": {
            "stage": own.whole("zero_stage", 2),
            "offload_optimizer": {"device": own.get("offload_optimizer_device", "none")},
            "offload_param": {"device": own.get("offload_param_device", "none")},
        },
        "gradient_accumulation_steps": own.whole("gradient_accumulation_steps", 1),
        "gradient_clipping": own.real("gradient_clipping", 0.0),
        **({} if dtype == "fp32" else {dtype: {"enabled": True}}),
    }
    if own.get("deepspeed_config_file") is not None:
        raise UsageError(
            f"{keys.where} names a file of DeepSpeed", "Give that file: weft predict ds.json ..."
        )
    found = deepspeed.imported(document, name, keys.where, num_ranks, model)
    unread = own.unread(
        ("zero3_init_flag", "zero3_save_16bit_model", "deepspeed_multinode_launcher")
    )
    notes = not_understood(keys.where, [*unread, *keys.unread(_HARMLESS)])
    return replace(found, notes=(*found.notes, *notes))
