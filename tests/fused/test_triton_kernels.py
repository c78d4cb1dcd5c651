"""Fused kernels of GPUs: right bytes on every rank in the interpreter, and code for two GPUs."""

import pytest

from tests.triton_started import started

pytestmark = [pytest.mark.triton, pytest.mark.torch]
pytest.importorskip("torch")
pytest.importorskip("triton")

TARGETS = ["hip:gfx942:64", "cuda:90:32"]
ROW = {32: 128, 48: 192, 64: 256, 128: 512, 256: 1024, 512: 2048}  # bytes: one row of float32


@pytest.mark.multiprocess
@pytest.mark.timeout(150)
def test_every_rank_gets_what_the_others_made_for_it(tmp_path):
    cases = ("stores", "gemv", "gemm")
    said = started("fused.triton_ranks", str(tmp_path), "2", *cases, TRITON_INTERPRET="1")
    assert said == ["equal"]


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("case", ["least-stores", "least-gemv"])
def test_flags_of_thousands_of_epochs_are_never_taken_for_each_other(case, tmp_path):
    said = started(
        "fused.triton_ranks", str(tmp_path), "3000", case, timeout=1200, TRITON_INTERPRET="1"
    )
    assert said == ["equal"]


@pytest.mark.parametrize("which", ["usual", pytest.param("others", marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", TARGETS)
def test_payloads_are_complete_before_flags_and_many_rows_are_under_way(target, which):
    found = [line.split() for line in started("fused.triton_compiled", target, which)]
    kind = "hsaco" if target.startswith("hip") else "cubin"
    assert {name.split("-")[0] for name, *_ in found} == {"embedding", "gemv", "gemm"}
    for name, binary, releases, unsafe, in_flight, widest in found:
        assert (binary, unsafe) == (kind, "0"), name
        assert int(releases) > 0, name
        if name.startswith("embedding"):
            assert int(in_flight) >= 8 * ROW[int(name.split("-")[1])], name
            assert int(widest) == 16, name
