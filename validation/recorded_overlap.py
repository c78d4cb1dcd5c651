"""Kernels of recorded jobs that overlap NCCL in some steps and run alone in others."""

import gzip
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from statistics import fmean
from typing import Any

_OVERLAPPED, _ALONE = 0.9, 0.05  # share of a kernel that NCCL covers
_SHORTEST = 10.0  # us: shorter kernels are as long as the clock's tick
_GEMM = ("gemm", "cutlass", "xmma")
_RESERVED = 1024  # bytes of shared memory that CUDA keeps of each workgroup


@dataclass(frozen=True, slots=True)
class RecordedPair:
    """One kernel at one place of a step: seconds alone and overlapped, waves, what NCCL held."""

    alone: float
    overlapped: float
    waves: float
    held: float  # workgroups of NCCL that ran meanwhile, in the mean
    collective: str


def recorded_pairs(path: Path) -> list[RecordedPair]:
    """Read the matrix products of a trace that ran both ways, matched by name, grid and place."""
    with gzip.open(path, "rt") as file:
        recorded: dict[str, Any] = json.load(file)
    events = recorded["traceEvents"]
    unit = recorded["deviceProperties"][0]
    kernels = [e for e in events if str(e.get("cat", "")).lower() == "kernel"]
    launched = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if str(e.get("cat", "")).lower() in ("cuda_runtime", "runtime")
        and "correlation" in e.get("args", {})
    }
    nccl = [e for e in kernels if "nccl" in e["name"].lower()]
    others = [e for e in kernels if any(word in e["name"].lower() for word in _GEMM)]
    seen: dict[tuple[Any, ...], list[tuple[float, float, float, str, float]]] = defaultdict(list)
    for begin, end in _steps(events):
        count: Counter[tuple[Any, ...]] = Counter()
        mine = [e for e in others if begin <= launched.get(e["args"]["correlation"], -1) < end]
        for e in sorted(mine, key=lambda e: float(launched[e["args"]["correlation"]])):
            args = e["args"]
            kind = (e["name"], *map(str, (args["grid"], args["block"], e["tid"])))
            count[kind] += 1
            place = (*kind, count[kind])
            seen[place].append((e["dur"], *_covered(e, nccl), _waves(args, unit)))
    return [pair for each in seen.values() if (pair := _pair(each)) is not None]


def _steps(events: list[dict[str, Any]]) -> list[tuple[float, float]]:
    marks = (e for e in events if "ProfilerStep" in str(e.get("name")) and "dur" in e)
    host = (e for e in marks if e.get("cat", "").lower() != "gpu_user_annotation")
    return sorted((e["ts"], e["ts"] + e["dur"]) for e in host)


def _covered(e: dict[str, Any], nccl: list[dict[str, Any]]) -> tuple[float, float, str]:
    """Return the share of a kernel that NCCL covers, its workgroups and its name."""
    share, held, name = 0.0, 0.0, ""
    for each in nccl:
        over = min(each["ts"] + each["dur"], e["ts"] + e["dur"]) - max(each["ts"], e["ts"])
        if over > 0:
            share += over / e["dur"]
            held += prod(each["args"]["grid"]) * over / e["dur"]
            name = each["name"].split("_")[1]
    return share, held, name


def _waves(args: dict[str, Any], unit: dict[str, Any]) -> float:
    threads = ceil(prod(args["block"]) / 32) * 32
    registers = ceil(args["registers per thread"] / 8) * 8 * threads
    fits = [unit["maxThreadsPerMultiprocessor"] // threads]
    fits.append(unit["regsPerMultiprocessor"] // registers)
    shared = unit.get("sharedMemPerMultiprocessor") or unit["maxSharedMemoryPerMultiProcessor"]
    if args.get("shared memory"):
        fits.append(shared // (args["shared memory"] + _RESERVED))
    return float(prod(args["grid"]) / (max(1, min(fits)) * unit["numSms"]))


def _pair(each: list[tuple[float, float, float, str, float]]) -> RecordedPair | None:
    over = [row for row in each if row[1] > _OVERLAPPED]
    alone = [row for row in each if row[1] < _ALONE]
    if not over or not alone or fmean(row[0] for row in alone) < _SHORTEST:
        return None
    return RecordedPair(
        1e-6 * fmean(row[0] for row in alone),
        1e-6 * fmean(row[0] for row in over),
        each[0][4],
        fmean(row[2] for row in over),
        over[0][3],
    )
