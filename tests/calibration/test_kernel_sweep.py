"""Sweeps of kernels: which points, and what their times make of a device."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from weft.calibration.kernel_sweep import (
    POINTS,
    spread_points,
    sweep_plan,
    with_sweep,
    write_plan,
)
from weft.cost.price import price_columns
from weft.errors import UsageError
from weft.hardware import platform, platform_from_table
from weft.hardware.measured import PointCorrection

H200 = platform("h200-8")
SLOWER = 1.4


def measured(path, kernel, *, lines=POINTS):
    """A sweep of a card that is 40 % slower than H100, measured to one percent."""
    plan = sweep_plan(H200.require_device(), [kernel])[:lines]
    write_plan(path, plan)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    noise = np.random.default_rng(3).normal(0, 0.01, len(rows))
    for row, off in zip(rows, noise, strict=True):
        sides = {k: np.array([float(v)]) for k, v in row.items() if v and v[0].isdigit()}
        row["time_us"] = f"{1e6 * float(truth(row['family'], sides)[0]) * np.exp(off):.5g}"
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, rows[0])
        out.writeheader()
        out.writerows(rows)
    return path


def truth(family, sides):
    return SLOWER * price_columns(family, sides, platform("h100-8").require_device()).seconds


@pytest.mark.parametrize("kernel", ["gemm", "gemm:fp8", "attention", "decode", "moe", "norm"])
def test_a_plan_has_distinct_kernels_that_are_soon_measured(kernel):
    device = H200.require_device()
    plan = sweep_plan(device, [kernel])
    assert 150 <= len(plan) <= POINTS
    assert len({tuple(line.values()) for line in plan}) == len(plan)
    family, _, dtype = kernel.partition(":")
    sides = {k: np.array([line[k] for line in plan]) for k in plan[0] if k not in _NAMES}
    assert price_columns(family, sides, device, dtype or "bf16").seconds.sum() < 3


_NAMES = ("family", "dtype")


def test_points_leave_no_row_far_from_one_of_them():
    drawn = np.random.default_rng(0)
    places = {key: 2.0 ** drawn.uniform(0, 12, 5000) for key in "mnk"}
    rows = np.log2(np.stack(list(places.values()), 1))
    chosen = rows[spread_points(places, 200)]
    nearest = np.sqrt(((rows[:, None] - chosen) ** 2).sum(-1)).min(1)
    assert nearest.max() < 2.2  # octaves; 200 points drawn at random leave 3 and more


@pytest.mark.parametrize(
    ("kernel", "limit"), [("gemm", 0.06), ("norm", 0.03), ("activation", 0.03)]
)
def test_a_sweep_is_what_kernels_are_priced_by(tmp_path, kernel, limit):
    swept = with_sweep(H200, [measured(tmp_path / "sweep.csv", kernel)])
    drawn = np.random.default_rng(5)
    names = ("m", "n", "k") if kernel == "gemm" else ("rows", "width")
    sides = {key: 64 * np.round(2.0 ** drawn.uniform(2, 7, 300)) for key in names}
    found = price_columns(kernel, sides, swept.require_device())
    assert found.model == "a sweep on h200"
    wanted = truth(kernel, sides)
    assert np.median(np.abs(found.seconds / wanted - 1)) < limit
    before = price_columns(kernel, sides, H200.require_device()).seconds
    assert np.median(np.abs(before / wanted - 1)) > 0.2
    assert np.mean((found.low <= wanted) & (wanted <= found.high)) > 0.6


def test_a_swept_platform_is_the_same_from_its_file(tmp_path):
    swept = with_sweep(H200, [measured(tmp_path / "sweep.csv", "norm")])
    again = platform_from_table(swept.to_table(), "machine.toml")
    assert again.require_device().fits == swept.require_device().fits


def test_other_families_are_priced_as_before(tmp_path):
    swept = with_sweep(H200, [measured(tmp_path / "sweep.csv", "norm")])
    sides = {key: np.array([4096.0]) for key in "mnk"}
    one, other = (price_columns("gemm", sides, p.require_device()) for p in (H200, swept))
    assert one.seconds == other.seconds


def test_far_from_all_points_the_formula_counts_alone(tmp_path):
    device = with_sweep(H200, [measured(tmp_path / "sweep.csv", "gemm")]).require_device()
    (fit,) = device.fits
    assert isinstance(fit.points, PointCorrection)
    alone = replace(device, fits=(replace(fit, points=None),))
    far = {"m": np.array([2.0**40]), "n": np.array([1.0]), "k": np.array([1.0])}
    one, other = (price_columns("gemm", far, each).seconds for each in (device, alone))
    assert one == pytest.approx(other, rel=1e-3)


def test_measured_times_are_not_written_over(tmp_path):
    path = measured(tmp_path / "sweep.csv", "norm")
    with pytest.raises(UsageError, match="has measured times"):
        write_plan(path, sweep_plan(H200.require_device(), ["norm"]))


def test_a_few_lines_are_no_sweep(tmp_path):
    with pytest.raises(UsageError, match="12 measured lines of norm in bf16"):
        with_sweep(H200, [measured(tmp_path / "sweep.csv", "norm", lines=12)])


@pytest.mark.parametrize("wrong", ["soon", "-3"])
def test_a_time_that_is_none_is_named_by_its_line(tmp_path, wrong):
    path = tmp_path / "sweep.csv"
    path.write_text(f"family,dtype,rows,width,time_us\nnorm,bf16,4,64,{wrong}\n")
    with pytest.raises(UsageError, match=r"sweep\.csv:2: "):
        with_sweep(H200, [path])


def test_a_plan_without_times_is_refused(tmp_path):
    write_plan(tmp_path / "plan.csv", sweep_plan(H200.require_device(), ["norm"]))
    with pytest.raises(UsageError, match="no measured line"):
        with_sweep(H200, [tmp_path / "plan.csv"])
