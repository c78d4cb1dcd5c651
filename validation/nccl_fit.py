"""Fit the curves of ``weft.cost.nccl`` to measured tables, and say how well they predict.

Seconds are linear in how much each curve rises between its knots, and curves only rise: so a fit
looks for numbers of zero or more with the smallest relative errors. Nothing is random.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from validation.nccl_tables import SERVER_TABLES, SOURCE, Cell, node_of, read_server_cells
from weft.cost.fit_errors import geomean_error, within_20
from weft.cost.least_squares import Floats, smallest_errors
from weft.cost.nccl import SIBLINGS, fitted_seconds
from weft.hardware import Platform, platform
from weft.hardware.libraries import Curve, Errors, Fit, Library, version_key

# Where curves may bend, in bytes of a chunk. Chosen once for all devices, versions and collectives
# from powers of two: those without which sizes that were held back are predicted worse.
FIRST_KNOTS = tuple(2.0**k for k in (6, 14, 15, 16, 20, 22, 24))
STEP_KNOTS = tuple(2.0**k for k in (6, 12, 16, 17, 19, 21, 24, 26))
SWITCH_KNOTS = tuple(2.0**k for k in (20, 26, 28))  # in bytes of the whole

SHARP = ("h100", "b200")  # devices behind switches that reduce


def errors_of(fit: Fit, cells: Iterable[Cell]) -> list[float]:
    """Compare what a fit says with cells, whatever their version."""
    return [fitted_seconds(fit, c.num_ranks, c.nbytes) / c.seconds - 1 for c in cells]


def fit_cells(cells: Sequence[Cell], *, sharp: bool = False) -> Fit:
    """Fit one collective of one version; ``sharp`` looks for reductions inside the switch."""
    plain = _fit_steps(cells)
    most = max(c.num_ranks for c in cells)
    if not sharp or plain.collective != "all_reduce" or plain.dtypes != "float" or most < 8:
        return plain
    sizes = sorted({c.nbytes for c in cells if c.nbytes >= 1 << 20})
    tried = [plain, *(_fit_switch(cells, most, size) for size in sizes[:-2])]
    return min(tried, key=lambda fit: _mean_error(errors_of(fit, cells)))


def _mean_error(errors: list[float]) -> float:
    """Return the mean error; one that is far off counts no more than one that is off by half."""
    return float(np.minimum(np.abs(errors), 0.5).mean())


def _fit_switch(cells: Sequence[Cell], most: int, size: int) -> Fit:
    """Fit the steps to what is outside the switch, and a curve over the size to what is inside."""
    inside = [c for c in cells if c.num_ranks == most and c.nbytes >= size]
    outside = _fit_steps([c for c in cells if c.num_ranks < most or c.nbytes < size])
    knots = [knot for knot in SWITCH_KNOTS if knot <= max(c.nbytes for c in inside)]
    rise = _rising(np.array([c.nbytes for c in inside], float), knots)
    curve = _curve(knots, smallest_errors(rise, _seconds(inside)))
    return replace(outside, ranks=_ranks(cells), in_switch=curve, in_switch_from=size)


def _fit_steps(cells: Sequence[Cell]) -> Fit:
    """Fit the model of steps; with one number of ranks there is only a first chunk."""
    ranks = _ranks(cells)
    chunk = np.array([c.nbytes / c.num_ranks for c in cells])
    others = np.array([[c.num_ranks - 1.0] for c in cells])
    parts = [_rising(chunk, FIRST_KNOTS)]
    if len(ranks) > 1:
        parts.append(others * _rising(chunk, STEP_KNOTS))
    found = smallest_errors(np.hstack(parts), _seconds(cells))
    first, step = found[: len(FIRST_KNOTS)], found[len(FIRST_KNOTS) :]
    return Fit(
        cells[0].version,
        cells[0].collective,
        _dtypes(cells[0]),
        ranks,
        first=_curve(FIRST_KNOTS, first),
        step=_curve(STEP_KNOTS, step) if len(step) else (),
        in_switch=(),
        in_switch_from=0,
        errors=Errors(len(cells), 0.0, 0.0, 0.0),
    )


def _dtypes(cell: Cell) -> Any:
    if "reduce" not in cell.collective:
        return "any"
    return "int8" if cell.dtype == "int8" else "float"


def _ranks(cells: Iterable[Cell]) -> tuple[int, ...]:
    return tuple(sorted({c.num_ranks for c in cells}))


def _seconds(cells: Iterable[Cell]) -> Floats:
    return np.array([c.seconds for c in cells])


def _rising(nbytes: Floats, knots: Sequence[float]) -> Floats:
    """Return for each size how much of the rise between any two knots lies below it."""
    columns = [np.ones_like(nbytes)]
    for place, (left, right) in enumerate(pairwise(knots), start=2):
        share = (nbytes - left) / (right - left)
        columns.append(np.clip(share, 0, None if place == len(knots) else 1))
    return np.stack(columns, axis=1)


def _curve(knots: Sequence[float], rises: Floats) -> Curve:
    """Add up the rises, to four digits of a time, leaving out knots where nothing bends."""
    values = np.cumsum(rises)
    places = [(knot, float(f"{v:.4g}")) for knot, v in zip(knots, values.tolist(), strict=True)]
    return tuple(p for i, p in enumerate(places) if i in (0, len(places) - 1) or _bends(places, i))


def _bends(places: list[tuple[float, float]], at: int) -> bool:
    (a, low), (b, middle), (c, high) = places[at - 1 : at + 2]
    return not np.isclose(middle, low + (high - low) * (b - a) / (c - a), rtol=1e-4, atol=0)


def groups_of(cells: Iterable[Cell], *, by_count: bool) -> list[list[Cell]]:
    """Split cells into what is fitted together: one version, collective and kind of dtype.

    ``by_count`` keeps numbers of ranks apart, for machines whose ranks share a bottleneck: there
    a step costs more the more ranks there are.
    """
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        key = cell.version, cell.collective, _dtypes(cell), by_count and cell.num_ranks
        groups.setdefault(key, []).append(cell)
    return list(groups.values())


def cross_validated(cells: Sequence[Cell], *, sharp: bool = False) -> Fit:
    """Fit to all cells, with the errors of fits that were not shown some of them."""

    def unseen(group_of: Callable[[Cell], int]) -> list[float]:
        errors: list[float] = []
        for left_out in sorted({group_of(c) for c in cells}):
            fit = fit_cells([c for c in cells if group_of(c) != left_out], sharp=sharp)
            errors += errors_of(fit, [c for c in cells if group_of(c) == left_out])
        return errors

    fit = fit_cells(cells, sharp=sharp)
    held_back = unseen(half_of)
    counts = len(fit.ranks) > 2
    errors = Errors(
        cells=len(cells),
        fit=geomean_error(errors_of(fit, cells)),
        held_back=geomean_error(held_back),
        within_20=within_20(held_back),
        count_left_out=geomean_error(unseen(lambda c: c.num_ranks)) if counts else None,
    )
    return replace(fit, errors=errors)


def fitted_library(
    cells: Sequence[Cell], node: Platform, server: str = "", sibling: Sequence[Cell] = ()
) -> Library:
    """Fit everything that was measured on a machine: of NCCL, or of a server's own kernels.

    A server changes from one kernel to another at sizes that depend on the number of ranks, so
    each number has a curve of its own. What a version changes on a ``sibling`` with the same links
    it is predicted to change here.
    """
    device = node.require_device().name
    groups = groups_of(cells, by_count=bool(server) or node.staged)
    fits = [cross_validated(group, sharp=not server and device in SHARP) for group in groups]
    pairs = zip(fits, groups, strict=True)
    return Library(
        name=server or "nccl",
        device=device,
        basis="fitted",
        source=SOURCE,
        node=node.name,
        smallest=min(c.nbytes for c in cells),
        largest=max(c.nbytes for c in cells),
        fits=tuple(_with_other_version(fit, group, fits, sibling) for fit, group in pairs),
        fallback="nccl" if server else "",
    )


def fitted_server(folder: Path, server: str, device: str) -> Library:
    """Fit the all-reduces of a server on a device."""
    cells, sibling = (
        read_server_cells(folder, SERVER_TABLES[name], server) if name else ()
        for name in (device, SIBLINGS.get(device))
    )
    return fitted_library(cells, platform(node_of(device)), server, sibling)


def _with_other_version(
    fit: Fit, cells: Sequence[Cell], fits: Sequence[Fit], sibling: Sequence[Cell]
) -> Fit:
    other = other_version(fits, fit)
    if other is None:
        return fit
    known = {(c.version, c.num_ranks, c.nbytes): c.seconds for c in sibling}

    def changed(cell: Cell) -> float:
        versions = fit.version, other.version
        now, then = (known.get((each, cell.num_ranks, cell.nbytes)) for each in versions)
        return now / then if now and then else 1.0

    errors = zip(errors_of(other, cells), cells, strict=True)
    error = geomean_error((error + 1) * changed(cell) - 1 for error, cell in errors)
    return replace(fit, errors=replace(fit.errors, version_left_out=error))


def half_of(cell: Cell) -> int:
    """Return to which half a size belongs: every second one, whatever its dtype."""
    return int(np.log2(cell.nbytes)) % 2


def other_version(fits: Iterable[Fit], fit: Fit) -> Fit | None:
    """Return the nearest other version of the same collective, an older one if there is one."""
    same = [f for f in fits if (f.collective, f.dtypes) == (fit.collective, fit.dtypes)]
    same.sort(key=lambda f: version_key(f.version))
    key = version_key(fit.version)
    older = [f for f in reversed(same) if version_key(f.version) < key]
    newer = [f for f in same if version_key(f.version) > key]
    return next((f for f in older + newer if f.ranks == fit.ranks), None)
