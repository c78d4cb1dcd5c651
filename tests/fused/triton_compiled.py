"""Compile the fused kernels and say what their code does: order of flags, bytes in flight.

Prints a line per kernel: name, binary, releases at system scope, unsafe ones, bytes of the main
operand under way in a program, widest store.
"""

import inspect
import sys
from typing import Any

import triton.language as tl

from tests.fused.compiled_code import Isa, parse_kernel
from tests.triton_targets import compiled, target_of
from weft.fused import triton_kernels as kernels
from weft.fused.triton_configs import GEMM_CONFIGS, GEMV_CONFIGS, embedding_configs

DIMS = (32, 48, 64, 128, 256, 512)
TYPES = {
    **dict.fromkeys(("tables", "samples", "outputs", "flags", "slots", "results"), "*i64"),
    **dict.fromkeys(("tiles", "trouble"), "*i64"),
    **dict.fromkeys(("own_flags", "counters", "epochs"), "*i32"),
    **dict.fromkeys(("matrix", "vectors", "a", "b"), "*fp16"),
    "own_slots": "*fp32",
}
ALIGNED = ("columns", "inner", "width", "part_rows", "features", "stride_column")
ONES = {"rank": 1, "num_tables": 1}  # a launch turns an argument of 1 into a constant


def cases(hip: bool) -> Any:  # noqa: FBT001
    shared = {"peers": 8, "num_programs": 608, "hip": hip}
    for dim in DIMS:
        for number, config in enumerate(embedding_configs(dim)):
            block = 1 << (dim - 1).bit_length()
            constants = {"bags": config.bags, "unroll": config.unroll, "block": block, "vector": 8}
            constants |= {"element": tl.float32, "exact": dim == block, "mean": False}
            constants |= {"weighted": False, **(ONES if number else {}), **shared}
            name = f"embedding-{dim}-{number}"
            yield name, kernels.embedding_all_to_all_kernel, constants, config, "tl.load(source"
    for number, gemv in enumerate(GEMV_CONFIGS):
        constants = {"block_rows": gemv.block_rows, "block_columns": gemv.block_columns}
        constants |= shared | ({"rank": 1} if number else {})
        yield f"gemv-{number}", kernels.gemv_all_reduce_kernel, constants, gemv, "a = tl.load("
    for number, gemm in enumerate(GEMM_CONFIGS):
        constants = {"block_m": gemm.block_m, "block_n": gemm.block_n, "vector": 8}
        constants |= {"block_k": gemm.block_k, "element": tl.float16, "stride_inner": 1}
        constants |= shared | ({"rank": 1} if number else {})
        yield f"gemm-{number}", kernels.gemm_all_to_all_kernel, constants, gemm, "x = tl.load("


def main(target: str, which: str) -> None:
    hip = target.startswith("hip")
    isa: Isa = "amdgcn" if hip else "ptx"
    first = inspect.getsource(kernels).splitlines()
    for name, kernel, constants, config, operand in cases(hip):
        if name.endswith("-0") != (which == "usual"):
            continue
        warps = config.num_warps
        stages = compiled(
            kernel, TYPES, constants, target_of(target), aligned=ALIGNED, num_warps=warps
        )
        code = parse_kernel(stages[isa], isa)
        lines = {number for number, text in enumerate(first, start=1) if operand in text}
        threads = warps * (64 if hip else 32)
        flight = code.bytes_in_flight(threads=threads, sources=lines) * config.programs_per_unit
        unsafe = code.unsafe_releases(num_warps=warps)
        words = (list(stages)[-1], code.num_releases, len(unsafe), flight, code.widest_store())
        sys.stdout.write(" ".join(map(str, (name, *words))) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
