"""The fit finds what it is given, leaves out what it says, and keeps its promises on the tables."""

import gzip
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from validation import find_group, nccl, nccl_tables
from validation.nccl_algorithms_fit import fitted_algorithms
from validation.nccl_fit import (
    FIRST_KNOTS,
    STEP_KNOTS,
    cross_validated,
    errors_of,
    fit_cells,
    fitted_library,
    groups_of,
    half_of,
    other_version,
)
from validation.nccl_tables import SERVERS, TABLES, Cell, data_folder, read_cells, read_nccl_tests
from weft.cost.fit_errors import geomean_error, within_20
from weft.cost.least_squares import non_negative_least_squares
from weft.cost.nccl import fitted_seconds
from weft.hardware import platform
from weft.hardware.libraries import algorithm_fit, library

SIZES = tuple(2**k for k in range(9, 30))


def cells_of(seconds, *, collective="all_gather", ranks=(2, 4, 8), version="1.0", dtype="half"):
    return [Cell(version, collective, dtype, n, b, seconds(n, b)) for n in ranks for b in SIZES]


def ring(num_ranks, nbytes):
    """A plain ring: 5 us, then steps of 1 us and 100 GB/s."""
    return 5e-6 + (num_ranks - 1) * (1e-6 + nbytes / num_ranks / 100e9)


@settings(max_examples=50)
@given(data=st.data(), rows=st.integers(3, 12), columns=st.integers(1, 6))
def test_least_squares_cannot_be_improved_by_moving_one_number(data, rows, columns):
    seed = data.draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    matrix, wanted = random.normal(size=(rows, columns)), random.normal(size=rows)
    found = non_negative_least_squares(matrix, wanted)
    assert (found >= 0).all()

    def error(x):
        return np.sum((matrix @ x - wanted) ** 2)

    for column in range(columns):
        for step in (-1e-3, 1e-3):
            moved = found.copy()
            moved[column] = max(0.0, moved[column] + step)
            assert error(found) <= error(moved) + 1e-9


def test_a_plain_ring_is_found_exactly_whatever_is_left_out():
    fit = cross_validated(cells_of(ring))
    assert fit.errors.fit < 2e-3
    assert fit.errors.held_back < 2e-3
    assert (fit.errors.count_left_out or 1) < 2e-3
    assert fit.errors.within_20 == 1.0
    assert fitted_seconds(fit, 6, 6 << 20) == pytest.approx(ring(6, 6 << 20), rel=0.01)
    assert fitted_seconds(fit, 8, 1 << 34) == pytest.approx(ring(8, 1 << 34), rel=0.01)


def test_one_count_of_ranks_has_no_steps():
    fit = cross_validated(cells_of(ring, ranks=(4,)))
    assert fit.step == ()
    assert fit.errors.count_left_out is None
    assert fit.errors.fit < 2e-3


def test_reductions_inside_the_switch_are_told_from_rings():
    def seconds(num_ranks, nbytes):
        inside = 20e-6 + nbytes / 250e9
        return inside if num_ranks == 8 and nbytes >= 1 << 25 else 2 * ring(num_ranks, nbytes)

    cells = cells_of(seconds, collective="all_reduce")
    assert fit_cells(cells).in_switch == ()
    fit = fit_cells(cells, sharp=True)
    assert fit.in_switch_from == 1 << 25
    assert geomean_error(errors_of(fit, cells)) < 2e-3
    assert fitted_seconds(fit, 8, 1 << 30) == pytest.approx(seconds(8, 1 << 30), rel=0.01)


def test_outliers_do_not_move_a_fit():
    cells = cells_of(ring)
    cells[5] = replace(cells[5], seconds=5 * cells[5].seconds)
    errors = errors_of(fit_cells(cells), cells)
    del errors[5]
    assert geomean_error(errors) < 5e-3


def test_every_second_size_is_held_back_in_all_dtypes():
    halves = {c.nbytes: half_of(c) for c in cells_of(ring)}
    assert [halves[size] for size in SIZES] == [k % 2 for k in range(9, 30)]
    assert half_of(Cell("1", "x", "int8", 2, 512, 1)) == half_of(Cell("1", "x", "half", 2, 512, 1))


def test_dtypes_are_fitted_apart_only_where_something_is_reduced():
    cells = [
        cell
        for collective in ("all_gather", "all_reduce")
        for dtype in ("half", "int8")
        for cell in cells_of(ring, collective=collective, dtype=dtype)
    ]
    groups = groups_of(cells, by_count=False)
    assert [len(group) for group in groups] == [2 * 63, 63, 63]
    assert len(groups_of(cells, by_count=True)) == 9


def test_the_version_left_out_is_predicted_by_the_next_older_one():
    fits = [fit_cells(cells_of(ring, version=v)) for v in ("2.9", "2.10", "2.11")]
    assert other_version(fits, fits[2]) is fits[1]
    assert other_version(fits, fits[0]) is fits[1]
    assert other_version(fits[:1], fits[0]) is None


def test_errors_are_geometric_means_with_a_floor():
    assert geomean_error([0.01, -0.04]) == pytest.approx(0.02)
    assert geomean_error([0.0]) == pytest.approx(4e-4)
    assert within_20([0.1, -0.2, 0.3, 5.0]) == 0.5


def test_logs_of_nccl_tests_are_read(tmp_path):
    log = tmp_path / "new.log.gz"
    log.write_bytes(
        gzip.compress(
            b"# Collective test starting: alltoall_perf\n"
            b"#       size  count  type  redop  root  time  algbw  busbw #wrong\n"
            b"  33554432  524288 double none -1  123.32  272.09  238.08  0  123.18  272  238  N/A\n"
            b"# Collective test starting: all_reduce_perf\n"
            b"  33554432 4194304  double  sum  -1  182.98  183.38  320.92  0  182.56  183  321 0\n"
        )
    )
    found = list(read_nccl_tests(log, 8, "1"))
    assert [c.collective for c in found] == ["all_to_all", "all_reduce"]
    assert [c.nbytes for c in found] == [1 << 25, 1 << 25]
    assert [c.seconds for c in found] == pytest.approx([123.32e-6, 182.98e-6])
    old = tmp_path / "old.log"
    old.write_text(
        "  0  0  float sum 35.20 0.00 0.00 N/A\n  8  2  float  34.66  0.01  0.02 N/A 1 2\n"
    )
    (cell,) = read_nccl_tests(old, 8, "", "all_gather")
    assert (cell.collective, cell.nbytes) == ("all_gather", 8)


def test_without_tables_the_recorded_errors_are_shown(monkeypatch, tmp_path):
    monkeypatch.setenv("WEFT_DATA", str(tmp_path))
    assert data_folder() is None
    found = list(find_group("nccl").targets())
    limited = [target for target in found if target.met is not None]
    assert [target.name for target in limited if not target.met] == []
    assert all(target.note.startswith("recorded") for target in limited)
    chose = (nccl.HELD_BACK, nccl.FAR_OFF)
    nccls = [target for target in limited if not any(name in target.name for name in SERVERS)]
    assert all(target.fitted == target.name.endswith(chose) for target in nccls)
    first = {target.name.split()[0] for target in nccls}
    assert first == {*nccl.LIMITED, "l40s", "between"}


@pytest.mark.data
def test_the_algorithms_between_nodes_are_what_the_logs_give(data):
    again, kept = fitted_algorithms(data), algorithm_fit("nccl")
    assert kept is not None
    assert dict(again.coefficients) == kept.coefficients
    for kind, error in kept.held_out.items():
        assert again.held_out[kind] == pytest.approx(error, abs=1e-4)


@pytest.mark.data
@pytest.mark.parametrize("device", TABLES)
def test_the_catalogue_is_what_the_tables_give(data, device):
    kept = library("nccl", device)
    again = fitted_library(read_cells(data, TABLES[device]), platform(kept.node))
    rounded = [replace(fit, errors=kept.fits[0].errors) for fit in again.fits]
    assert rounded == [replace(fit, errors=kept.fits[0].errors) for fit in kept.fits]
    for new, old in zip(again.fits, kept.fits, strict=True):
        assert new.errors.held_back == pytest.approx(old.errors.held_back, abs=1e-4)


@pytest.mark.data
def test_what_was_left_out_is_predicted_as_well_as_promised(data, monkeypatch):
    monkeypatch.setenv("WEFT_DATA", str(data))
    found = list(find_group("nccl").targets())
    assert [t.name for t in found if t.met is False] == []
    nccls = [t for t in found if not any(name in t.name for name in SERVERS)]
    assert sum(t.met is True for t in nccls) == 79
    unseen = [t for t in nccls if "elsewhere" in t.name or "gb200" in t.name]
    assert len(unseen) == 17
    modelled = ("larger", "all sizes")
    assert all(t.weft < (10 if any(word in t.name for word in modelled) else 3) for t in unseen)


@pytest.mark.data
def test_cells_of_the_tables_are_bytes_and_seconds(data):
    cells = {
        (c.version, c.collective, c.dtype, c.num_ranks, c.nbytes): c.seconds
        for c in read_cells(data, "h100_sxm")
    }
    assert cells["2.29.2", "all_reduce", "half", 8, 512 << 20] == pytest.approx(2.111e-3, rel=1e-3)
    assert cells["2.29.2", "all_to_all", "half", 8, 512 << 20] == pytest.approx(1.490e-3, rel=1e-3)


def test_knots_are_the_same_for_every_device():
    assert len(FIRST_KNOTS) + len(STEP_KNOTS) == 15
    assert library("nccl", "h100").source == nccl_tables.SOURCE
