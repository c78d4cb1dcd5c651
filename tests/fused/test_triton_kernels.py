"""Fused kernels of GPUs: right bytes on every rank in the interpreter, and code for two GPUs."""

import pytest

from tests.triton_started import started

pytestmark = [pytest.mark.triton, pytest.mark.torch]
pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.mark.multiprocess
@pytest.mark.timeout(150)
def test_every_rank_gets_what_the_others_made_for_it(tmp_path):
    assert started("fused.triton_ranks", str(tmp_path), TRITON_INTERPRET="1") == ["equal"]


@pytest.mark.parametrize("target", ["hip:gfx942:64", "cuda:90:32"])
def test_flags_of_other_ranks_are_raised_and_seen_at_system_scope(target):
    kind = "hsaco" if target.startswith("hip") else "cubin"
    assert started("fused.triton_compiled", target) == [
        f"embedding {kind} raises looks",
        f"gemv {kind} raises looks",
        f"gemm {kind} raises looks",
        f"wait {kind} looks",
    ]
