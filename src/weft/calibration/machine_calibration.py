"""Conversion of measurements to the platform ``here``."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from weft.calibration import microbenchmarks
from weft.calibration.microbenchmarks import (
    ALGORITHM_SIZES,
    DTYPES,
    EDGE,
    RANKS,
    SETS,
    Measured,
    one_thread,
)
from weft.errors import NotQuietError, UsageError
from weft.hardware import (
    Machine,
    Platform,
    cache_bytes,
    here_path,
    platform_from_table,
    this_machine,
)
from weft.hardware.quantity import SourcedNumbers
from weft.runtime.spawn import spawn
from weft.runtime.world import World
from weft.units import format_size

_TIMEOUT = 30.0
_FLAGS_OF_A_PULL = 4  # ready, done, and a read that is asked for: there and back
STEPS: tuple[tuple[str, Callable[[World], Measured]], ...] = (
    ("copies", microbenchmarks.copies),
    ("sums", microbenchmarks.sums),
    ("flags", microbenchmarks.flags),
    ("calls", microbenchmarks.calls),
    ("algorithms", microbenchmarks.algorithms),
    ("reads of other processes", microbenchmarks.remote_reads),
    ("products of matrices", microbenchmarks.matmuls),
)
_PRODUCT = f"product of {EDGE} x {EDGE} matrices, one thread"
_ENOUGH = 1.03  # a store type must be so much faster at all larger sizes to be taken


def measure_step(act: Callable[[World], Measured]) -> Measured:
    """Measure one kind of thing on two ranks; what both did at once is the slower one's.

    Gives seconds for each byte, flop, flag or call.
    """
    with one_thread():
        first, second = spawn(act, RANKS, timeout=_TIMEOUT)
    return {name: max(seconds, second.get(name, 0.0)) for name, seconds in first.items()}


def calibrated(found: Mapping[str, Measured], *, date: str = "") -> Platform:
    """Build the platform of this machine from the measurements of every step."""
    when = date or datetime.now(timezone.utc).date().isoformat()
    source = f"measured here on {when} by weft calibrate"
    rates = {step: {name: 1 / s for name, s in each.items()} for step, each in found.items()}
    seconds = {"flags": found["flags"], "calls": found["calls"], "algorithms": found["algorithms"]}
    table = _table(rates | seconds, this_machine(), SourcedNumbers(source))
    return platform_from_table(table, "here.toml")


def require_quiet(platform: Platform) -> None:
    """Raise if other processes used the cores: ops may look ten times as long then."""
    if platform.noise is not None and platform.noise.is_busy:
        raise NotQuietError(
            f"others used {platform.noise.foreign:.0%} of the cores during the calibration, so it "
            "was not kept: predictions from it could be wrong by ten times",
            "Calibrate again when the machine is quiet, or keep it all the same with --anyway.",
        )


def save(platform: Platform, path: Path | None = None) -> Path:
    """Write a platform, by default as that of this machine; a half-written file is never seen."""
    path = path or here_path()
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(platform.to_toml(), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}.", "Name another file with -o."
        ) from error
    return path


def _table(
    found: Mapping[str, Measured], machine: Machine, write: SourcedNumbers
) -> dict[str, Any]:
    copy, flag = found["copies"], found["flags"]
    fastest = max(copy[f"{each} cached alone"] for each in SETS)
    latency = write.derived(flag["spin"] / 2, "half a flag round trip between two cores")
    return {
        "name": "here",
        "title": f"{machine.cores} cores that share memory: {machine.cpu}",
        "description": f"This machine, {write.source}.",
        "machine": {"cpu": machine.cpu, "cores": machine.cores, "memory": machine.memory},
        "levels": [
            {
                "kind": "switch",
                "size": max(machine.cores, RANKS),
                "rate": write.achieved(fastest, "the fastest copy inside the caches"),
                "latency": latency,
            }
        ],
        "device": _device(found, machine, write, latency),
    }


def _device(
    found: Mapping[str, Measured], machine: Machine, write: SourcedNumbers, latency: dict[str, Any]
) -> dict[str, Any]:
    copy, call = found["copies"], found["calls"]
    largest = max(SETS)
    past = max(copy[f"{largest} {store} alone"] for store in ("cached", "streamed"))
    launch = max(call["pull"] - _FLAGS_OF_A_PULL * latency["value"], 0.0)
    flops = {
        dtype: {"achieved": write.achieved(rate, _PRODUCT)}
        for dtype, rate in found["products of matrices"].items()
        if dtype in ("fp32", "fp64")
    }
    nothing = write.derived(0.0, "the latency between cores has all of it")
    what = f"copy in {format_size(largest)}"
    return {
        "extends": "cpu",
        "name": "here",
        "title": f"One core of {machine.cpu}",
        "memory_bytes": {
            **write.derived(0, "an even share"),
            "value": machine.memory // machine.cores,
        },
        "unit_copy_rate": write.achieved(past, what),
        "memory_rate": write.derived(2 * past, f"reads and writes of a {what}"),
        "launch": write.derived(launch, "a prepared call that moves nothing, less its flags"),
        "signal": nothing,
        "release": latency,
        "flops": flops,
        "dma": _dma(found, write, past, launch),
        "shared": _shared(found, write),
    }


def _dma(
    found: Mapping[str, Measured], write: SourcedNumbers, rate: float, launch: float
) -> dict[str, Any]:
    """Return the cost of waking an engine thread: the extra time of a call by engines."""
    latency = found["flags"]["spin"] / 2
    call = found["calls"]["dma-b2b"]
    waking = max(call - launch - _FLAGS_OF_A_PULL * latency, 0.0)
    flag = write.derived(latency, "half a flag round trip between two cores")
    return {
        "engine_rate": write.achieved(rate, "copy by one core"),
        "fetch": write.derived(launch + waking, "a call by engines that moves nothing"),
        "doorbell": flag,
        "sync": flag,
    }


def _shared(found: Mapping[str, Measured], write: SourcedNumbers) -> dict[str, Any]:
    sums, far = found["sums"], found["reads of other processes"]
    sets = {_key(each): _set(found, each, write) for each in SETS}
    # Where the system forbids such reads everything goes through the heap: as slow as a copy.
    other = far.get("far both", found["copies"][f"{max(SETS)} cached both"] / 2)
    return {
        "streamed_from": {
            **write.derived(0, "the size where they begin to win"),
            "value": _streamed_from(found["copies"]),
        },
        "eager_up_to": _eager_up_to(found["algorithms"], "all_gather", write),
        "eager_reduced_up_to": _eager_up_to(found["algorithms"], "all_reduce", write),
        "far_rate": write.achieved(other, "process_vm_readv of 1 MiB, both ranks at once"),
        "yield_latency": write.derived(found["flags"]["yield"] / 2, "half a flag round trip"),
        "sets": sets,
        "reduces": {
            dtype: {"rate": write.achieved(sums[f"{dtype} both"], "sum of two, both ranks at once")}
            for dtype in DTYPES
        },
    }


def _set(found: Mapping[str, Measured], nbytes: int, write: SourcedNumbers) -> dict[str, Any]:
    copy, total = found["copies"], found["sums"]
    rates = {
        "cached": copy[f"{nbytes} cached alone"],
        "cached_both": copy[f"{nbytes} cached both"],
        "streamed": copy[f"{nbytes} streamed alone"],
        "streamed_both": copy[f"{nbytes} streamed both"],
        "reduced": total[f"{nbytes} alone"],
        "reduced_both": total[f"{nbytes} both"],
    }
    return {name: write.achieved(rate, "repeated on one place") for name, rate in rates.items()}


def _key(nbytes: int) -> str:
    """Write a size exactly, as the key of a table: they are powers of two."""
    return f"{nbytes >> 20}MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10}KiB"


def _streamed_from(copy: Measured) -> int:
    """Return the size from which streaming stores win, with both cores copying.

    That of a quarter of the last cache at most: two cores read and write four times as much.
    """
    wins = [copy[f"{s} streamed both"] > _ENOUGH * copy[f"{s} cached both"] for s in SETS]
    found = first_of_the_rest([each // 2 for each in SETS], wins)
    return min(found, max(cache_bytes()) // 4)


def _eager_up_to(algorithms: Measured, kind: str, write: SourcedNumbers) -> dict[str, Any]:
    """Return the largest size up to which eager copies were as fast as staged ones."""
    wins = [
        algorithms[f"{kind} {s} eager"] <= algorithms[f"{kind} {s} staged"] for s in ALGORITHM_SIZES
    ]
    longest = next((i for i, won in enumerate(wins) if not won), len(wins))
    size = ALGORITHM_SIZES[longest - 1] if longest else ALGORITHM_SIZES[0] // 2
    what = f"{kind} of two ranks, ordinary memory, eager and staged in turn"
    return {**write.derived(0, what), "value": size}


def first_of_the_rest(sizes: Sequence[int], wins: Sequence[bool]) -> int:
    """Return the first size from which all win, or a larger one if the last does not."""
    chosen = 2 * sizes[-1]
    for size, won in zip(reversed(sizes), reversed(wins), strict=True):
        if not won:
            break
        chosen = size
    return chosen
