"""Residuals of kernels and collectives that no fit was shown.

Each comes with the range that it has without the one term that the table tells about.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from validation.kernel_fit import left_of, unexplained, unseen_range
from validation.kernel_studies import studies_by_device
from validation.kernel_tables import Floats, Mask, Study, by_sibling, gemm_studies
from validation.nccl_algorithms_fit import read_logs, seconds_by
from validation.nccl_fit import groups_of, other_version
from validation.nccl_tables import (
    SERVER_TABLES,
    SERVERS,
    TABLES,
    Cell,
    read_cells,
    read_nccl_tests,
    read_server_cells,
)
from validation.other_tables import deepbench_products, vidur_products
from validation.published_attention import held_out
from validation.splits import NCCL_BETWEEN_NODES, VIDUR_LAYERS
from validation.vidur_layers import layer_studies
from weft.calibration.coefficient_ranges import grid_of
from weft.cost.nccl import SIBLINGS, fitted_seconds, library_price, overhead_share
from weft.cost.price import kernel_deviations, price_columns
from weft.cost.ranges import OTHER
from weft.hardware import platform
from weft.hardware.kernel_fits import ANY, find_fit
from weft.hardware.libraries import algorithm_fit, library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from weft.hardware.libraries import Fit

_SAMPLED = 2000  # rows of a table
_OTHER_TENTH = 2613  # seed of the shapes that check ranges; those of the fit have another one


@dataclass(frozen=True, slots=True)
class RangeTable:
    """Measured seconds, logarithms of them over predicted ones, and how far ranges reach.

    ``down`` and ``up`` are ranges without a term, that of which the table tells.
    ``group`` and ``name`` are the term of ``catalogue/ranges.toml`` that the table tells about; ""
    where it checks a range that is recorded elsewhere. ``part`` is what is left out together,
    ``fitted`` whether a model was fitted to the table. The terms are, to all tables that name them.
    ``overhead`` is the share of each collective that its bytes do not take, ``weight`` how much of
    a term each row has, ``experts`` how much of the term of experts.
    """

    group: str
    name: str
    title: str
    part: str
    fitted: bool
    seconds: Floats
    left: Floats
    down: Floats
    up: Floats
    overhead: Floats | None = None
    weight: Floats | float = 1.0
    experts: Floats | None = None

    def inside(self, term: float) -> Mask:
        """Return which residuals lie in the range with a term added."""
        each = self.weight * term
        found: Mask = (self.left >= -np.hypot(self.down, each)) & (
            self.left <= np.hypot(self.up, each)
        )
        return found

    def with_term(self, term: float, weight: Floats | float = 1.0) -> RangeTable:
        """Return the table with a term in its ranges; the next one has ``weight``."""
        each = self.weight * term
        down, up = np.hypot(self.down, each), np.hypot(self.up, each)
        return replace(self, down=down, up=up, weight=weight)

    def rows(self, chosen: Mask) -> RangeTable:
        """Return some rows of the table."""
        return replace(
            self,
            seconds=self.seconds[chosen],
            left=self.left[chosen],
            down=self.down[chosen],
            up=self.up[chosen],
            overhead=None if self.overhead is None else self.overhead[chosen],
            weight=np.broadcast_to(self.weight, self.left.shape)[chosen],
        )


def kernel_tables(folder: Path) -> Iterator[RangeTable]:
    """Read tables of other authors, of siblings, of other models, and shapes left out."""
    yield from product_tables(folder)
    for table in VIDUR_LAYERS.held_out:
        for study in layer_studies(folder, (table,)):
            known = study.device.name == "a100"
            title = f"{table.split('/')[1]}, " + ("another model" if known else "a sibling")
            yield _table(study, "" if known else "sibling", title, family=OTHER)
    for family, name in product(("attention", "attention-backward"), ("flash2", "flash3", "cudnn")):
        found = held_out("h100", name, family)
        if found is not None:
            yield _table(found, "", "other shapes and authors")
    for family in ("attention", "moe"):
        for where, studies in studies_by_device(folder, family).items():
            for (study,) in studies if where != ANY else ():
                yield _other_shapes(study)


def product_tables(folder: Path) -> Iterator[RangeTable]:
    """Read matrix products of other authors, and of a sibling."""
    for study in (vidur_products(folder), deepbench_products(folder)[0]):
        yield _table(study, "elsewhere", "another author")
    for study in (deepbench_products(folder)[1], *deepbench_products(folder, "T4")):
        yield _table(study, "", "another author, by a sibling")
    for study in gemm_studies(folder, "gb200"):
        own = replace(study, device=by_sibling(platform("gb200-nvl72").require_device()))
        by_device = study.dtype == "fp8_block"  # which has a range of its own on siblings
        yield _table(own, "" if by_device else "sibling", "a sibling")


def _table(study: Study, group: str, title: str, *, family: str = "") -> RangeTable:
    """Compare a table with prices; without the term for other authors, unless it is of one."""
    mine = study.sample(_SAMPLED)
    found = price_columns(mine.family, mine.columns, mine.device, mine.dtype, mine.implementation)
    away = kernel_deviations(
        mine.family,
        mine.device,
        mine.dtype,
        mine.implementation,
        without=(group, *(() if "author" in title else ("elsewhere",))),
    )
    ones = np.ones(len(mine.seconds))
    name = f"{study.family} {study.device.name} {study.dtype}"
    title = " ".join(filter(None, (name, study.implementation))) + f", {title}"
    left = np.log(mine.seconds / found.seconds)
    term = family or study.kind.fit_family
    return RangeTable(
        *(group, term if group else "", title, name, False, mine.seconds, left),
        *(away.down * ones, away.up * ones),
    )


def _other_shapes(study: Study) -> RangeTable:
    """Hold back a tenth of the shapes, and give the range that the others have."""
    fit = find_fit(study.device.name, study.family, study.dtype)
    assert fit is not None
    held = (study.random_shapes(_OTHER_TENTH, 10) == 0) & ~study.tenth_of_shapes
    grid, left = grid_of(study.family, study.dtype), unexplained(study, fit.coefficients)
    low, high = unseen_range(study.part(~held), left[~held], grid)
    unseen = left_of(study, left, grid, held)
    ones = np.ones(len(unseen))
    name = f"{study.family} {study.device.name} {study.dtype}"
    title, seconds = f"{name}, shapes left out", study.seconds[held]
    away = -np.log(low) * ones, np.log(high) * ones
    return RangeTable("", "", title, name, False, seconds, unseen, *away)


def collective_tables(folder: Path) -> Iterator[RangeTable]:
    """Read other machines and versions with NCCL, versions of servers, and logs between nodes."""
    yield from _other_machines(folder)
    yield from _server_versions(folder)
    fit = algorithm_fit("nccl")
    assert fit is not None
    for fitted, names in ((True, NCCL_BETWEEN_NODES.fitted), (False, NCCL_BETWEEN_NODES.held_out)):
        for name in names:
            rows = _said(
                (cell.seconds, seconds_by(cell, fit.coefficients), cell.nbytes)
                for cell in read_logs(folder, (name,))
            )
            title = f"NCCL between nodes, {name}"
            yield _collectives("nccl", title, _H100_LOGS, rows, fitted=fitted)


_H100_LOGS = "H100 of another cluster"


def _other_machines(folder: Path) -> Iterator[RangeTable]:
    """Compare other machines and older versions with what is said of the newest one measured."""
    logs = sorted((folder / "nccl_tests_h100" / "single_node").glob("N1_G*.log.gz"))
    here = [c for p in logs for c in read_nccl_tests(p, int(p.name[4]), "2.29.2")]
    yield _machine(_H100_LOGS, _priced("h100", here))
    there = [c for c in read_cells(folder, "gb200") if c.version == "2.29.2"]
    yield _machine("GB200 by B200's curves", _priced("b200", there))
    rows = []
    for file, kind in (("allreduce", "all_reduce"), ("allgather", "all_gather")):
        cells = list(read_nccl_tests(folder / "superbench_logs" / f"nccl_{file}.log", 8, "", kind))
        # One process drives eight devices there: one launch after another.
        launches = 8 * platform("a100-8").require_device().host_launch
        rows += _priced("a100", cells, launches)
    yield _machine("A100 in SuperBench", rows)
    for device in ("h100", "b200"):
        cells = list(read_cells(folder, TABLES[device]))
        newest = cells[-1].version
        older = [c for c in cells if c.version != newest]
        yield _machine(f"{device.upper()} with older versions", _priced(device, older))


Row = tuple[float, float, float]
"""Measured and predicted seconds, and the share of them that bytes do not take."""


def _machine(title: str, rows: list[Row]) -> RangeTable:
    return _collectives("nccl", f"NCCL inside a node, {title}", title, rows)


def _priced(device: str, cells: Iterable[Cell], launches: float = 0.0) -> list[Row]:
    """Return what was measured and its price; calls are no closer than ``launches``."""
    rows = []
    for cell in cells:
        machine, dtype = platform(f"{device}-8", num_ranks=cell.num_ranks), cell.dtype or "float16"
        kind = "send" if cell.collective == "sendrecv" else cell.collective
        found = library_price(machine, kind, cell.nbytes, dtype=dtype)
        seconds = max(found.seconds, launches)
        rows.append((cell.seconds, seconds, 1 - (1 - found.overhead) * found.seconds / seconds))
    return rows


def _said(rows: Iterable[tuple[float, Callable[[int], float], int]]) -> list[Row]:
    return [
        (seconds, seconds_of(nbytes), overhead_share(seconds_of, nbytes))
        for seconds, seconds_of, nbytes in rows
    ]


def _server_versions(folder: Path) -> Iterator[RangeTable]:
    """Predict each version of a server's all-reduce by the nearest other one.

    What the version changes on a sibling it is predicted to change here, as prices do.
    """
    for server in SERVERS:
        found: dict[str, list[Row]] = defaultdict(list)
        for device, system in SERVER_TABLES.items():
            fits = library(server, device).fits
            sibling = library(server, SIBLINGS[device]).fits if device in SIBLINGS else ()
            cells = read_server_cells(folder, system, server)
            for group in groups_of(cells, by_count=True):
                version, ranks = group[0].version, (group[0].num_ranks,)
                mine = next((f for f in fits if (f.version, f.ranks) == (version, ranks)), None)
                other = None if mine is None else other_version(fits, mine)
                if other is None:
                    continue
                there = {f.version: f for f in sibling if f.ranks == ranks}
                then, now = there.get(other.version), there.get(version)
                seconds_of = partial(_as_version, other, then, now)
                found[device] += _said((c.seconds, seconds_of, c.nbytes) for c in group)
        for device, rows in found.items():
            title = f"all_reduce of {server} on {device}, another version"
            yield _collectives("servers", title, device, rows)


def _as_version(other: Fit, then: Fit | None, now: Fit | None, nbytes: int) -> float:
    """Return what another version takes, changed as a sibling changed from ``then`` to ``now``."""
    num_ranks = other.ranks[0]
    seconds = fitted_seconds(other, num_ranks, nbytes)
    if then is None or now is None:
        return seconds
    return seconds * (
        fitted_seconds(now, num_ranks, nbytes) / fitted_seconds(then, num_ranks, nbytes)
    )


def _collectives(
    name: str, title: str, part: str, rows: list[Row], *, fitted: bool = False
) -> RangeTable:
    """Make a table of measured and predicted times; all of their range is the term."""
    measured, predicted, overhead = np.array(rows).T
    none = np.zeros(len(rows))
    left = np.log(measured / predicted)
    columns = (measured, left, none, none, overhead)
    return RangeTable("collectives", name, title, part, fitted, *columns)
