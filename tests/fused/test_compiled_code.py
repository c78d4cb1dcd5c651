"""Whether the code of a kernel raises flags before its stores are complete."""

import pytest

from tests.fused.compiled_code import parse_kernel
from weft.errors import FormatError

STORE, WAIT, BARRIER = "global_store_dwordx4 v[0:1], v[4:7], off", "s_waitcnt vmcnt(0)", "s_barrier"
RAISE = ("buffer_wbl2 sc0 sc1", WAIT, "global_atomic_swap v[0:1], v2, off sc1")


def unsafe(*lines, isa="amdgcn", warps=4):
    return parse_kernel("\n".join(lines), isa).unsafe_releases(num_warps=warps)


@pytest.mark.parametrize(
    ("lines", "is_safe"),
    [
        ((STORE, WAIT, BARRIER), True),
        ((STORE, BARRIER), False),  # other waves may have stores under way
        ((STORE, WAIT), False),
        ((STORE, BARRIER, WAIT), False),
        ((STORE, "s_waitcnt lgkmcnt(0)", BARRIER), False),
        ((STORE, "s_waitcnt vmcnt(1)", BARRIER), False),
        ((STORE, "s_waitcnt vmcnt(0) lgkmcnt(0)", BARRIER), True),
        ((STORE, WAIT, BARRIER, STORE), False),
        ((STORE, WAIT, BARRIER, "ds_write_b32 v0, v1"), True),
        ((), True),
    ],
)
def test_a_flag_of_gfx942_needs_a_wait_of_every_wave_and_a_barrier(lines, is_safe):
    assert (unsafe(*lines, *RAISE, "s_endpgm") == []) is is_safe


def test_one_wave_needs_no_barrier():
    assert unsafe(STORE, WAIT, *RAISE, warps=1) == []
    assert unsafe(STORE, *RAISE, warps=1)


def test_every_path_counts():
    around = ("s_cbranch_execz .LBB0_2", STORE, ".LBB0_2:")
    assert unsafe(WAIT, BARRIER, *around, *RAISE)
    assert unsafe(*around, WAIT, BARRIER, *RAISE) == []
    skipped = ("s_cbranch_scc1 .LBB0_3", WAIT, ".LBB0_3:", BARRIER)
    assert unsafe(STORE, *skipped, *RAISE)


def test_a_store_of_the_last_iteration_counts():
    loop = (".LBB0_1:", *RAISE, STORE, "s_cbranch_scc0 .LBB0_1", "s_endpgm")
    (found,) = unsafe(*loop)
    assert found.startswith("line 2: buffer_wbl2")


def test_code_that_is_never_reached_does_not_count():
    assert unsafe(STORE, "s_branch .LBB0_9", *RAISE, ".LBB0_9:", "s_endpgm") == []


PTX_STORE = "@%p1 st.global.v4.b32 [ %rd1 + 0 ], { %r1, %r2, %r3, %r4 };"
PTX_RAISE = "@%p2 atom.global.sys.release.exch.b32 %r9, [ %rd2 + 0 ], %r8;"


@pytest.mark.parametrize(
    ("lines", "is_safe"),
    [
        ((PTX_STORE, "bar.sync 0;"), True),
        ((PTX_STORE,), False),
        ((PTX_STORE, "bar.warp.sync -1;"), False),
        (("bar.sync 0;", PTX_STORE), False),
        ((PTX_STORE, "@%p3 bra $L__BB0_2;", "bar.sync 0;", "$L__BB0_2:"), False),
        (("st.shared.b32 [ %r1 ], %r2;",), True),
    ],
)
def test_a_flag_of_cuda_needs_a_barrier(lines, is_safe):
    assert (unsafe("{", *lines, PTX_RAISE, "ret;", "}", isa="ptx") == []) is is_safe


def test_loads_count_until_they_are_waited_for():
    load = "global_load_dwordx4 v[0:3], v[4:5], off"
    code = (".loc 1 7 0", load, load, "s_waitcnt vmcnt(1)", load, WAIT, ".loc 1 8 0", load)
    kernel = parse_kernel("\n".join(code), "amdgcn")
    assert kernel.bytes_in_flight(threads=64, sources={7}) == 64 * 32
    assert kernel.bytes_in_flight(threads=64, sources={8}) == 64 * 16
    assert kernel.bytes_in_flight(threads=64, sources={9}) == 0


def test_text_that_is_no_kernel_is_refused():
    with pytest.raises(FormatError, match="no instructions"):
        parse_kernel("; nothing", "amdgcn")
    with pytest.raises(FormatError, match=r"no label '\.LBB0_9'"):
        unsafe("s_branch .LBB0_9", "s_endpgm")
