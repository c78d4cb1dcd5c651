"""Codecs of a GPU: the same bytes as the CPU's in Triton's interpreter, and code for two GPUs."""

import pytest

from tests.triton_started import started

pytestmark = [pytest.mark.triton, pytest.mark.torch]
pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.mark.parametrize("count", [1, 999, pytest.param(1500, marks=pytest.mark.slow)])
def test_a_gpu_makes_the_same_bytes_and_reads_them(count):
    assert started("compress.triton_equal", str(count), TRITON_INTERPRET="1") == ["equal"]


@pytest.mark.parametrize("target", ["hip:gfx942:64", "cuda:90:32"])
def test_every_kernel_compiles_without_a_gpu(target):
    kind = "hsaco" if target.startswith("hip") else "cubin"
    assert started("compress.triton_compiled", target) == [kind] * 12
