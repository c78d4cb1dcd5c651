"""Sweeps of kernels: which points, and what their times make of a device."""

import csv
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from weft.calibration.cost_model_fit import Range
from weft.calibration.kernel_sweep import (
    POINTS,
    fit_sweep,
    spread_points,
    sweep_plan,
    with_sweep,
    write_plan,
)
from weft.cost.price import price_columns
from weft.errors import UsageError
from weft.hardware import platform, platform_from_table
from weft.hardware.measured import PointCorrection

pytestmark = pytest.mark.thorough

H200 = platform("h200-8")
SLOWER = 1.4


@cache
def plan_of(kernel):
    return sweep_plan(H200.require_device(), [kernel])


def measured(path, kernel, *, lines=POINTS):
    """A sweep of a card that is 40 % slower than H100, measured to one percent."""
    plan = plan_of(kernel)[:lines]
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


def with_times(path, change):
    """Change the times of a sweep: ``change`` gives how many times as long each line took."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["time_us"] = f"{float(row['time_us']) * change(row):.5g}"
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
    plan = plan_of(kernel)
    assert 150 <= len(plan) <= POINTS
    assert len({tuple(line.values()) for line in plan}) == len(plan)
    family, _, dtype = kernel.partition(":")
    sides = {k: np.array([line[k] for line in plan]) for k in plan[0] if k not in _NAMES}
    assert price_columns(family, sides, device, dtype or "bf16").seconds.sum() < 3


_NAMES = ("family", "dtype")


def test_points_are_nearer_to_rows_than_random_ones():
    drawn = np.random.default_rng(0)
    places = {key: 2.0 ** drawn.uniform(0, 12, 5000) for key in "mnk"}
    rows = np.log2(np.stack(list(places.values()), 1))

    def nearest(chosen):
        return np.sqrt(((rows[:, None] - rows[chosen]) ** 2).sum(-1)).min(1)

    points, others = nearest(spread_points(places, 200)), nearest(np.arange(200))
    assert points.max() < 2.5  # octaves; 200 points drawn at random leave 3 and more
    assert points.mean() < 0.95 * others.mean()


def test_points_are_distinct_where_rows_repeat():
    places = {"nbytes": np.repeat(2.0 ** np.arange(12, 20), 40)}
    assert sorted(places["nbytes"][spread_points(places, 200)]) == list(2.0 ** np.arange(12, 20))


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


def test_rows_that_are_padded_have_prices_of_their_own(tmp_path):
    path = measured(tmp_path / "sweep.csv", "gemm")
    before = with_sweep(H200, [path]).require_device()
    with_times(path, lambda row: 1.5 if int(row["m"]) % 4 else 1.0)
    after = with_sweep(H200, [path]).require_device()
    m = np.array([512.0, 513.0, 1024.0, 1030.0, 2048.0, 2046.0])
    sides = {"m": m, "n": np.full(6, 4096.0), "k": np.full(6, 4096.0)}
    one, other = (price_columns("gemm", sides, each).seconds for each in (before, after))
    assert other / one == pytest.approx(np.where(m % 4, 1.5, 1.0), rel=0.1)


@dataclass(frozen=True)
class Copies:
    """Copies of so many bytes, with what each took."""

    nbytes: np.ndarray
    seconds: np.ndarray

    def predicted(self, coefficients):
        return coefficients["byte"] * self.nbytes


def test_disturbed_measurements_do_not_spoil_the_others():
    drawn = np.random.default_rng(0)
    nbytes = 2.0 ** drawn.uniform(0, 12, 200)
    wave = 1 + 0.2 * np.sin(np.log2(nbytes)) + drawn.normal(0, 0.01, 200)
    disturbed = np.arange(200) % 10 == 3
    rows = Copies(nbytes, 1e-6 * nbytes * wave * np.where(disturbed, 2.0, 1.0))
    found = fit_sweep(rows, {"nbytes": nbytes}, {"byte": Range(1e-6, 1e-9, 1e-3)})
    assert np.median(np.abs(found.unseen[~disturbed])) < 0.02  # 0.06 if they count as others do


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
        write_plan(path, plan_of("norm"))


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
    write_plan(tmp_path / "plan.csv", plan_of("norm"))
    with pytest.raises(UsageError, match="no measured line"):
        with_sweep(H200, [tmp_path / "plan.csv"])
