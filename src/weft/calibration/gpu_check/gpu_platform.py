"""The platform of a checked machine: one of the catalogue with what was measured on top.

Everything that is written here is used by prices: see ``hardware.recorded_device``.
"""

from __future__ import annotations

from math import prod
from statistics import median
from typing import TYPE_CHECKING, Any

from weft.errors import UsageError
from weft.hardware import Platform, platform, platform_from_table, platform_names
from weft.hardware.files import merged
from weft.hardware.quantity import SourcedNumbers
from weft.trace.analysis.machine_links import links_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weft.calibration.gpu_check.check_cases import CheckCase


def machine_of(device: str, num_ranks: int, on: str | None, *, is_gpu: bool) -> Platform:
    """Return the machine of the catalogue that a check compares with, with ``num_ranks`` ranks."""
    if on is None and not is_gpu:
        on = "cpu"
    found = platform(on) if on else links_of(device).machine
    if found is None:
        raise UsageError(
            f"no machine of the catalogue has the device {device!r}",
            f"Name the closest one: --on one of {', '.join(platform_names())}.",
        )
    return found if found.num_ranks == num_ranks else found.resized(num_ranks)


def checked_platform(
    below: Platform,
    cases: Sequence[CheckCase],
    measured: Mapping[str, float],
    before: Mapping[str, float | None],
    launch: Mapping[str, float],
    copies: Sequence[Mapping[str, Any]],
    *,
    source: str,
) -> Platform:
    """Build the platform; cases that are held out are not looked at."""
    write = SourcedNumbers(source, digits=6)
    used = [case for case in cases if not case.held_out and case.name in measured]
    recorded = {
        "products": _products(used, measured, before, write),
        "collectives": _exchanges(used, measured, below.num_ranks, write),
    }
    over: dict[str, Any] = {"recorded": {key: value for key, value in recorded.items() if value}}
    over["device"] = {
        "host_launch": write.achieved(launch["host"], "one launch, mean of 200"),
        "launch": write.achieved(launch["device"], "launch to launch on one stream, mean of 200"),
    }
    copied = {
        str(each["case"]): each["nbytes"] / each["seconds"] for each in copies if "seconds" in each
    }
    if "copy to one peer" in copied and below.require_device().dma is not None:
        rate = write.achieved(copied["copy to one peer"], "64 MiB to one peer")
        over["device"]["dma"] = {"engine_rate": rate}
    if "copy to host" in copied and below.host is not None:
        rate = write.achieved(copied["copy to host"], "page-locked copy to the host")
        over["host"] = {"link_rate": rate}
    table = merged(below.to_table(), over)
    table |= {"name": f"{below.name}-checked", "title": f"{below.title}, as measured"}
    return platform_from_table(table, "gpu-check")


def _products(
    used: Sequence[CheckCase],
    measured: Mapping[str, float],
    before: Mapping[str, float | None],
    write: SourcedNumbers,
) -> dict[str, Any]:
    """Return the rates of matrix products by dtype, and their seconds over their predictions."""
    products: dict[str, Any] = {}
    for dtype in dict.fromkeys(case.dtype for case in used if case.group == "product"):
        of = [case for case in used if case.group == "product" and case.dtype == dtype]
        rates = [2 * prod(case.product or ()) / measured[case.name] for case in of]
        shares = [measured[c.name] / predicted for c in of if (predicted := before.get(c.name))]
        products[dtype] = {
            "count": write.count(len(of), "products measured"),
            "median": write.achieved(median(rates), "median of products"),
            "best": write.achieved(max(rates), "best of products"),
        }
        if shares:
            what = "median of measured / predicted"
            products[dtype]["share"] = write.achieved(median(shares), what)
    return products


def _exchanges(
    used: Sequence[CheckCase],
    measured: Mapping[str, float],
    num_ranks: int,
    write: SourcedNumbers,
) -> list[dict[str, Any]]:
    """Return the seconds of each kind and size of collective."""
    return [
        {
            "kind": case.collective,
            "nbytes": write.count(case.nbytes, "size as nccl-tests counts"),
            "ranks": write.count(num_ranks, "ranks"),
            "seconds": write.achieved(measured[case.name], "slowest rank, median of repeats"),
        }
        for case in used
        if case.group == "collective"
    ]
