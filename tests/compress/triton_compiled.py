"""Compile every kernel of the codecs for a GPU that need not be here."""

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from weft.compress import triton_codecs as codecs

POINTERS = {"source": "*i32", "values": "*i32", "plan": "*i32", "starts": "*i64", "sizes": "*i64"}
POINTERS |= {"out": "*u8", "payload": "*u8", "length": "i64"}
KERNELS: tuple[tuple[Any, dict[str, Any], dict[str, str]], ...] = (
    (codecs.compact_kernel, {"kind": 0}, {}),
    (codecs.window_kernel, {"kind": 1}, {}),
    (codecs.write_kernel, {"kind": 0}, {}),
    (codecs.walk_kernel, {"kind": 1}, {}),
    (codecs.values_kernel, {"kind": 2}, {}),
    (codecs.spread_kernel, {"kind": 0}, {"out": "*i32"}),
    (codecs.int8_kernel, {"block": 256, "write": True}, {}),
    (codecs.bf16_kernel, {"block": 1024}, {"out": "*i16"}),
)


def main(backend: str, arch: str, warp: str) -> None:
    target = GPUTarget(backend, int(arch) if arch.isdigit() else arch, int(warp))
    for kernel, constants, pointers in KERNELS:
        names = kernel.arg_names
        types = {name: {**POINTERS, **pointers}.get(name, "i32") for name in names}
        types |= dict.fromkeys(constants, "constexpr")
        fixed = {(names.index(name),): value for name, value in constants.items()}
        source = ASTSource(kernel, types, fixed)
        made = triton.compile(source, target=target, options={"enable_fp_fusion": False})
        sys.stdout.write(f"{list(made.asm)[-1]}\n")


if __name__ == "__main__":
    main(*sys.argv[1].split(":"))
