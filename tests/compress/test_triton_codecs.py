"""Codecs of a GPU: the same bytes as the CPU's in Triton's interpreter, and code for two GPUs."""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.triton, pytest.mark.torch]
pytest.importorskip("torch")
pytest.importorskip("triton")


def started(module, *arguments, **variables):
    """Run a module of this folder by itself: whether Triton interprets is decided at import."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", f"tests.compress.{module}", *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.mark.parametrize("count", [1, 999, pytest.param(1500, marks=pytest.mark.slow)])
def test_a_gpu_makes_the_same_bytes_and_reads_them(count):
    assert started("triton_equal", str(count), TRITON_INTERPRET="1") == ["equal"]


@pytest.mark.parametrize("target", ["hip:gfx942:64", "cuda:90:32"])
def test_every_kernel_compiles_without_a_gpu(target):
    kind = "hsaco" if target.startswith("hip") else "cubin"
    assert started("triton_compiled", target) == [kind] * 8
