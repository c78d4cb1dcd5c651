"""A platform calibrated from a trace: a machine of the catalogue with measured values on top.

Taken from the trace: the host's overheads around every kind of operator, the launch latency, the
rates of matrix products with known shapes and what they took over their price, the rates of copies
to the host and between devices, and the transfer times of collectives (measured if several ranks
were given, otherwise the shortest of equal ones, an upper bound). ``predict`` and ``plan`` use all.

Host overheads are T1 to T5 of arXiv 2201.07821, of outermost operators that launch something:
*between* (T1) is the pause since the previous operator on its thread, *before* (T2) from its start
to its first launch, *after* (T3) from its last launch to its end, *launch* (T4) one launching call,
*inside* (T5) from one to the next. Means exclude the longest twentieth, in which the host was
interrupted or waited.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from weft.cost.price import price
from weft.errors import UsageError, WeftError
from weft.hardware import Platform, platform, platform_from_table, platform_names
from weft.hardware.files import merged
from weft.hardware.quantity import SourcedNumbers
from weft.hardware.recorded_device import Overheads
from weft.schedule import Cost
from weft.trace.analysis.analysis_result import MEASURED, Analysis, CollectiveUse, RankAnalysis
from weft.trace.analysis.analyzing import analyze
from weft.trace.analysis.kernel_slowdown import is_gemm_name
from weft.trace.analysis.machine_links import links_of
from weft.trace.tensors import dtype_name, tensors_of
from weft.trace.trace import EventKind, Ints, Trace
from weft.trace.trace_collectives import is_collective_name

_LARGE = 1 << 20  # bytes of a copy from which on its rate dominates its latency
_SHORTEST = 5e-6  # seconds: clocks of old profilers tick in microseconds
# By operator: which of its inputs is the first matrix of the product.
_PLACES = {"aten::addmm": 1, "aten::mm": 0, "aten::bmm": 0, "aten::baddbmm": 1}
PAUSES = ("between", "before", "after", "launch", "inside")  # T1 to T5
_FEWEST = 5  # operators of a kind before it gets its own entry
_MOST_KINDS = 40
_LONGEST = 1e-3  # seconds: a longer pause is not overhead


def calibrated_from(paths: Iterable[str | Path], base: str | None = None) -> Platform:
    """Build a platform from traces of one job, on top of ``base`` (default: found by device)."""
    analysis = analyze(paths)
    first = analysis.ranks[0].trace
    below = platform(base) if base else _machine_of(first)
    others = f" and {len(analysis.ranks) - 1} more" if len(analysis.ranks) > 1 else ""
    source = f"read by weft calibrate from {Path(first.path).name}{others}"
    over = _table(analysis, below, SourcedNumbers(source))
    table = merged(below.to_table(), over)
    table |= {"name": f"{below.name}-traced", "title": f"{below.title}, as traced"}
    return platform_from_table(table, "trace")


def _machine_of(trace: Trace) -> Platform:
    found = links_of(trace.device).machine
    if found is None:
        raise UsageError(
            f"no machine of the catalogue has the device {trace.device or 'of this trace'!r}",
            f"Name the closest one: --on one of {', '.join(platform_names())}.",
        )
    return found


def _table(analysis: Analysis, below: Platform, write: SourcedNumbers) -> dict[str, Any]:
    traces = [rank.trace for rank in analysis.ranks]
    host = _host(traces, write)
    recorded = {
        "host": host,
        "products": _rates(_products(traces, below), write),
        "collectives": _exchanges(analysis.ranks, write),
    }
    out: dict[str, Any] = {"recorded": {key: value for key, value in recorded.items() if value}}
    device: dict[str, Any] = {}
    if "all" in host:
        device["host_launch"] = host["all"]["launch"]
    latency = _latency(traces)
    if latency is not None:
        device["launch"] = write.achieved(latency, "end of a launch to start on an idle stream")
    copies = _copies(traces)
    between = [rate for kind, rates in copies.items() if "ptop" in kind for rate in rates]
    if between and below.require_device().dma is not None:
        device["dma"] = {"engine_rate": write.achieved(max(between), "best copy between devices")}
    pinned = [
        rate
        for kind, rates in copies.items()
        if kind.startswith(("htod", "dtoh")) and "pageable" not in kind
        for rate in rates
    ]
    if pinned and below.host is not None:
        out["host"] = {"link_rate": write.achieved(median(pinned), "median of copies to the host")}
    if device:
        out["device"] = device
    return out


def _host(traces: Sequence[Trace], write: SourcedNumbers) -> dict[str, Any]:
    out = {}
    for kind, found in overheads_of(traces).items():
        what = f"mean over {found.count} operators without the longest twentieth"
        seconds = {name: write.achieved(getattr(found, name), what) for name in PAUSES}
        out[kind] = {"count": write.count(found.count, "operators seen"), **seconds}
    return out


def _latency(traces: Sequence[Trace]) -> float | None:
    """Return the median time from the end of a launch to the start of its kernel on an idle GPU."""
    found: list[float] = []
    for trace in traces:
        rows, launch = trace.gpu, trace.launch[trace.gpu]
        reached = np.maximum.accumulate(trace.end[rows])
        before = np.concatenate([[-np.inf], reached[:-1]])
        chosen = (launch >= 0) & (before <= trace.columns.start[launch])
        waits = trace.columns.start[rows[chosen]] - trace.end[launch[chosen]]
        found += waits[waits >= 0].tolist()
    return median(found) if found else None


def _products(
    traces: Sequence[Trace], below: Platform
) -> dict[str, list[tuple[float, float | None]]]:
    """Return flop/s of every matrix product with known shapes, and its seconds over their price."""
    out: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for trace in traces:
        kernels = trace.gpu[trace.columns.kind[trace.gpu] == EventKind.KERNEL]
        gemms = kernels[trace.named(kernels, is_gemm_name)]
        for row in gemms[trace.launch[gemms] >= 0].tolist():
            shape, dtype = _shape(trace, int(trace.launch[row]))
            seconds = float(trace.columns.duration[row])
            if shape and seconds >= _SHORTEST:
                # fp32 products that run on tensor cores are tf32.
                low = trace.name_of(row).lower()
                uses_tensor_cores = any(word in low for word in ("tf32", "s1688", "tensorop"))
                units = "tf32" if dtype == "fp32" and uses_tensor_cores else dtype
                share = _share(shape, units, seconds, below)
                out[units].append((2 * prod(shape) / seconds, share))
    return out


def _share(shape: tuple[int, ...], dtype: str, seconds: float, below: Platform) -> float | None:
    """Return what a product took over its price; None if it cannot be priced."""
    family = "gemm" if shape[0] == 1 else "bmm"
    sides = shape[1:] if shape[0] == 1 else shape
    try:
        priced = price(Cost(family, sides, dtype), below.require_device())
    except WeftError:
        return None
    return seconds / priced.seconds if priced.seconds > 0 else None


def _shape(trace: Trace, launch: int) -> tuple[tuple[int, ...], str]:
    """Return batch, m, n, k and dtype of the product around a launch; empty if unknown."""
    for row in trace.ancestors(launch):
        name = trace.name_of(row)
        if name not in _PLACES:
            continue
        operands = tensors_of(trace.detail_of(row))[_PLACES[name] :][:2]
        if [len(each.shape) >= 2 and bool(each.dtype) for each in operands] != [True, True]:
            return (), ""
        a, b = operands
        batch = prod(a.shape[:-2])
        return (batch, a.shape[-2], b.shape[-1], a.shape[-1]), dtype_name(a.dtype)
    return (), ""


def _copies(traces: Sequence[Trace]) -> dict[str, list[float]]:
    """Return the bandwidth of large copies, by direction."""
    out: dict[str, list[float]] = defaultdict(list)
    for trace in traces:
        copies = trace.gpu[trace.columns.kind[trace.gpu] == EventKind.COPY]
        large = copies[trace.columns.nbytes[copies] >= _LARGE]
        for row in large.tolist():
            seconds = float(trace.columns.duration[row])
            if seconds >= _SHORTEST:
                kind = trace.name_of(row).removeprefix("Memcpy ").lower()
                out[kind].append(float(trace.columns.nbytes[row]) / seconds)
    return out


def _rates(
    found: dict[str, list[tuple[float, float | None]]], write: SourcedNumbers
) -> dict[str, Any]:
    out = {}
    for kind, seen in found.items():
        rates = [rate for rate, _ in seen]
        shares = [share for _, share in seen if share is not None]
        out[kind] = {
            "count": write.count(len(rates), "matrix products seen"),
            "median": write.achieved(median(rates), "median of matrix products"),
            "best": write.achieved(max(rates), "best of matrix products"),
        }
        if shares:
            what = f"median of measured / priced over {len(shares)} matrix products"
            out[kind]["share"] = write.achieved(median(shares), what)
    return out


def _exchanges(ranks: Sequence[RankAnalysis], write: SourcedNumbers) -> list[dict[str, Any]]:
    """Return the transfer time of each kind and size of collective."""
    groups: dict[tuple[str, int, int], list[CollectiveUse]] = defaultdict(list)
    for rank in ranks:
        for use in rank.collectives:
            if use.nbytes and use.num_ranks and use.num_ranks > 1 and is_collective_name(use.name):
                groups[use.kind, use.nbytes, use.num_ranks].append(use)
    return [_exchange(*key, uses, write) for key, uses in sorted(groups.items())]


def _exchange(
    kind: str, nbytes: int, num_ranks: int, uses: Sequence[CollectiveUse], write: SourcedNumbers
) -> dict[str, Any]:
    seen = [use.moving for use in uses if use.basis == MEASURED and use.moving is not None]
    if seen:
        seconds = write.achieved(median(seen), f"last start to first end, median of {len(seen)}")
    else:
        shortest = min(use.seconds for use in uses)
        what = f"shortest of {len(uses)} on one rank, waiting included"
        seconds = write.derived(shortest, what)
    ends = {"ranks": write.count(num_ranks, "ranks of the group"), "seconds": seconds}
    return {"kind": kind, "nbytes": write.count(nbytes, "size as nccl-tests counts"), **ends}


class _OperatorTimes:
    """Observed times of one kind of operator."""

    def __init__(self) -> None:
        self.count = 0
        self.times: dict[str, list[float]] = defaultdict(list)

    def add(self, **times: Sequence[float]) -> None:
        self.count += 1
        for name, values in times.items():
            self.times[name] += [value for value in values if value >= 0]

    def mean(self) -> Overheads:
        return Overheads(self.count, **{name: _mean(self.times[name]) for name in PAUSES})


def _mean(values: Sequence[float]) -> float:
    kept = sorted(values)[: max(1, round(0.95 * len(values)))] if values else []
    return fmean(kept) if kept else 0.0


def overheads_of(traces: Sequence[Trace]) -> dict[str, Overheads]:
    """Return the overheads by operator name, for the most frequent ones, and of ``all``."""
    seen: dict[str, _OperatorTimes] = defaultdict(_OperatorTimes)
    for trace in traces:
        _look(trace, seen)
    common = sorted(seen, key=lambda kind: -seen[kind].count)[: _MOST_KINDS + 1]
    return {kind: seen[kind].mean() for kind in common if seen[kind].count >= _FEWEST}


def _look(trace: Trace, seen: dict[str, _OperatorTimes]) -> None:
    start, end = trace.columns.start, trace.end
    launches = np.unique(trace.launch[trace.gpu])
    launches = launches[launches >= 0]
    if not len(launches):
        return
    outer = _outermost(trace)
    inside: dict[int, list[int]] = defaultdict(list)
    for row in launches[np.argsort(start[launches], kind="stable")].tolist():
        inside[int(outer[row])].append(row)
    # The pause between each outermost operator and the previous one on its thread.
    ops = np.unique(outer[outer >= 0])
    order = ops[np.lexsort((trace.columns.start[ops], trace.columns.thread[ops]))]
    pause = trace.columns.start[order[1:]] - trace.end[order[:-1]]
    same = trace.columns.thread[order[1:]] == trace.columns.thread[order[:-1]]
    good = same & (pause >= 0) & (pause < _LONGEST)
    pauses = dict(zip(order[1:][good].tolist(), pause[good].tolist(), strict=True))
    for op, calls in inside.items():
        if op < 0:
            continue
        times = {
            "between": [pauses[op]] if op in pauses else [],
            "before": [float(start[calls[0]] - start[op])],
            "after": [float(end[op] - end[calls[-1]])],
            "launch": [float(trace.columns.duration[row]) for row in calls],
            "inside": [float(start[b] - end[a]) for a, b in pairwise(calls)],
        }
        for kind in ("all", trace.name_of(op)):
            seen[kind].add(**times)


def _outermost(trace: Trace) -> Ints:
    """Return for every row the outermost operator around it or itself, or -1.

    Pointer jumping: each round looks twice as far up, so a million nested rows take twenty rounds.
    """
    above = trace.parent.astype(np.int64)
    outer = np.where(trace.columns.kind == EventKind.OP, np.arange(len(above)), -1)
    while (has := above >= 0).any():
        outer = np.where(has & (outer[above] >= 0), outer[above], outer)
        above = np.where(has, above[above], -1)
    return outer
