"""Seconds that a codec takes for one chunk: measured on a core, by parameters on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.errors import UnknownNameError, nearest

if TYPE_CHECKING:
    from weft.hardware import Device


@dataclass(frozen=True, slots=True)
class CodecRates:
    """Bytes a second of what is encoded, and what every chunk costs beyond them.

    ``fills``: a shorter chunk takes as long as this one, because it leaves units idle.
    """

    encode: float
    decode: float
    start: float = 0.0
    fills: int = 0

    def seconds(self, nbytes: float, *, decodes: bool) -> float:
        """Return the seconds of a chunk of ``nbytes`` before it is encoded."""
        rate = self.decode if decodes else self.encode
        return self.start + max(nbytes, self.fills) / rate


# One core, chunks of 256 KiB of trained weights: medians of `weft bench codecs` on a 2-core
# machine with AVX2, benchmarks/results/codecs.jsonl; rounded. A chunk begins with a call.
_CALL = 2e-6
_CORE = {
    "pack": (8.9e9, 15.0e9),
    "bf16": (32e9, 40e9),
    "fp16": (34e9, 30e9),
    "fp8": (2.7e9, 3.0e9),
    "int8": (28e9, 41e9),
    "int4": (4.8e9, 15.7e9),
    "zfp": (0.144e9, 0.108e9),  # at 16 bits a value
    "zfp:8": (0.194e9, 0.191e9),
    "blosc2": (2.2e9, 2.4e9),  # lz4
    "blosc2:zstd": (0.59e9, 1.94e9),
}

# On a GPU a codec is kernels that read and write memory: so many passes over what is encoded
# (pack decides, gathers and writes; native/codecs has the same steps), each a launch. A kernel
# needs about 64 KiB for each unit until it fills the device. These are parameters, not
# measurements: these kernels were not run on these devices.
_PASSES = {"pack": 3.0, "bf16": 1.0, "fp16": 1.0, "fp8": 1.0, "int8": 1.0, "int4": 1.0}
_OTHER_PASSES = 4.0  # zfp and the like: bound by arithmetic more than by memory
_FILLS_UNIT = 64 << 10


def is_priced(codec: str) -> bool:
    """Return whether a codec is work: "none" only moves bytes. Raise for one without rates."""
    kind = codec.partition(":")[0]
    if kind != "none" and kind not in _CORE:
        raise UnknownNameError(
            f"codec {codec!r} has no rates, so its time cannot be predicted (known: "
            f"{', '.join(name for name in _CORE if ':' not in name)}).",
            nearest(kind, _CORE) or "Add its rates to weft/cost/codec.py.",
        )
    return kind != "none"


def codec_rates(codec: str, device: Device | None) -> CodecRates:
    """Return what a codec achieves on a device; a network without devices has cores."""
    kind = codec.partition(":")[0]
    if not is_priced(codec):
        raise UnknownNameError(f"codec {codec!r} is no work: it has no rates.")
    if device is None or device.units == 1:
        encode, decode = _CORE.get(codec) or _CORE[kind]
        return CodecRates(encode, decode, _CALL)
    passes = _PASSES.get(kind, _OTHER_PASSES)
    rate = device.memory_rate / (1 + passes)  # what is read so often, and written once
    return CodecRates(rate, rate, passes * device.launch, device.units * _FILLS_UNIT)
