"""torchtitan job files (TOML): a known model, and the layout of its training job."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.errors import FormatError, UsageError, nearest
from weft.hardware.files import read_toml
from weft.models.imported import Imported, Keys, not_understood
from weft.models.transformer import Transformer
from weft.models.transformer_layout import split_with_ends
from weft.models.zoo import MODELS
from weft.units import digits, file_name

# Flavors that torchtitan's model registry has, by the names of the zoo.
FLAVORS = {
    ("llama2", "7B"): "llama-2-7b",
    ("llama2", "13B"): "llama-2-13b",
    ("llama2", "70B"): "llama-2-70b",
    ("llama3", "8B"): "llama-3.1-8b",
    ("llama3", "70B"): "llama-3.1-70b",
    ("llama3", "405B"): "llama-3.1-405b",
    ("llama4", "17bx16e"): "llama-4-scout",
    ("llama4", "17bx128e"): "llama-4-maverick",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
    ("qwen3", "0.6B"): "qwen3-0.6b",
    ("qwen3", "1.7B"): "qwen3-1.7b",
    ("qwen3", "4B"): "qwen3-4b",
    ("qwen3", "8B"): "qwen3-8b",
    ("qwen3", "14B"): "qwen3-14b",
    ("qwen3", "32B"): "qwen3-32b",
    ("qwen3", "30B-A3B"): "qwen3-30b-a3b",
    ("qwen3", "235B-A22B"): "qwen3-235b-a22b",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("gpt_oss", "120b"): "gpt-oss-120b",
}
_SCHEDULES = {
    "1f1b": "1f1b",
    "interleaved1f1b": "1f1b",
    "gpipe": "gpipe",
    "zbvzerobubble": "zb",
    "interleavedzerobubble": "zb",
}
_FLOAT8 = ("float8", "quantize.dense.float8", "quantize.linear.float8")  # linear layers in float8
_SECTIONS = ("parallelism", "training", "activation_checkpoint")
_HARMLESS_SECTIONS = (
    *("job", "profiling", "metrics", "optimizer", "lr_scheduler", "checkpoint", "comm"),
    *("fault_tolerance", "validation", "memory_estimation", "debug"),
)
_HARMLESS = (
    *("steps", "dataset", "dataset_path", "seed", "deterministic", "gc_freq", "gc_debug"),
    *("warmup_steps", "data_parallel_type", "enable_compiled_autograd", "tokenizer_path"),
    *("hf_assets_path", "print_after_conversion", "norm_type"),
    *("compile", "debug_moe_force_load_balance"),
)


def is_torchtitan(document: Mapping[str, Any]) -> bool:
    """Return whether a TOML document is a job of torchtitan."""
    return isinstance(document.get("model"), Mapping) and any(
        isinstance(document.get(section), Mapping) for section in _SECTIONS
    )


def read_torchtitan(path: Path, num_ranks: int, model: Transformer | None = None) -> Imported:
    """Read a job file; ``model`` stands for a flavor that is not known."""
    job = Keys(read_toml(path, FormatError), str(path))
    base = model or _model(job.table("model"))
    training, layout = job.table("training"), job.table("parallelism")
    tp, cp = layout.whole("tensor_parallel_degree", 1), layout.whole("context_parallel_degree", 1)
    pp = layout.whole("pipeline_parallel_degree", 1)
    replicas = layout.whole("data_parallel_replicate_degree", 1)
    inner = tp * cp * pp * replicas
    if min(tp, cp, pp, replicas) < 1:
        raise FormatError(f"{path}: degrees of parallelism must be above zero")
    shard = layout.integer("data_parallel_shard_degree", -1)
    if shard < 0:
        shard = max(1, num_ranks // inner)
    if inner * shard != num_ranks:
        raise UsageError(
            f"{path}: replicate {replicas} x shard {shard} x cp {cp} x tp {tp} x pp {pp} is "
            f"{inner * shard} (got {num_ranks} ranks)",
            f"Use --ranks {inner * shard}, or change the degrees.",
        )
    ep = max(1, layout.whole("expert_parallel_degree", 1))
    shared = layout.whole("expert_tensor_parallel_degree", 1)
    exchange = str(layout.get("expert_parallel_comm_backend", "standard"))
    if str(training.get("mixed_precision_param", "bfloat16")) == "float32":
        base = replace(base, dtype="fp32")
    local = training.whole("local_batch_size", training.whole("batch_size", 8))
    batch = training.integer("global_batch_size", -1)
    changed = replace(
        base,
        seq=training.whole("seq_len", 2048),
        batch=batch if batch > 0 else local * replicas * shard,
        micro_batch=layout.whole("pipeline_parallel_microbatch_size", 1) if pp > 1 else local,
        clip=training.real("max_norm", 1.0) > 0,
        tp=tp,
        cp=cp,
        pp=pp,
        dp=replicas * shard,
        sp=tp > 1,
        tp_overlap=layout.truth("enable_async_tensor_parallel"),
        cp_kind={"allgather": "allgather", "alltoall": "ring"}.get(
            str(layout.get("context_parallel_rotate_method", "allgather")), "ring"
        ),
        ep=ep,
        etp=shared if ep > 1 else 0,  # without ep experts are cut as other products are
        dispatcher="alltoall" if exchange == "standard" else "flex",
        zero=3 if shard * cp > 1 else 0,
        shard=shard * cp if replicas > 1 and shard * cp > 1 else 0,
        reshard=_reshards(layout, pp),
        grad_dtype="fp32" if str(training.get("mixed_precision_reduce", "float32")) == "float32"
        else "",
    )  # fmt: skip
    changed, notes = _pipelined(layout, changed)
    pipelines = changed.batch // max(1, local * replicas * shard)
    if pp > 1 and pipelines > 1:
        notes.append(
            f"{path}: a step is {pipelines} pipelines one after another; predicted is one of all "
            "micro batches, with fewer bubbles"
        )
    changed, more = _recomputed(job.table("activation_checkpoint"), changed)
    notes += more
    changed, more = _converted(job, changed)
    notes += more
    notes += _left_out(job, training, layout)
    compiled = job.table("compile")
    parts = str(compiled.get("components", "model"))
    compiles = (compiled.truth("enable") and "model" in parts) or training.truth("compile")
    stack = "torchtitan" if compiles else "eager"
    return Imported(file_name(path.stem), changed, tuple(notes), stack)


def _model(model: Keys) -> Transformer:
    asked = str(model.get("name", "llama3")), str(model.get("flavor", "debugmodel"))
    if asked not in FLAVORS:
        known = [" ".join(each) for each in FLAVORS]
        raise UsageError(
            f"{model.where}: unknown model {' '.join(asked)!r}",
            f"{nearest(' '.join(asked), known)} Or give its shape by --set model=config.json.",
        )
    return replace(MODELS[FLAVORS[asked]], mtp=0)  # job files have no further tokens to predict


def _reshards(layout: Keys, pp: int) -> bool:
    how = str(layout.get("fsdp_reshard_after_forward", "default"))
    return how == "always" or (how == "default" and pp == 1)


def _pipelined(layout: Keys, model: Transformer) -> tuple[Transformer, list[str]]:
    written = str(layout.get("pipeline_parallel_schedule", "1F1B"))
    name = written.lower()
    notes: list[str] = []
    # layers of the first and the last stage that the embedding and the head stand for
    first = layout.whole("pipeline_parallel_first_stage_less_layers", 1)
    last = layout.whole("pipeline_parallel_last_stage_less_layers", 1)
    if model.pp == 1:
        return model, notes
    if name not in _SCHEDULES:
        raise UsageError(
            f"{layout.where}: schedule {written!r} is not modelled", nearest(name, _SCHEDULES)
        )
    each = layout.whole("pipeline_parallel_layers_per_stage", 0)
    chunks = 2 if name.startswith("interleaved1") else 1
    if each:
        stages = -(-(model.layers + first + last) // each)
        if stages % model.pp:
            raise UsageError(
                f"{layout.where}: pipeline_parallel_layers_per_stage {each} makes {stages} stages "
                f"(expected a multiple of pipeline_parallel_degree {model.pp})",
                "Use another number of layers.",
            )
        chunks = stages // model.pp
    if _SCHEDULES[name] == "zb" and name != "zb":
        notes.append(f"{written} is modelled as the zero-bubble schedule H1 with one chunk a stage")
        chunks = 1
    model = replace(model, schedule=_SCHEDULES[name], interleave=chunks)
    if (first, last) == (1, 1):
        return replace(model, count_ends=True), notes
    counts = split_with_ends(model.layers, model.pp * chunks, first, last)
    return replace(model, stage_layers=tuple(counts) if first or last else ()), notes


def _recomputed(how: Keys, model: Transformer) -> tuple[Transformer, list[str]]:
    mode = str(how.get("mode", "selective"))
    every = digits(str(how.get("selective_ac_option", "2")))
    if mode == "full":
        return replace(model, recompute="full"), []
    if mode == "selective" and every is not None:  # every n-th layer
        layers = -(-model.layers // model.pp // model.interleave // max(1, every))
        return replace(model, recompute="full", recompute_layers=max(1, layers)), []
    known = {"selective": "selective_op", "none": "none"}
    note = f"{how.where}: mode {mode!r} is not modelled; use --set recompute="
    notes = [] if mode in known else [note]
    return replace(model, recompute=known.get(mode, "none")), notes


def _converted(job: Keys, model: Transformer) -> tuple[Transformer, list[str]]:
    """Read in which precision linear layers are computed; other converters are named."""
    found = job.table("model").get("converters", [])
    names = found if isinstance(found, list) else str(found).split(",")
    written = [str(name).strip() for name in names if str(name).strip()]
    linear = [name for name in written if name in _FLOAT8]
    notes = [f"{job.where}: converter {n} is not modelled" for n in written if n not in linear]
    return replace(model, math="fp8") if linear else model, notes


def _left_out(job: Keys, training: Keys, layout: Keys) -> list[str]:
    """Name what changes the step and is not part of the model."""
    found = []
    if training.truth("enable_cpu_offload"):
        found.append(f"{job.where}: training.enable_cpu_offload is not modelled")
    newer = [job.table("quantize").table(each).table("float8") for each in ("dense", "linear")]
    found += [
        f"{table.where}: enable_fsdp_float8_all_gather is not modelled"
        for table in (job.table("float8"), *newer)
        if table.truth("enable_fsdp_float8_all_gather")
    ]
    unread = [f"training.{key}" for key in training.unread(_HARMLESS)]
    unread += [f"parallelism.{key}" for key in layout.unread(_HARMLESS)]
    older = job.table("experimental").unread(("custom_import", "custom_args_module"))
    unread += [f"experimental.{key}" for key in older]
    unread += job.unread((*_HARMLESS_SECTIONS, "compile", "float8", "quantize", "model"))
    return found + list(not_understood(job.where, unread))
