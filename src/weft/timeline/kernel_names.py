"""Readable names of kernels: template parameters and arguments are removed."""

import re
from functools import cache

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\{anonymous\}::|<unnamed>::")
# The purpose of a generic kernel, inside its template: PyTorch's functors, ops and lambdas.
_TELLING = re.compile(r"\b(\w+(?:Functor\w*|Ops|_cuda\w*|_kernel_impl\w*))\b")
_LONGEST = 80


@cache
def short_name(name: str) -> str:
    """Shorten the name of a kernel.

    >>> short_name("void at::native::reduce_kernel<512, 1, ReduceOp<float, MeanOps<float> > >(int)")
    'reduce_kernel<MeanOps>'
    >>> short_name("ncclDevKernel_AllReduce_Sum_f32(ncclDevComm*)"), short_name("aten::add_")
    ('ncclDevKernel_AllReduce_Sum_f32', 'aten::add_')
    >>> short_name("Memcpy HtoD (Pageable -> Device)")
    'Memcpy HtoD (Pageable -> Device)'
    """
    plain = _ANONYMOUS.sub("", name)
    if _is_function(plain):
        outer = _outside(plain)
        words = outer.split() or [plain]
        parts = words[-1].split("::")
        last = parts[-1] if len(parts[-1]) > len("kernel") else "::".join(parts[-2:])
        told = next((w for w in _TELLING.findall(plain[len(outer) :]) if w != last), "")
        plain = f"{last}<{told}>" if told else last
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"


def _is_function(name: str) -> bool:
    """Return whether a name is a C++ function rather than a phrase."""
    head = name.removeprefix("void ").split("(")[0].strip()
    return name.endswith((")", ">")) and ("::" in name or " " not in head)


def _outside(name: str) -> str:
    """Return the text outside of all brackets."""
    depth, kept = 0, []
    for letter in name:
        if letter in "<({[":
            depth += 1
        elif letter in ">)}]":
            depth = max(depth - 1, 0)
        elif not depth:
            kept.append(letter)
    return "".join(kept)
