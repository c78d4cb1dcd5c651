"""Computation and communication at once on NVIDIA devices: published and recorded."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from statistics import median

from validation.recorded_overlap import RecordedPair, recorded_pairs
from validation.target import Target
from weft.c3 import Gemm, Pricer, Scenario, price_scenario, without
from weft.cost.nccl import library_price
from weft.hardware import Platform, platform
from weft.planner.prices import Prices
from weft.schedule import Cost
from weft.step import NO_HOST, Collective, Execution, Op, RankStep, StepEngine, StepGraph

NAME = "overlap"
QUESTION = "Does what was learnt on one device explain overlap on others?"
PAIR = "pytorch pull request 172714: 8 H100, GEMM 8192^3, all-gather of 64 MiB per rank"
KERNELS = "Megatron-LM pull request 5596: NCCL's all-gather on 8 H100, time of its kernels"
ENGINES = "pytorch pull request 182850: low-contention all-gather (v1) on 8 H100, 375.6 GB/s"
# Bytes of an all-gather, and us of NCCL's rings and of its symmetric-memory kernels.
GATHERED = {2: (20.2, 10.9), 8: (43.4, 27.4), 32: (118.9, 95.3), 128: (385.3, 363.2)}
TRACES = "Holistic Trace Analysis, traces of 2 and 8 A100: the same kernel in different steps"
# Median and time-weighted slowdown of matrix products overlapped with NCCL.
RECORDED = {"recsys_8xA100_rank3": (1.057, 1.098), "nccl_meta_2xA100_rank0": (1.316, 1.292)}
_target = partial(Target, NAME)


def targets() -> Iterator[Target]:
    """Compute the figures."""
    machine = platform("h100-8")
    yield from _pair_on_h100(machine)
    yield from _gathers(machine)
    if folder := os.environ.get("WEFT_DATA"):
        for name, published in RECORDED.items():
            path = Path(folder) / "hta_traces" / f"{name}.json.gz"
            yield from _recorded(name, recorded_pairs(path), published)


def _pair_on_h100(machine: Platform) -> Iterator[Target]:
    scenario = Scenario("h100", Gemm(8192, 8192, 8192), "all_gather", 512 << 20)
    published = {"serial": 2.96e-3, "priority": 2.02e-3, "dma": 1.77e-3}
    rows = price_scenario(scenario, Pricer(machine), tuple(published))
    found = {row.choice.name: row.seconds for row in rows}
    for name, seconds in published.items():
        yield _target(
            f"GEMM 8192^3 with all-gather of 512 MiB on 8 H100, {name}",
            1e3 * seconds,
            "ms",
            PAIR,
            weft=1e3 * found[name],
            allowed=15.0,
        )
    calm = price_scenario(scenario, Pricer(without(machine, "clock")), ("priority", "dma"))
    note = f"{calm[0].seconds / calm[1].seconds:.2f} if clocks did not fall"
    yield _target(
        "engines over kernels on 8 H100",
        1.14,
        "x",
        PAIR,
        weft=found["priority"] / found["dma"],
        allowed=0.15,
        error_in="points",
        note=note,
    )


def _gathers(machine: Platform) -> Iterator[Target]:
    """Yield all-gathers alone, by kernels of NCCL and by engines: nothing is fitted to them."""
    pricer, launch = Pricer(machine), machine.require_device().launch
    for mebibytes, (ring, symmetric) in GATHERED.items():
        scenario = Scenario("", Gemm(8192, 8192, 8192), "all_gather", mebibytes << 20)
        priced = library_price(machine, "all_gather", scenario.nbytes, dtype="bfloat16").seconds
        title, engines = f"all-gather of {mebibytes} MiB on 8 H100", pricer.engines(scenario)
        yield _target(
            f"{title}, rings of NCCL",
            ring,
            "us",
            KERNELS,
            weft=1e6 * (priced - launch),
            allowed=15.0,
            note=f"by copy engines {1e6 * engines:.1f} us, which nobody has published",
        )
        yield _target(
            f"{title}, symmetric-memory kernels", symmetric, "us", KERNELS,
            weft=1e6 * (pricer.comm(scenario) - launch),
            note="a kernel that writes to all peers at once; theirs multicast",
        )  # fmt: skip
    scenario = Scenario("", Gemm(8192, 8192, 8192), "all_gather", 512 << 20)
    yield _target(
        "all-gather of 512 MiB on 8 H100, copy engines", 1.429, "ms", ENGINES,
        weft=1e3 * pricer.engines(scenario), allowed=15.0,
        note="512 MiB at 375.6 GB/s; weft has the rate of two-way copies and of the links",
    )  # fmt: skip


def _recorded(
    name: str, pairs: list[RecordedPair], published: tuple[float, float]
) -> Iterator[Target]:
    found = [_slowdown(pair) for pair in pairs]
    alone = sum(pair.alone for pair in pairs)
    weighted = sum(s * pair.alone for s, pair in zip(found, pairs, strict=True)) / alone
    measured = sum(pair.overlapped for pair in pairs) / alone
    active = [p.overlapped / p.alone for p in pairs if p.collective == "AllReduce"]
    note = f"{len(pairs)} places; measured here {measured:.3f}; with all-reduces alone " + (
        f"{median(active):.2f} in the median" if active else "none"
    )
    for what, weft, figure in (
        ("median", median(found), published[0]),
        ("time-weighted", weighted, published[1]),
    ):
        yield _target(
            f"matrix products overlapped with NCCL in {name}, {what} slowdown",
            100 * figure - 100,
            "%",
            TRACES,
            weft=100 * weft - 100,
            allowed=6.0,
            error_in="points",
            note=note,
        )


def _slowdown(pair: RecordedPair) -> float:
    """Return the step engine's slowdown of a kernel next to a collective of some workgroups."""
    machine = platform("a100-8")
    device = replace(machine.require_device(), launch=0.0)
    machine = replace(machine, device=device)
    cost = Cost(tiles=max(2, ceil(pair.waves * device.units)))
    moves = Op("nccl", "collective", "comm", None, Collective("all_reduce", 25 << 20), seconds=1.0)
    ops = (moves, Op("gemm", cost=cost, seconds=pair.alone))
    graph = StepGraph("pair", 8, (RankStep(tuple(range(8)), ops),))
    engine = StepEngine(graph, machine, Prices(machine), host=NO_HOST)
    held = Execution(1.0, units=max(1, round(pair.held)), first=True)
    return engine.run({(0, 0): held}).length((0, 1)) / pair.alone
