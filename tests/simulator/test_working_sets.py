"""Cores of one memory: what is in use decides the rate, and which cores copy at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.collectives import collective
from weft.hardware import platform, platform_from_table
from weft.simulator import simulate

SETS = {"16KiB": 40e9, "1MiB": 20e9, "64MiB": 5e9}


def here(both=0.5, reduced=0.5, streamed_from=1 << 40, latency=0.0):
    """Two cores that copy at the rates above alone, and at ``both`` of them together."""
    sets = {
        key: {
            "cached": rate,
            "cached_both": rate * both,
            "streamed": 2 * rate,
            "streamed_both": 2 * rate * both,
            "reduced": rate * reduced,
            "reduced_both": rate * reduced * both,
        }
        for key, rate in SETS.items()
    }
    shared = {
        "streamed_from": streamed_from,
        "far_rate": 1e9,
        "yield_latency": 0.0,
        "sets": sets,
        "reduces": {"float32": {"rate": 4e9}, "float64": {"rate": 2e9}},
    }
    device = {"extends": "cpu", "launch": 0.0, "signal": 0.0, "shared": shared}
    level = {"kind": "switch", "size": 2, "rate": 1e12, "latency": latency}
    return platform_from_table({"name": "t", "levels": [level], "device": device}, "t.toml")


def seconds(kind, algorithm, nbytes, on, **options):
    schedule = collective(kind, algorithm, num_ranks=2, nbytes=nbytes, **options)
    return simulate(schedule, on).seconds


@pytest.mark.parametrize(("nbytes", "rate"), [(16 << 10, 40e9), (1 << 20, 20e9), (64 << 20, 5e9)])
def test_one_core_that_copies_runs_at_its_rate_alone(nbytes, rate):
    assert seconds("send_recv", "direct", nbytes, here()) == pytest.approx(nbytes / rate)


@pytest.mark.parametrize("both", [0.5, 0.8, 1.0])
def test_two_cores_at_once_share_the_memory(both):
    nbytes = 1 << 19  # in and out of an all_to_all are a megabyte in use
    time = seconds("all_to_all", "direct", nbytes, here(both=both))
    assert time == pytest.approx(nbytes / (20e9 * both))


def test_long_copies_go_past_the_caches():
    nbytes = 1 << 20
    from_here = here(streamed_from=nbytes)
    assert seconds("send_recv", "direct", nbytes, from_here) == pytest.approx(nbytes / 40e9)
    assert seconds("send_recv", "direct", nbytes, here(streamed_from=nbytes + 1)) == pytest.approx(
        nbytes / 20e9
    )


def test_a_dtype_that_adds_up_at_half_the_rate_takes_twice_as_long():
    times = {
        dtype: seconds("reduce_scatter", "pull", 1 << 20, here(), dtype=dtype)
        for dtype in ("float32", "float64")
    }
    assert times["float64"] == pytest.approx(2 * times["float32"])


@given(small=st.integers(1 << 12, 1 << 26), factor=st.integers(1, 9))
def test_more_bytes_never_take_less_time(small, factor):
    on = here()
    few, many = (seconds("send_recv", "direct", n, on) for n in (small, small * factor))
    assert few <= many * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all", "all_reduce"])
@pytest.mark.parametrize("algorithm", ["direct", "pull"])
def test_ranks_simulated_once_take_as_long_as_all_of_them(kind, algorithm):
    schedule = collective(kind, algorithm, num_ranks=2, nbytes=1 << 20)
    on = here(both=0.6, latency=1e-7)
    collapsed = simulate(schedule, on, collapse=True).seconds
    assert collapsed == pytest.approx(simulate(schedule, on, collapse=False).seconds, rel=1e-9)


def test_other_platforms_are_priced_as_before():
    assert platform("mi300x-8").require_device().shared is None


def test_what_a_sum_left_in_the_caches_is_written_on_from_there():
    """Two ranks add up pieces of 128 KiB in 64 MiB, and write each on while it is near."""
    nbytes, piece = 64 << 20, 128 << 10
    near = SETS["16KiB"] * (SETS["1MiB"] / SETS["16KiB"]) ** (4 / 6)  # 256 KiB, between the two
    added, written = nbytes / 2 / (SETS["64MiB"] * 0.5 * 0.5), nbytes / 2 / (near * 0.5)
    found = seconds("all_reduce", "pull", nbytes, here(), dtype="float32")
    assert found == pytest.approx(added + written, rel=0.01)
    assert nbytes % piece == 0


def test_a_swap_costs_less_than_two_copies():
    nbytes = 64 << 20  # one of two ranks swaps the half that both exchange
    found = seconds("all_to_all", "dma-swap", nbytes, here(both=1.0))
    assert found == pytest.approx(nbytes / 2 / SETS["64MiB"] * 4 / 3, rel=0.01)


def test_what_is_too_long_for_the_caches_comes_from_memory_again():
    """A ring adds up its half in one piece, then passes it on."""
    nbytes = 64 << 20
    added, passed = nbytes / 2 / (SETS["64MiB"] * 0.5 * 0.5), nbytes / 2 / (SETS["64MiB"] * 0.5)
    found = seconds("all_reduce", "ring", nbytes, here(), dtype="float32")
    assert found >= added + passed
