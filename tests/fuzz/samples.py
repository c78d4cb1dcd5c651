"""Small good inputs of every format, from which fuzzing begins."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.trace.events import all_reduce, event, kernel, launch, mark, one_step, text
from tests.trace.nsight_files import write_nsight

KINETO = text(
    [
        mark(1, 0, 100),
        mark(2, 100, 100),
        event("aten::mm", "cpu_op", 1, 5, 1, **{"Input Dims": [[8, 8], [8, 8]], "External id": 3}),
        launch(2, 1),
        kernel(10, 30, correlation=1, grid=[1, 1, 1]),
        launch(4, 2),
        all_reduce(20, 40, correlation=2),
        launch(104, 3),
        kernel(110, 30, correlation=3),
        all_reduce(120, 40, correlation=4),
    ]
)

# A step whose mark has no length, and shapes that are nested more deeply than shapes are.
KINETO_ODD = text(
    [
        mark(1, 0, 0),
        mark(2, 100, 50),
        event("nccl:all_reduce", "cpu_op", 1, 5, 1, **{"Input Dims": [[[[[[2]]]]]]}),
        launch(2, 1),
        all_reduce(10, 30, correlation=1),
    ]
)


def number(value: int) -> bytes:
    """Return a variable-length number as Protocol Buffers write it."""
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(key: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return number(key << 3) + number(value)
    raw = value if isinstance(value, bytes) else value.encode()
    return number(key << 3 | 2) + number(len(raw)) + raw


def _chakra_node(ident: int, name: str, micros: int, needs: tuple[int, ...] = ()) -> bytes:
    attributes = (("is_cpu_op", 27, 0), ("tid", 9, 7), ("comm_type", 9, 0), ("comm_size", 9, 4096))
    head = field(1, ident) + field(2, name) + field(3, 4) + field(7, micros) + field(6, ident * 9)
    inputs = field(8, field(1, "[]") + field(2, "[[4, 4]]") + field(3, "['Tensor(float)']"))
    return (
        head
        + field(5, b"".join(map(number, needs)))
        + inputs
        + b"".join(field(10, field(1, each) + field(key, value)) for each, key, value in attributes)
    )


_MESSAGES = (field(1, "0.0.4"), _chakra_node(1, "gemm", 30), _chakra_node(2, "nccl", 20, (1,)))
CHAKRA = b"".join(number(len(message)) + message for message in _MESSAGES)

NODES = json.dumps(
    {
        "schema": "1.0.1",
        "pid": 7,
        "nodes": [
            {
                "name": name,
                "id": ident,
                "rf_id": ident,
                "parent": 1,
                "tid": 1,
                "inputs": {"shapes": [[4, 4]], "types": ["Tensor(float)"]},
                "attrs": [{"name": "comm_type", "value": "4"}, {"name": "pg_size", "value": "2"}],
            }
            for ident, name in enumerate(("aten::mm", "nccl:all_reduce"), 2)
        ],
    }
).encode()
GRAPH = json.dumps(
    {
        "workload_graph": [
            {"Id": 1, "Name": "gemm", "Runtime": 30, "isCpuOp": False, "DataDeps": []},
            {"id": 2, "name": "nccl", "durationMicros": "9", "ctrlDeps": [1], "nodeType": 7},
        ]
    }
).encode()


def _record(start: int, end: int, **more: Any) -> dict[str, Any]:
    known = {"start_timestamp": start, "end_timestamp": end, "thread_id": 1}
    return {**known, "correlation_id": {"internal": start}, **more}


ROCPROF = json.dumps(
    {
        "rocprofiler-sdk-tool": [
            {
                "kernel_symbols": [{"kernel_id": 1, "formatted_kernel_name": "ncclDevKernel"}],
                "agents": [{"type": 2, "product_name": "AMD Instinct MI300X", "cu_count": 304}],
                "strings": {"buffer_records": [{"kind": "a", "operations": ["x", "y"]}]},
                "buffer_records": {
                    "kernel_dispatch": [
                        _record(9, 30, dispatch_info={"kernel_id": 1, "queue_id": {"handle": 2}})
                    ],
                    "memory_copy": [_record(40, 50, bytes=64, kind=0, operation=1)],
                    "hip_api": [_record(1, 3, kind=0, operation=0)],
                },
            }
        ]
    }
).encode()

TABLES = b"""batch = 64
[[tables]]
rows = 1000
dim = 64
pooling = 20
zipf = 1.05
[[tables]]
name = "small"
rows = 10
dim = 16
dtype = "float16"
count = 3
"""
WORKLOAD = b"""model = "gpt2"
batch = 4
seq = 128
layers = 2
tp = 2
fsdp = true
"""
PLATFORM = b"""name = "made"
device = "mi300x"
extends = "mi300x-8"
[[levels]]
kind = "mesh"
size = 4
rate = { value = "336GB/s", basis = "achieved", source = "made" }
latency = { value = "900ns", basis = "derived", source = "made" }
[[levels]]
kind = "switch"
size = 2
rate = "50GB/s"
[host]
memory_rate = { value = "921.6GB/s", basis = "rated", source = "made" }
link_rate = "52.4GB/s"
[nic]
rate = { value = "50GB/s", basis = "rated", source = "made" }
latency = "1.25us"
"""
CONFIG = b"""{"model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 4,
"vocab_size": 512,
"num_attention_heads": 4, "intermediate_size": 128, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
"qk_rope_head_dim": 8, "n_routed_experts": 8, "num_experts_per_tok": 2,
"moe_intermediate_size": 32, "first_k_dense_replace": 1, "max_position_embeddings": 128}"""
TORCHTITAN = b"""[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 128
[parallelism]
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
[activation_checkpoint]
mode = "selective"
"""
MEGATRON = b"""TP=2
torchrun x.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --bf16 \\
 --tensor-model-parallel-size $TP --micro-batch-size 1 --global-batch-size=8 --swiglu
"""
MEGATRON_YAML = b"""MODEL_ARGS:
  --num-layers: 4
  --hidden-size: 64
  --num-attention-heads: 4
  --seq-length: 128
  --num-experts: 4
  --moe-layer-freq: ([0]*1+[1]*3)
"""
DEEPSPEED = b"""{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
"bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "overlap_comm": true}}"""
ACCELERATE = b"""distributed_type: FSDP
mixed_precision: bf16
fsdp_config:
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_activation_checkpointing: true
"""

FLIGHT_RECORDER = json.dumps(
    {
        "version": "2.10",
        "pg_config": {"0": {"ranks": "[0, 1]"}},
        "entries": [
            {
                "profiling_name": "nccl:all_reduce",
                "process_group": ["0", "default_pg"],
                "collective_seq_id": number,
                "time_created_ns": 1_000_000 * number,
                "time_discovered_completed_ns": 1_000_000 * number + 5000,
                "duration_ms": 0.004,
                "input_sizes": [[64]],
                "output_sizes": [[64]],
                "input_dtypes": ["Float"],
            }
            for number in (1, 2)
        ],
    }
).encode()


def nsight() -> bytes:
    """Return a small export of Nsight Systems."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.sqlite"
        write_nsight(path, [one_step()])
        return path.read_bytes()
