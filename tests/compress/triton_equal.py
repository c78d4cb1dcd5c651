"""Compare payloads made in Triton's interpreter with those of the native codecs."""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft.compress import codec_of, triton_codecs
from weft.compress.codec_registry import encoded
from weft.compress.frame import Octets

HEAD = 32
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def cases(count: int) -> Iterator[NDArray[Any]]:
    rng = np.random.default_rng(count)
    usual = rng.normal(0, 0.02, count).astype(np.float32)
    yield usual
    yield np.where(rng.random(count) < 0.9, np.float32(0), usual)
    yield usual * (rng.random(count) < 0.1).astype(np.float32)  # with negative zeros
    yield np.zeros(count, np.float32)
    yield rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    odd = usual.copy()
    odd[::97], odd[::101], odd[::103] = np.inf, np.nan, 1e-42
    yield odd


def payload(name: str, dtype: str, chunk: Octets) -> Octets | None:
    """Return what the CPU makes; None where it does not pay."""
    frame = encoded(codec_of(name, dtype), chunk)
    return frame[HEAD:] if frame[5] != 1 else None


def check_pack(values: NDArray[Any], dtype: str) -> None:
    tensor = torch.from_numpy(values.copy()).to(DTYPES[dtype])
    chunk = tensor.view(torch.uint8).numpy()
    made, want = triton_codecs.pack(tensor), payload("pack", dtype, chunk)
    assert len(made) >= len(chunk) if want is None else np.array_equal(made.numpy(), want)
    back = torch.empty_like(tensor)
    assert triton_codecs.unpack(made, back)
    assert np.array_equal(back.view(torch.uint8).numpy(), chunk)
    assert not triton_codecs.unpack(made[:-1], back)
    for at in (0, 1, 2, len(made) - 1):  # sizes, the mode of the first block
        broken = made.clone()
        broken[at] ^= 0x15
        triton_codecs.unpack(broken, back)  # never reads or writes elsewhere
    broken = made.clone()
    broken[0] += 1
    assert not triton_codecs.unpack(broken, back)


def check_lossy(name: str, tensor: torch.Tensor) -> None:
    """Compare payload and decoded values with those of the native codec."""
    codec, chunk = codec_of(name, "float32"), tensor.view(torch.uint8).numpy()
    frame = encoded(codec, chunk)
    made, back = triton_codecs.encode(name, tensor), torch.empty_like(tensor)
    assert triton_codecs.decode(name, made, back)
    if frame[5] == 1:  # stored as it is: it did not shrink
        assert len(made) >= len(chunk)
        return
    assert np.array_equal(made.numpy(), frame[HEAD:])
    want = np.empty_like(chunk)
    codec.decode(frame, want)
    assert np.array_equal(back.view(torch.uint8).numpy(), want)
    assert not triton_codecs.decode(name, made[:-1], back)


def main(count: int) -> None:
    for values in cases(count):
        for dtype in DTYPES:
            check_pack(values, dtype)
        tensor = torch.from_numpy(values.copy())
        for name in ("int8", "int8:64", "bf16"):
            check_lossy(name, tensor)
    sys.stdout.write("equal\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
