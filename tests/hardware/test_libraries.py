import itertools

import pytest

from weft.errors import PlatformError
from weft.hardware import platform, platform_names
from weft.hardware.libraries import FOLDER, library, library_devices, library_names

MEASURED = ("a100", "b200", "h100", "l40s")
DEVICES = library_devices("nccl")
every_device = pytest.mark.parametrize("device", DEVICES)


def test_nccl_and_the_all_reduces_of_servers_are_measured():
    assert library_names() == ("nccl", "sglang", "trtllm", "vllm")
    assert set(MEASURED) == set(DEVICES)


@every_device
def test_a_library_belongs_to_a_device_of_the_catalogue(device):
    known = library("nccl", device)
    assert known.device == device == platform(f"{device}-8").require_device().name
    assert known.node in platform_names()
    assert known.basis == "fitted"
    assert known.source


@every_device
def test_curves_start_above_zero_and_never_fall(device):
    for fit in library("nccl", device).fits:
        assert fit.first[0][1] > 0
        for curve in (fit.first, fit.step, fit.in_switch):
            for (left, low), (right, high) in itertools.pairwise(curve):
                assert left < right
                assert low <= high


@every_device
def test_a_fit_has_far_fewer_numbers_than_cells(device):
    for fit in library("nccl", device).fits:
        assert 2 * (len(fit.first) + len(fit.step) + len(fit.in_switch)) < fit.errors.cells


@every_device
def test_what_is_left_out_is_predicted_worse_than_what_is_fitted(device):
    for fit in library("nccl", device).fits:
        assert 0 < fit.errors.fit < fit.errors.held_back < 0.15


def last_rate(curve):
    (left, low), (right, high) = curve[-2:]
    return (right - left) / (high - low)


@pytest.mark.parametrize("device", ["a100", "h100", "b200"])
@pytest.mark.parametrize("half", ["all_gather", "reduce_scatter"])
def test_a_step_of_an_all_reduce_is_two_of_its_halves(device, half):
    # Nobody told the fits so: a ring reduces and scatters first, then gathers.
    fits = {(f.version, f.collective, f.dtypes != "int8"): f for f in library("nccl", device).fits}
    for (version, kind, floats), whole in fits.items():
        if kind == "all_reduce" and floats:
            part = fits[version, half, True]
            assert whole.step[0][1] == pytest.approx(2 * part.step[0][1], rel=0.1)
            assert last_rate(whole.step) == pytest.approx(last_rate(part.step) / 2, rel=0.1)


@pytest.mark.parametrize("device", ["a100", "h100", "b200"])
def test_links_of_the_catalogue_are_those_of_the_rings(device):
    level = platform(f"{device}-8").levels[0]
    for fit in library("nccl", device).fits:
        if fit.collective == "all_gather" and fit.version != "2.23":
            assert level.rate == pytest.approx(last_rate(fit.step), rel=0.05)
            assert level.latency == pytest.approx(fit.step[0][1], rel=0.12)


def test_reductions_inside_the_switch_are_found_where_switches_reduce():
    inside = {d for d in DEVICES for fit in library("nccl", d).fits if fit.in_switch}
    assert inside == {"h100", "b200"}


def test_a_stand_in_has_the_curves_of_its_sibling():
    known = library("nccl", "h200", "h100")
    assert known.fits == library("nccl", "h100").fits
    assert (known.device, known.basis) == ("h200", "inherited")
    assert "curves of h100" in known.source
    assert library("nccl", "b300", "b200").node == "b200-8"


def test_an_unmeasured_device_names_the_measured_ones():
    with pytest.raises(PlatformError, match="nccl was not measured on mi300x") as caught:
        library("nccl", "mi300x")
    assert "h100" in caught.value.hint


def test_files_say_who_wrote_them():
    assert all(path.read_text().startswith("# ") for path in FOLDER.glob("*.toml"))
