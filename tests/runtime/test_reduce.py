"""Reductions give what numpy gives, for every dtype and operation."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from tests.arrays import OPS
from tests.runtime.cases import made, own
from weft.runtime import run, spawn
from weft.schedule import Buffer, Queue, Reduce

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]

DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8"]
CASES = [(dtype, op) for dtype in [*DTYPES, "bfloat16"] for op in OPS]
COUNT = 1001  # not whole blocks


def sources(dtype):
    """Three arrays, with what is special for their type among them."""
    rng = np.random.default_rng(7)
    if dtype == "bfloat16":
        return [brain(array) for array in sources("float32")]
    if np.dtype(dtype).kind != "f":
        info = np.iinfo(dtype)
        return [rng.integers(info.min, info.max, COUNT, dtype, endpoint=True) for _ in range(3)]
    arrays = [rng.normal(size=COUNT) * 10.0 ** rng.integers(-6, 6, COUNT) for _ in range(3)]
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 65504, 6e-8, 1e-5]
    for index, value in enumerate(special * 3):
        arrays[index % 3][index] = value
    with np.errstate(over="ignore"):
        return [array.astype(dtype) for array in arrays]


def brain(array):
    """The nearest bfloat16, ties to even, as its bits."""
    wide = array.view(np.uint32)
    rounded = ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16)


def widened(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def expected(dtype, op):
    with np.errstate(all="ignore"):
        if dtype != "bfloat16":
            return reduce(OPS[op], sources(dtype))
        return reduce(lambda a, b: brain(OPS[op](widened(a), widened(b))), sources(dtype))


def reduce_all(world):
    """Sources stand one byte off, so that no element is aligned."""
    results = {}
    for dtype, op in CASES:
        arrays = sources(dtype)
        size = arrays[0].nbytes
        slices = tuple(own("in", 1 + k * size, size) for k in range(3))
        schedule = made(
            f"{dtype} {op}",
            world.num_ranks,
            Queue("stream0", (Reduce(slices, own("out", 0, size), dtype, op),)),
            buffers=(Buffer("in", 1 + 3 * size, "in"), Buffer("out", size, "out")),
        )
        data = np.concatenate([np.zeros(1, np.uint8), *(a.view(np.uint8) for a in arrays)])
        out = np.zeros_like(arrays[0])
        run(schedule, world, {"in": data, "out": out})
        results[dtype, op] = out
    return results


@pytest.fixture(scope="module")
def reduced():
    return spawn(reduce_all, 1, timeout=30)[0]


@pytest.mark.parametrize(("dtype", "op"), CASES)
def test_the_result_is_numpys(reduced, dtype, op):
    have, want = reduced[dtype, op], expected(dtype, op)
    if dtype == "bfloat16":
        have, want = widened(have), widened(want)
    assert np.array_equal(have, want, equal_nan=want.dtype.kind == "f")
