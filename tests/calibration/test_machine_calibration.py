"""From measurements to the platform of this machine, and to the sizes where a choice changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft._core import streamed_from
from weft.calibration.machine_calibration import calibrated, first_of_the_rest, require_quiet, save
from weft.calibration.microbenchmarks import (
    ALGORITHM_KINDS,
    ALGORITHM_SIZES,
    ALGORITHMS,
    DTYPES,
    SETS,
    Round,
    typical,
)
from weft.collectives.catalogue import REDUCING
from weft.errors import NotQuietError, PlatformError, UsageError
from weft.hardware import cache_bytes, here_path, platform, this_machine
from weft.hardware.files import read_toml
from weft.hardware.measured import MeasuredNoise
from weft.runtime.algorithm_selector import AlgorithmSelector
from weft.runtime.spawn import spawn
from weft.runtime.streaming_stores import set_streaming_threshold


def measured(streams=4 << 20, eager=64 << 10):
    """Seconds as a machine might have: streaming wins for sets of ``streams`` and larger."""
    copies = {}
    for each in SETS:
        for who, slower in (("alone", 1.0), ("both", 1.25)):
            copies[f"{each} cached {who}"] = slower / 10e9
            copies[f"{each} streamed {who}"] = slower / (12e9 if each >= streams else 5e9)
    sums = {f"{name} {who}": 1 / 8e9 for name in (*SETS, *DTYPES) for who in ("alone", "both")}
    return {
        "copies": copies,
        "sums": sums,
        "flags": {"spin": 4e-7, "yield": 1e-6},
        "calls": {"pull": 3e-6, "dma-b2b": 9e-6},
        "algorithms": {
            f"{kind} {each} {algorithm}": (1.0 if each <= eager else 3.0)
            if algorithm == "eager"
            else 2.0
            for kind in ALGORITHM_KINDS
            for each in ALGORITHM_SIZES
            for algorithm in ALGORITHMS
        },
        "reads of other processes": {"far alone": 1 / 6e9, "far both": 1 / 3e9},
        "products of matrices": {"fp32": 1 / 60e9, "fp64": 1 / 30e9},
    }


def test_what_was_measured_stands_in_the_platform_with_its_source():
    found = calibrated(measured(), date="2026-01-02")
    device = found.require_device()
    assert found.levels[0].latency == pytest.approx(2e-7)
    assert device.launch == pytest.approx(3e-6 - 4 * 2e-7)
    assert device.flops["fp32"].achieved == pytest.approx(60e9)
    assert device.shared is not None
    assert device.shared.sets["1MiB"].cached_both == pytest.approx(8e9)
    assert device.shared.reduces["bfloat16"].rate == pytest.approx(8e9)
    source = found.sources["device.shared.sets.1MiB.cached"]
    assert source.basis == "achieved"
    assert source.source.endswith("measured here on 2026-01-02 by weft calibrate")


def test_what_was_measured_next_to_others_is_refused():
    found = calibrated(measured())
    require_quiet(replace(found, noise=MeasuredNoise(0.1, 0.3, 20.0)))
    with pytest.raises(NotQuietError, match="others used 50% of the cores"):
        require_quiet(replace(found, noise=MeasuredNoise(0.5, 0.0, 20.0)))


def test_the_file_gives_the_same_platform_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = calibrated(measured())
    assert save(found) == here_path()
    again = platform("here")
    assert again.to_table() == found.to_table()
    assert read_toml(here_path())["machine"]["cpu"] == this_machine().cpu
    assert [path.name for path in here_path().parent.iterdir()] == ["here.toml"]


@pytest.mark.parametrize("change", [{"cpu": "another"}, {"cores": 4097}, {"memory": 1 << 20}])
def test_what_another_machine_measured_is_refused(tmp_path, monkeypatch, change):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = calibrated(measured())
    save(replace(found, machine=replace(this_machine(), **change)))
    with pytest.raises(PlatformError, match="measured on another machine") as caught:
        platform("here")
    assert caught.value.hint == "Run: weft calibrate."


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        save(calibrated(measured()), tmp_path / "file" / "here.toml")


@pytest.mark.parametrize("streams", [SETS[0], 1 << 20, SETS[-1]])
def test_copies_go_past_the_caches_from_where_that_wins(streams):
    shared = calibrated(measured(streams)).require_device().shared
    assert shared is not None
    assert shared.streamed_from == min(streams // 2, cache_bytes()[1] // 4)


@pytest.mark.parametrize("eager", [ALGORITHM_SIZES[0] // 2, 128 << 10, ALGORITHM_SIZES[-1]])
def test_little_is_laid_out_up_to_where_that_wins(eager):
    cores = calibrated(measured(eager=eager)).require_device().shared
    selector = AlgorithmSelector().measured(cores)
    for kind in ALGORITHM_KINDS:
        total = 2 if kind == "all_gather" else 1  # ranks whose input counts
        algorithms = [
            selector.algorithm(kind, total * (eager + more), 2, oversubscribed=False)
            for more in (0, 8)
        ]
        past = "pull" if eager >= selector.staged_unreduced and kind not in REDUCING else "staged"
        assert algorithms == ["eager", past]


def test_a_machine_that_was_not_measured_has_the_sizes_of_another():
    assert AlgorithmSelector().measured(None) == AlgorithmSelector()
    cores = calibrated(measured()).require_device().shared
    assert cores is not None
    assert AlgorithmSelector().measured(replace(cores, eager_up_to=0)) == AlgorithmSelector()


def test_a_named_size_is_taken_and_a_wrong_one_refused():
    with pytest.raises(UsageError, match=r"WEFT_STREAMED_FROM: expected a size .got 'much'."):
        set_streaming_threshold({"WEFT_STREAMED_FROM": "much"})


def be_asked(world):
    return streamed_from()


@pytest.mark.multiprocess
@pytest.mark.timeout(120)
def test_ranks_take_the_store_that_is_named_or_was_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    default = spawn(be_asked, 1)
    save(calibrated(measured(1 << 20)))
    assert spawn(be_asked, 2) == [1 << 19] * 2 != default * 2
    monkeypatch.setenv("WEFT_STREAMED_FROM", "3MiB")
    assert spawn(be_asked, 1) == [3 << 20]


@given(wins=st.lists(st.booleans(), min_size=1, max_size=12))
def test_everything_wins_from_the_threshold_on_and_nothing_just_before(wins):
    sizes = [1 << i for i in range(len(wins))]
    chosen = first_of_the_rest(sizes, wins)
    later = [won for size, won in zip(sizes, wins, strict=True) if size >= chosen]
    assert all(later)
    if chosen in sizes[1:]:
        assert not wins[sizes.index(chosen) - 1]
    if chosen not in sizes:
        assert not wins[-1]


def test_a_disturbed_round_does_not_count():
    quiet, disturbed = Round(1.0, 2.0), Round(0.3, 9.0)
    assert typical([quiet, Round(0.97, 4.0), disturbed, Round(0.99, 3.0)]) == 3.0
    assert typical([disturbed, Round(0.2, 7.0), disturbed]) == 7.0
