"""Compile every kernel of the codecs for a GPU that need not be here."""

import sys
from typing import Any

from tests.triton_targets import compiled, target_of
from weft.compress import triton_codecs as codecs
from weft.compress import triton_pack_kernels as pack

POINTERS = {
    "source": "*i32",
    "values": "*i32",
    "plan": "*i32",
    "starts": "*i64",
    "sizes": "*i64",
    "wrong": "*i32",
}
POINTERS |= {"out": "*u8", "payload": "*u8", "length": "i64"}
KERNELS: tuple[tuple[Any, dict[str, Any], dict[str, str]], ...] = (
    (pack.compact_kernel, {"kind": 0}, {}),
    (pack.window_kernel, {"kind": 1}, {}),
    (pack.write_kernel, {"kind": 0}, {}),
    (pack.check_kernel, {"kind": 1}, {}),
    (pack.values_kernel, {"kind": 2}, {}),
    (pack.spread_kernel, {"kind": 0}, {"out": "*i32"}),
    (codecs.int8_kernel, {"block": 256, "write": True}, {}),
    (codecs.bf16_kernel, {"block": 1024}, {"out": "*i16"}),
    (codecs.bf16_decode_kernel, {"block": 1024}, {"source": "*i16", "out": "*i32"}),
    (codecs.int8_starts_kernel, {"block": 256}, {}),
    (codecs.int8_decode_kernel, {"block": 256, "regular": True}, {"out": "*i32"}),
    (codecs.int8_decode_kernel, {"block": 64, "regular": False}, {"out": "*i32"}),
)


def main(target: str) -> None:
    for kernel, constants, pointers in KERNELS:
        stages = compiled(kernel, {**POINTERS, **pointers}, constants, target_of(target))
        sys.stdout.write(f"{list(stages)[-1]}\n")


if __name__ == "__main__":
    main(sys.argv[1])
