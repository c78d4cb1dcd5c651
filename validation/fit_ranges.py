"""Fit the terms of ranges to residuals of what no model was fitted to, and check that they hold.

    WEFT_DATA=folder python -m validation.fit_ranges [--steps FILE] [--serving] [--dry-run]
    WEFT_DATA=folder python -m validation.fit_ranges --kernels [--dry-run]

A term is the smallest that makes ranges hold four of five residuals, all tables of a kind counting
alike, and a little more where these are few. The checks leave out, in turn, the table, model or
machine that they are about. Predicting every measured step takes long: ``--steps`` keeps the rows
in a file, and predicts only where there is none; ``--kernels`` leaves the terms of stacks, experts,
hosts and servers as they are. Steps are predicted with the terms that are written: those of kernels
come first, and a file of rows is for as long as none has changed. Terms without residuals
(``ASSUMED``) are named as such.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from validation.nccl_tables import data_folder
from validation.range_tables import RangeTable, collective_tables, kernel_tables
from validation.serving_rows import predicted, served_rows
from validation.splits import SERVING
from validation.step_rows import StepRow
from validation.step_sets import STEP_SETS
from weft.cost.ranges import FILE, OTHER, range_term
from weft.hardware.files import read_toml
from weft.hardware.toml_text import to_toml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from validation.kernel_tables import Floats, Mask

HEAD = "# Written by python -m validation.fit_ranges. What the numbers mean: weft.cost.ranges.\n"
HELD = 0.8  # share of measurements that a range is meant to hold
_WIDEST = 3.0  # logarithm: a factor of 20
FEW = 20  # rows below which a share inside says little, and a stack is judged with all others
_LEAST = 6  # held-out rows that say more than those that a model was fitted to
# Another version or author, where no table of one is at hand: what those of products and attention
# of libraries are off by, about 12 %, half of it for all shapes alike.
FLOOR = {"down": 0.12, "up": 0.12, "common": 0.5}
ASSUMED: dict[str, dict[str, dict[str, float]]] = {
    # What was measured in a step of another machine: as collectives.
    "elsewhere": {OTHER: FLOOR, "recorded": {"down": 0.07, "up": 0.1}},
    # An op of the host: equal jobs of Megatron-LM's tests differ by 2 to 15 % between containers,
    # and hosts differ more.
    "hosts": {OTHER: {"down": 0.22, "up": 0.22}},
    "dtype": {OTHER: {"down": 0.2, "up": 0.2}},
    "serving": {OTHER: {"down": 0.9, "up": 0.9}},
    # A simulated collective over NCCL's measured ones: within that factor for most.
    "collectives": {"simulated": {"down": 0.22, "up": 0.3}},
}


@dataclass(frozen=True, slots=True)
class RangeCheck:
    """How many values of a table lie in their ranges.

    ``inside`` is with the fitted terms, ``apart`` with terms that the table had no part in.
    """

    title: str
    fitted: bool
    rows: int
    inside: float
    apart: float
    width: float

    @property
    def uncertainty(self) -> float:
        """Standard deviation of the share inside, were rows independent and the range right."""
        return sqrt(HELD * (1 - HELD) / self.rows)


def fit_term(tables: Sequence[RangeTable], held: float = HELD) -> float:
    """Return the smallest term with which ranges hold four of five residuals of the tables."""
    low, high = 0.0, _WIDEST
    if not tables or share_inside(tables, low) >= held:
        return low
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if share_inside(tables, middle) >= held else (middle, high)
    return high


def table_term(tables: Sequence[RangeTable]) -> float:
    """Return the term of a kind of tables, for a table that is not among them.

    It holds (n + 1) / n of four of five, as conformal ranges of n machines or libraries do, and no
    more than 85 %.
    """
    parts = len({table.part for table in tables})
    return fit_term(tables, min(HELD * (parts + 1) / parts, _MOST_HELD)) if parts else 0.0


_MOST_HELD = 0.85
_ROUNDS = 4  # after which the two terms of collectives stay as they are


def collective_terms(tables: Sequence[RangeTable]) -> tuple[float, float]:
    """Return the terms of bytes and of overhead, each by the rows that are mostly of its kind."""
    of_bytes = overhead = 0.0
    for _ in range(_ROUNDS):
        of_bytes = table_term(_mostly(tables, overhead, of_bytes=True))
        overhead = table_term(_mostly(tables, of_bytes, of_bytes=False))
    return of_bytes, overhead


def _mostly(tables: Iterable[RangeTable], other: float, *, of_bytes: bool) -> list[RangeTable]:
    """Return rows mostly of one kind, with the term of the other kind in their ranges."""
    found = []
    for table in tables:
        assert table.overhead is not None
        mine = 1 - table.overhead if of_bytes else table.overhead
        if (mine > 0.5).any():
            known = replace(table, weight=1 - mine).with_term(other, mine)
            found.append(known.rows(mine > 0.5))
    return found


def share_inside(tables: Sequence[RangeTable], term: float) -> float:
    """Return the share of residuals in ranges with a term; all but small tables count alike."""
    weights = [min(len(table.left), FEW) for table in tables]
    return float(np.average([table.inside(term).mean() for table in tables], weights=weights))


def common_share(tables: Sequence[RangeTable], term: float) -> float:
    """Return how much of a term all rows of a table have in common: that of its medians."""
    medians = [abs(float(np.median(table.left))) for table in tables]
    return float(np.clip(np.quantile(medians, HELD) / term, 0.0, 1.0)) if term else 1.0


def fit_kernels(folder: Path) -> tuple[dict[str, Any], list[RangeCheck]]:
    """Fit the terms of kernels and collectives; check each table without its own part in them."""
    terms: dict[str, Any] = defaultdict(dict)
    checks: list[RangeCheck] = []
    by_term: dict[tuple[str, str], list[RangeTable]] = defaultdict(list)
    for table in (*kernel_tables(folder), *collective_tables(folder)):
        by_term[table.group, table.name].append(table)
    for (group, name), tables in by_term.items():
        shown = _enough(tables)
        rows = sum(len(table.left) for table in shown)
        if group == "collectives":
            terms[group][name] = _as_collective(collective_terms(shown)) | {"rows": rows}
        elif group:
            term = table_term(shown)
            terms[group][name] = _both(term)
            terms[group][name] |= {"common": _rounded(common_share(shown, term)), "rows": rows}
        for table in tables:
            others = _enough([each for each in tables if each.part != table.part])
            if group == "collectives":
                checks.append(_collectives_checked(table, terms[group][name], others))
                continue
            here = terms[group][name]["up"] if group else 0.0
            apart = table_term(others) if group and others else here
            checks.append(_checked(table, here, table.inside(apart)))
    return terms, checks


def _both(term: float) -> dict[str, float]:
    return {"down": _rounded(term), "up": _rounded(term)}


def _as_collective(found: tuple[float, float]) -> dict[str, float]:
    of_bytes, overhead = found
    return _both(of_bytes) | {"overhead": _rounded(overhead)}


def _collectives_checked(
    table: RangeTable, known: dict[str, float], others: Sequence[RangeTable]
) -> RangeCheck:
    assert table.overhead is not None
    apart = _as_collective(collective_terms(others)) if others else known
    here, there = (
        replace(table, weight=table.overhead).with_term(each["overhead"], 1 - table.overhead)
        for each in (known, apart)
    )
    return _checked(here, known["up"], there.inside(apart["up"]))


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


def _checked(table: RangeTable, term: float, left_out: Mask) -> RangeCheck:
    known = table.with_term(term)
    width = float(np.median(np.exp(known.down + known.up)))
    inside, apart = float(table.inside(term).mean()), float(left_out.mean())
    return RangeCheck(table.title, table.fitted, len(table.left), inside, apart, width)


def fit_stacks(steps: Iterable[tuple[str, bool, StepRow]]) -> tuple[Any, list[RangeCheck]]:
    """Fit terms of stacks, of experts and of hosts to steps held out, or to all if these are few.

    Stacks have the steps without experts, experts what is left of the others with these terms,
    hosts that of the steps that they bound. Rows of a stack count alike, and data sets in the term
    of other stacks. A part is checked with the term of all other parts.
    """
    tables = list(_step_tables(steps))
    terms = _step_terms(tables)
    checks = []
    for title in dict.fromkeys(table.title for table in tables):
        for fitted in (True, False):
            mine = [t for t in tables if (t.title, t.fitted) == (title, fitted)]
            if mine:
                checks.append(_steps_checked(title, mine, tables, terms))
    return terms, checks


def _step_terms(tables: Sequence[RangeTable]) -> dict[str, Any]:
    """Fit the terms of steps, one kind after the other."""
    of_stacks, of_experts, of_hosts = (
        [table for table in tables if table.group == group]
        for group in ("stacks", "experts", "hosts")
    )
    pooled = _enough(of_stacks)
    every = _both(table_term(_joined(pooled, "title")))
    terms: dict[str, Any] = {"stacks": {OTHER: every}, "experts": {}, "hosts": {}}
    for stack in dict.fromkeys(table.name for table in of_stacks):
        mine = _enough([table for table in of_stacks if table.name == stack])
        terms["stacks"][stack] = _stack_term(mine, pooled)
    shown = _enough([_known(table, terms) for table in of_experts])
    if shown:
        terms["experts"][OTHER] = _stack_term(shown)
    for stack in dict.fromkeys(table.name for table in of_hosts):
        mine = _enough([_known(table, terms) for table in of_hosts if table.name == stack])
        terms["hosts"][stack] = _stack_term(mine)
    return terms


def _known(table: RangeTable, terms: dict[str, Any]) -> RangeTable:
    """Return a table with the terms in its ranges that are fitted before its own."""
    groups = {"stacks": (), "experts": ("stacks",), "hosts": ("stacks", "experts")}[table.group]
    for group in groups:
        weight = 1.0 if group == "stacks" else _of_experts(table)
        table = replace(table, weight=weight).with_term(_term_of(terms[group], table.name))
    return replace(table, weight=_of_experts(table) if table.group == "experts" else 1.0)


def _of_experts(table: RangeTable) -> Floats | float:
    return 0.0 if table.experts is None else table.experts


def _term_of(entries: dict[str, Any], name: str) -> float:
    return float(entries[name if name in entries else OTHER]["up"]) if entries else 0.0


def _steps_checked(
    title: str, mine: list[RangeTable], tables: list[RangeTable], terms: dict[str, Any]
) -> RangeCheck:
    inside, apart, widths = [], [], []
    for table in mine:
        without = _step_terms([each for each in tables if each.part != table.part])
        known = _known(table, terms).with_term(_term_of(terms[table.group], table.name))
        inside += known.inside(0.0).tolist()
        widths += np.exp(known.down + known.up).tolist()
        away = _term_of(without[table.group], table.name)
        apart += _known(table, without).inside(away).tolist()
    return RangeCheck(
        title,
        mine[0].fitted,
        len(inside),
        float(np.mean(inside)),
        float(np.mean(apart)),
        float(np.median(widths)),
    )


def _enough(tables: list[RangeTable]) -> list[RangeTable]:
    """Return the tables that were held out; all of them where these have very few rows."""
    unseen = [table for table in tables if not table.fitted]
    return unseen if sum(len(table.left) for table in unseen) >= _LEAST else tables


def _stack_term(tables: list[RangeTable], pooled: Sequence[RangeTable] = ()) -> dict[str, float]:
    """Fit the term of a stack; one with few rows counts as much as all stacks together."""
    rows = sum(len(table.left) for table in tables)
    parts = len({table.part for table in tables})
    shown = _joined(tables, "group")
    if rows < FEW:
        shown += _joined(pooled, "group")
    held = min(HELD * (parts + 1) / parts, _MOST_HELD)
    return _both(fit_term(shown, held)) | {"rows": rows}


def _joined(tables: Iterable[RangeTable], by: str) -> list[RangeTable]:
    """Join tables that have a field in common, so that each row of these counts alike."""
    groups: dict[str, list[RangeTable]] = defaultdict(list)
    for table in tables:
        groups[getattr(table, by)].append(table)
    return [
        replace(
            each[0],
            seconds=np.concatenate([t.seconds for t in each]),
            left=np.concatenate([t.left for t in each]),
            down=np.concatenate([t.down for t in each]),
            up=np.concatenate([t.up for t in each]),
            weight=np.concatenate([np.broadcast_to(t.weight, t.left.shape) for t in each]),
        )
        for each in groups.values()
    ]


_HOST_BOUND = {each.title for each in STEP_SETS if each.host_bound}


def _step_tables(steps: Iterable[tuple[str, bool, StepRow]]) -> Iterator[RangeTable]:
    """Return residuals of steps by data set, part and stack, without the terms fitted to steps.

    Steps that their host bounds move as far as it does.
    """
    groups: dict[tuple[str, bool, str, str, bool], list[StepRow]] = defaultdict(list)
    for title, fitted, row in steps:
        groups[title, fitted, row.stack, row.part, row.experts > 0].append(row)
    for (title, fitted, stack, part, experts), rows in groups.items():
        group, known = ("experts" if experts else "stacks"), range_term("stacks", stack)
        if title in _HOST_BOUND:
            group, known = "hosts", known.joined(range_term("hosts", stack))
        of_experts = np.array([row.experts for row in rows])
        squares = known.up**2 + (of_experts * range_term("experts", OTHER).up) ** 2
        down = np.log([row.predicted / row.low for row in rows])
        up = np.log([row.high / row.predicted for row in rows])
        yield RangeTable(
            *(group, stack, title, part, fitted),
            seconds=np.array([row.measured for row in rows]),
            left=np.log([row.measured / row.predicted for row in rows]),
            down=np.sqrt(np.maximum(down**2 - squares, 0.0)),
            up=np.sqrt(np.maximum(up**2 - squares, 0.0)),
            experts=of_experts if experts else None,
        )


def measured_steps(folder: Path, file: Path | None) -> Iterator[tuple[str, bool, StepRow]]:
    """Yield every measured step with its data set and whether models were fitted to it.

    ``file`` keeps the predicted rows: data sets that it has are not predicted again, so that an
    interrupted run goes on with the next one.
    """
    kept = defaultdict(list)
    if file is not None and file.is_file():
        for line in file.read_text(encoding="utf-8").splitlines():
            found = json.loads(line)
            kept[found["title"]].append((found["fitted"], StepRow(**found["row"])))
    for each in STEP_SETS:
        if each.title not in kept:
            print(f"predicting {each.title}", file=sys.stderr, flush=True)
            kept[each.title] = [(row.part in each.split.fitted, row) for row in each.rows(folder)]
            if file is not None:
                with file.open("a", encoding="utf-8") as rows:
                    for fitted, row in kept[each.title]:
                        found = {"title": each.title, "fitted": fitted, "row": asdict(row)}
                        rows.write(json.dumps(found) + "\n")
        for fitted, row in kept[each.title]:
            yield each.title, fitted, row


def fit_servers(folder: Path) -> tuple[dict[str, Any], list[RangeCheck]]:
    """Fit the terms of first tokens and of times between tokens, by server, to unseen models."""
    by_term: dict[str, list[RangeTable]] = defaultdict(list)
    for fitted, models in ((True, SERVING.fitted), (False, SERVING.held_out)):
        for model in models:
            for name, table in _served(folder, model, fitted=fitted):
                by_term[name].append(table)
    terms: dict[str, Any] = {}
    checks = []
    for name, tables in by_term.items():
        shown = _enough(tables)
        term = fit_term(shown)
        terms[name] = _both(term) | {"rows": sum(len(table.left) for table in shown)}
        for table in tables:
            others = _enough([each for each in tables if each.part != table.part])
            apart = fit_term(others) if others else term
            checks.append(_checked(table, term, table.inside(apart)))
    return terms, checks


def _served(folder: Path, model: str, *, fitted: bool) -> Iterator[tuple[str, RangeTable]]:
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in served_rows(folder, (model,)):
        found = predicted(row)
        if found is not None:
            pairs[f"{row.server}-ttft"].append((row.first, found[0]))
            pairs[f"{row.server}-itl"].append((row.between, found[1]))
    for name, mine in pairs.items():
        measured, said = np.array(mine).T
        none = np.zeros(len(mine))
        title = f"{name} of {model.split('/')[1]}"
        left = np.log(measured / said)
        yield name, RangeTable("serving", name, title, model, fitted, measured, left, none, none)


def main() -> int:
    """Fit all terms, write them, and print how many values ranges hold."""
    parser = argparse.ArgumentParser(description="Fit the terms of ranges to residuals.")
    parser.add_argument("--steps", type=Path, help="file that keeps the predicted steps")
    parser.add_argument("--serving", action="store_true", help="servers as well, which takes long")
    parser.add_argument("--kernels", action="store_true", help="kernels and collectives alone")
    parser.add_argument("--dry-run", action="store_true", help="print, but write nothing")
    asked = parser.parse_args()
    folder = data_folder()
    if folder is None:
        print("the measured tables are not here: set WEFT_DATA to their folder", file=sys.stderr)
        return 1
    terms, checks = fit_kernels(folder)
    kept = read_toml(FILE)
    of_steps: list[RangeCheck] = []
    if asked.kernels:
        terms |= {group: kept[group] for group in ("stacks", "experts", "hosts")}
    else:
        of_jobs, of_steps = fit_stacks(measured_steps(folder, asked.steps))
        terms |= of_jobs
    if asked.serving:
        terms["serving"], of_servers = fit_servers(folder)
        checks += of_servers
    else:
        terms["serving"] = kept["serving"]
    for group, entries in ASSUMED.items():
        terms[group] = entries | terms.get(group, {})
    for check in (*checks, *of_steps):
        kind = "fitted" if check.fitted else "unseen"
        print(
            f"{check.title:56} {kind:6} {check.rows:5} rows {100 * check.inside:4.0f} % inside, "
            f"{100 * check.apart:4.0f} % +- {100 * check.uncertainty:.0f} left out, "
            f"width {check.width:.2f}"
        )
    if not asked.dry_run:
        ordered = {group: dict(sorted(terms[group].items())) for group in sorted(terms)}
        FILE.write_text(HEAD + to_toml(ordered), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
