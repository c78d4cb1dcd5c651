"""A sweep: which kernels are worth measuring on a device, and their times as fits of the device.

    sweep_plan ──▶ plan.csv ──▶ each line is timed elsewhere ──▶ with_sweep ──▶ [[device.fits]]
                   (time_us is empty)     (time_us is filled in)     what predict and plan read

Each point is the shape whose time would say most about the times of all others. They fit the cost
model of the family on the device, and a correction between the points of what it leaves.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.calibration.coefficient_ranges import ranges_of
from weft.calibration.cost_model_fit import Observations, Range, fit_coefficients
from weft.cost.families import Family
from weft.cost.fit_errors import geomean_error, within_20
from weft.cost.grid import elasticities, likeness, log_rows
from weft.cost.matmul import GRID_PLACES
from weft.cost.price import find_family, price_columns
from weft.errors import UsageError
from weft.hardware import Device, Platform
from weft.hardware.dtypes import known_dtype, scheme_of
from weft.hardware.measured import FitErrors, KernelFit, PointCorrection

Floats = NDArray[np.float64]
Places = Mapping[str, Floats]

POINTS = 200
_FEWEST = 30  # measured lines of a family: a cost model has a dozen coefficients
_CANDIDATES = 2000  # random shapes of which the points are chosen
_LONGEST = 0.05  # seconds of a kernel: longer ones are as predictable and take all of the time
USUAL = ("gemm", "attention", "decode", "norm", "activation", "elementwise")


def _steps(least: int, most: int, *more: int) -> list[float]:
    """List powers of two, what lies half way between them, and some more."""
    powers = [least * 2**i for i in range(40) if least * 2**i <= most]
    between = [3 * each // 2 for each in powers if each > 1 and 3 * each // 2 <= most]
    return [float(each) for each in sorted({*powers, *between, *more})]


_HEADS = {"heads": _steps(4, 128), "kv_heads": _steps(1, 32), "head_dim": [64.0, 128.0]}
_ROWS = {"rows": _steps(1, 65536, 100, 3000), "width": _steps(128, 32768)}
_SHAPES: dict[str, dict[str, list[float]]] = {
    "gemm": {
        "m": _steps(1, 32768, 7, 35, 100, 259, 1000, 3001),  # these fill no whole tiles
        "n": _steps(64, 32768),
        "k": _steps(64, 32768),
    },
    "bmm": {
        "batch": _steps(1, 512),
        **{key: _steps(16, 4096, 50) for key in ("m", "n", "k")},
    },
    "attention": {"batch": _steps(1, 64), "queries": _steps(64, 32768), **_HEADS},
    "decode": {"batch": _steps(1, 1024), "keys": _steps(64, 131072), **_HEADS},
    "moe": {
        "tokens": _steps(1, 16384),
        "hidden": _steps(1024, 8192, 7168),
        "inter": _steps(512, 16384),
        "topk": [1.0, 2.0, 4.0, 8.0],
        "experts": _steps(8, 256),
    },
    "softmax": _ROWS,
    "norm": _ROWS,
    "activation": _ROWS,
    "elementwise": {"nbytes": _steps(4096, 2**32)},
}


@dataclass(frozen=True, slots=True)
class SweepRows:
    """Kernels of one family and dtype on a device, with what each took."""

    family: Family
    device: Device
    dtype: str
    columns: Mapping[str, Floats]
    seconds: Floats
    library: str = ""

    def predicted(self, coefficients: Mapping[str, float]) -> Floats:
        """Predict the seconds of every row."""
        return self.family.formula(self.columns, self.device, scheme_of(self.dtype), coefficients)


def spread_points(places: Places, count: int) -> NDArray[np.int64]:
    """Choose rows that say most about all others: each leaves the least variance in the mean.

    Variances are those of a Gaussian process through the rows that are chosen already, so corners
    that few rows are near to count no more than these (Seo et al., 2000).
    """
    names, spreads = _scales(places)
    every = log_rows(names, places) / spreads
    drawn = np.random.default_rng(0).permutation(len(every))[:_CANDIDATES]
    rows = every[drawn] / _ALIKE
    alike = likeness(rows, rows)
    free = np.ones(len(rows), bool)
    said, variance = (alike**2).sum(axis=0), np.ones(len(rows))
    known = np.zeros((len(rows), 0))  # what chosen rows have in common with all, orthogonal
    chosen: list[int] = []
    while len(chosen) < count and free.any():
        at = int(np.where(free, said / (variance + _NOISE), -1.0).argmax())
        free &= (rows != rows[at]).any(axis=1)
        chosen.append(at)
        column = (alike[:, at] - known @ known[at]) / np.sqrt(variance[at] + _NOISE)
        ahead = alike @ column - known @ (known.T @ column)
        said += column * (column * (column @ column) - 2 * ahead)
        variance -= column**2
        known = np.column_stack([known, column])
    return drawn[chosen]


_ALIKE = 4.0  # standard deviations of a column over which kernels are taken to be alike
_NOISE = 0.05  # variance of a measurement compared with that of what is corrected


def _scales(places: Places) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Name the columns that differ, with the standard deviation of their logarithms."""
    spreads = {key: np.log2(np.maximum(each, 2.0**-9)).std() for key, each in places.items()}
    kept = {key: float(f"{each:.4g}") for key, each in spreads.items() if each > _SAME}
    return tuple(kept), tuple(kept.values())


_SAME = 1e-6


def sweep_plan(device: Device, kernels: Sequence[str] = ()) -> list[dict[str, str | float]]:
    """List the kernels worth measuring on a device: ``FAMILY`` or ``FAMILY:DTYPE``, each apart."""
    return [line for each in kernels or USUAL for line in _family_plan(device, each)]


def _family_plan(device: Device, kernel: str) -> Iterator[dict[str, str | float]]:
    name, _, dtype = kernel.partition(":")
    family = find_family(name)
    dtype = known_dtype(dtype or "bf16")
    if name not in _SHAPES:
        known = ", ".join(_SHAPES)
        raise UsageError(f"--kernel: no sweep of {name!r} (expected one of {known})")
    generator = np.random.default_rng(0)
    columns = {key: generator.choice(each, _CANDIDATES) for key, each in _SHAPES[name].items()}
    if name == "attention":
        columns["keys"] = columns["queries"]
    keep = price_columns(name, columns, device, dtype).seconds < _LONGEST
    if "kv_heads" in columns:  # every head of keys serves equally many of queries
        keep &= columns["heads"] % columns["kv_heads"] == 0
    columns = {key: each[keep] for key, each in columns.items()}
    for row in spread_points(sweep_places(family, columns), POINTS):
        yield {"family": name, "dtype": dtype, **{k: each[row] for k, each in columns.items()}}


def sweep_places(family: Family, columns: Places) -> Places:
    """Return what points are spread over: the columns, and what the family derives from them."""
    size = len(next(iter(columns.values())))
    full = {key: np.full(size, default) for key, default in family.columns.items()} | dict(columns)
    found = {**columns, **family.places(full)}
    return {key: each for key, each in found.items() if key in columns or key not in GRID_PLACES}


def write_plan(path: Path, plan: Sequence[Mapping[str, str | float]]) -> None:
    """Write a plan as a table with an empty column for what each kernel takes."""
    if path.exists() and any(row.get("time_us") for row in _read(path)):
        raise UsageError(
            f"--sweep: {path} has measured times already",
            "Read them with -o machine.toml, or name another file for the plan.",
        )
    sides = dict.fromkeys(key for line in plan for key in line)
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            out = csv.DictWriter(file, [*sides, "time_us", "library"])
            out.writeheader()
            for line in plan:
                whole = {k: v if isinstance(v, str) else int(v) for k, v in line.items()}
                out.writerow(whole)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _read(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"--sweep: cannot read {path}: {error}") from error


def read_sweep(path: Path, device: Device) -> list[SweepRows]:
    """Read measured lines by family and dtype; those without a time were not measured."""
    groups: dict[tuple[str, str, str], list[dict[str, float]]] = defaultdict(list)
    for number, row in enumerate(_read(path), start=2):
        if not row.get("time_us"):
            continue
        kernel = (row.get("family") or "", row.get("dtype") or "", row.get("library") or "")
        sides = ("time_us", *find_family(kernel[0]).columns)
        try:
            cells = {key: float(row[key]) for key in sides if row.get(key)}
        except ValueError as error:
            raise UsageError(f"{path}:{number}: {error}") from error
        if not cells["time_us"] > 0:
            raise UsageError(f"{path}:{number}: time_us must be > 0 (got {row['time_us']})")
        groups[kernel].append(cells)
    if not groups:
        raise UsageError(
            f"{path} has no measured line", "Fill in time_us: microseconds of each kernel."
        )
    return [_group(device, path, kernel, lines) for kernel, lines in groups.items()]


def _group(
    device: Device, path: Path, kernel: tuple[str, str, str], lines: Sequence[dict[str, float]]
) -> SweepRows:
    family, dtype = find_family(kernel[0]), known_dtype(kernel[1] or "bf16")
    if len(lines) < _FEWEST:
        raise UsageError(
            f"{path}: {len(lines)} measured lines of {family.name} in {dtype} "
            f"(expected {_FEWEST} or more)"
        )
    missing = [key for key in family.required if any(key not in line for line in lines)]
    if missing:
        raise UsageError(f"{path}: {family.name} has lines without {', '.join(missing)}")
    columns = {
        key: np.array([line.get(key, default) for line in lines])
        for key, default in family.columns.items()
    }
    seconds = np.array([line["time_us"] for line in lines]) / 1e6
    return SweepRows(family, device, dtype, columns, seconds, kernel[2])


@dataclass(frozen=True, slots=True)
class SweepFit:
    """Coefficients and correction of a sweep.

    ``unseen`` has the logarithm of measured / predicted for each point, by a fit to the others.
    """

    coefficients: dict[str, float]
    points: PointCorrection | None
    unseen: Floats


def fit_sweep(rows: Observations, places: Places, ranges: Mapping[str, Range]) -> SweepFit:
    """Fit coefficients to a sweep, and what the formula leaves unexplained between its points.

    Kernels are alike that have similar columns and are bound by the same: their prices have
    similar elasticities to the coefficients.
    """
    coefficients = fit_coefficients([rows], ranges)
    left = np.log(rows.seconds / rows.predicted(coefficients))
    names, spreads = _scales(places)
    free = [key for key, each in ranges.items() if each.spread > 0]
    bound = elasticities(free, rows.predicted, coefficients)
    differ = bound.std(axis=0) > _DIFFERENT
    shares = tuple(key for key, each in zip(free, differ, strict=True) if each)
    units = np.array([*spreads, *[_SHARE] * len(shares)])
    at = np.hstack([log_rows(names, places), bound[:, differ]]) / units
    axes = np.minimum(np.arange(len(units)), len(names))  # elasticities reach equally far
    found = _robust_process(left, _likeliest_process(left, at, axes))
    if found.error >= float(np.abs(left).mean()):
        return SweepFit(coefficients, None, left)
    scales = tuple(float(each) for each in found.reach * units)
    points = tuple(tuple(map(_short, point)) for point in found.places / found.reach)
    weights = tuple(map(_short, found.weights))
    correction = PointCorrection(names, scales, points, weights, shares)
    return SweepFit(coefficients, correction, found.unseen)


_SHARE = 0.3  # an elasticity that counts like a standard deviation of a column
_DIFFERENT = 0.01  # standard deviation of an elasticity that tells kernels apart
_REACHES = (1.0, 2.0, 4.0, 8.0)  # standard deviations of a column over which kernels are alike
_NOISES = (0.05, 0.15, 0.5)  # of one measurement, as a share of what is corrected
_STEPS = (2.0, 1.4)


@dataclass(frozen=True, slots=True)
class _Process:
    """A Gaussian process through points; ``unseen`` is what the others leave of each.

    ``surprise`` is minus the logarithm of the marginal likelihood and of the prior of ``reach``.
    """

    places: Floats
    reach: Floats
    noise: float
    weights: Floats
    unseen: Floats
    surprise: float

    @classmethod
    def through(
        cls, left: Floats, places: Floats, reach: Floats, noise: float, doubt: Floats | float = 1.0
    ) -> "_Process":
        """Join points whose variances of measurement are ``doubt`` times the usual one."""
        at, size = places / reach, len(left)
        variances = noise**2 * doubt * np.eye(size)
        inverse = np.linalg.inv(likeness(at, at) + variances)
        weights = inverse @ left
        unseen = weights / np.diag(inverse)  # Rasmussen and Williams, 2006, equation 5.12
        squares = max(float(left @ weights), _LEAST)
        surprise = 0.5 * size * np.log(squares) - 0.5 * np.linalg.slogdet(inverse)[1]
        surprise += _PRIOR_WEIGHT * (np.log(reach / _USUAL_REACH) ** 2).sum()
        return cls(places, reach, noise, weights, unseen, float(surprise))

    @property
    def error(self) -> float:
        return float(np.abs(self.unseen).mean())


_USUAL_REACH, _PRIOR_WEIGHT = 2.0, 0.05  # a reach that is 87 times as far is 1/e times as likely
_LEAST = 1e-30  # a formula that leaves nothing


def _likeliest_process(left: Floats, places: Floats, axes: NDArray[np.int64]) -> _Process:
    """Find the reach of each axis and the noise that make what is left likeliest, step by step."""
    starts = [np.full(places.shape[1], far) for far in _REACHES]
    tried = [_Process.through(left, places, reach, noise) for reach in starts for noise in _NOISES]
    best = min(tried, key=lambda each: each.surprise)
    for step in np.repeat(_STEPS, 2):
        for axis in range(axes.max() + 2):  # the last one is the noise
            for times in (1 / step, step):
                reach = np.where(axes == axis, times * best.reach, best.reach)
                noise = best.noise * (times if axis > axes.max() else 1.0)
                other = _Process.through(left, places, reach, noise)
                best = other if other.surprise < best.surprise else best
    return best


def _robust_process(left: Floats, found: _Process) -> _Process:
    """Return ``found`` with less weight on outliers, as if errors had a Cauchy distribution."""
    usual = found.noise**2 * max(float(left @ found.weights), _LEAST) / len(left)
    doubt = np.ones(len(left))
    for _ in range(_ROUNDS):
        off = found.noise**2 * doubt * found.weights
        doubt = (1 + off**2 / usual) / 2
        found = _Process.through(left, found.places, found.reach, found.noise, doubt)
    return found


_ROUNDS = 5


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def swept_fit(rows: SweepRows, source: str) -> KernelFit:
    """Return the fit of a device's kernels by their sweep."""
    places = sweep_places(rows.family, rows.columns)
    # Times of a sweep are of kernels: nothing of a framework's call is in them.
    ranges = ranges_of(rows.family.fit_family, "bf16" if rows.dtype == "fp32" else rows.dtype)
    found = fit_sweep(rows, places, ranges)
    low, high = np.exp(np.quantile(found.unseen, (0.1, 0.9)))
    errors = np.expm1(-found.unseen)
    formula_errors = rows.predicted(found.coefficients) / rows.seconds - 1
    return KernelFit(
        family=rows.family.fit_family,
        dtype=rows.dtype,
        coefficients=found.coefficients,
        low=round(float(min(low, 1.0)), 4),
        high=round(float(max(high, 1.0)), 4),
        source=source,
        errors=FitErrors(
            rows=len(rows.seconds),
            formula=round(geomean_error(formula_errors), 4),
            within_20=round(within_20(formula_errors), 4),
            shapes=round(geomean_error(errors), 4),
        ),
        points=found.points,
        version=rows.library,
    )


def with_sweep(platform: Platform, paths: Iterable[Path]) -> Platform:
    """Return the platform with fits of its device's kernels to measured sweeps."""
    device = platform.require_device()
    known = {(f.family, f.dtype, f.implementation): f for f in device.fits}
    for path in paths:
        source = f"{path.name}, read by weft calibrate --sweep"
        for rows in read_sweep(path, device):
            fit = swept_fit(rows, source)
            known[fit.family, fit.dtype, fit.implementation] = fit
    return replace(platform, device=replace(device, fits=tuple(known.values())))
