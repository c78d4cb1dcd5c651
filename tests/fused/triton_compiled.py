"""Compile the fused kernels and say what of their communication stands in the code."""

import re
import sys
from typing import Any

from tests.triton_targets import compiled, target_of
from weft.fused import triton_kernels as kernels

POINTERS = {
    **dict.fromkeys(("first_rows", "indices", "offsets", "peers", "wrong"), "*i64"),
    **dict.fromkeys(("slots", "results"), "*i64"),
    **dict.fromkeys(("counters", "queue", "tail", "counts", "late"), "*i32"),
    **dict.fromkeys(("weights", "matrix", "vector"), "*fp32"),
    "a": "*fp16",
    "b": "*fp16",
    "flags": "*i64",
    "outbox": "i64",
}
KERNELS: dict[str, tuple[Any, dict[str, int], dict[str, str]]] = {
    "embedding": (
        kernels.embedding_all_to_all_kernel,
        {"dim": 64, "block": 64, "num_programs": 304},
        {},
    ),
    "gemv": (
        kernels.gemv_all_reduce_kernel,
        {"block_rows": 16, "block_columns": 128, "num_programs": 304},
        {},
    ),
    "gemm": (
        kernels.gemm_all_to_all_kernel,
        {"block_m": 64, "block_n": 64, "block_k": 32, "num_programs": 304},
        {},
    ),
    "wait": (kernels.wait_kernel, {}, {"flags": "*i32"}),
}
# Stage of the assembly, and what a flag at system scope looks like in it: raised, looked at.
AMD = ("amdgcn", r"buffer_wbl2 sc0 sc1", r"(flat|global)_atomic_\w+ .*\bsc1\b")
NVIDIA = ("ptx", r"(atom|red)\S*\.sys\.release", r"(atom|ld)\S*\.sys\.(acquire|acq_rel)")


def main(target: str) -> None:
    stage, raised, looked = AMD if target.startswith("hip") else NVIDIA
    for name, (kernel, constants, pointers) in KERNELS.items():
        stages = compiled(kernel, {**POINTERS, **pointers}, constants, target_of(target))
        code = stages[stage]
        found = [
            word
            for word, pattern in (("raises", raised), ("looks", looked))
            if re.search(pattern, code)
        ]
        sys.stdout.write(f"{name} {list(stages)[-1]} {' '.join(found)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
