"""Compile kernels for a GPU that need not be here."""

from collections.abc import Collection, Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


def target_of(text: str) -> GPUTarget:
    """Read ``hip:gfx942:64`` or ``cuda:90:32``: backend, architecture, threads of a warp."""
    backend, arch, warp = text.split(":")
    return GPUTarget(backend, int(arch) if arch.isdigit() else arch, int(warp))


def compiled(
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    target: GPUTarget,
    *,
    aligned: Collection[str] = (),
    num_warps: int = 4,
) -> dict[str, Any]:
    """The stages of a kernel, the last of them its binary; arguments are i32 if not named.

    Pointers and the ``aligned`` numbers are multiples of 16, as a launch finds out by itself.
    """
    names = kernel.arg_names
    signature = {name: types.get(name, "i32") for name in names}
    signature |= dict.fromkeys(constants, "constexpr")
    fixed = {(names.index(name),): value for name, value in constants.items()}
    attributes = {
        (names.index(name),): [["tt.divisibility", 16]]
        for name, kind in signature.items()
        if kind.startswith("*") or name in aligned
    }
    source = ASTSource(kernel, signature, fixed, attributes)
    stages: dict[str, Any] = triton.compile(
        source, target=target, options={"enable_fp_fusion": False, "num_warps": num_warps}
    ).asm
    return stages
