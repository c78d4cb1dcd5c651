"""The report of an applied plan, one row per collective."""

from collections.abc import Mapping, Sequence
from typing import Any

from weft.planner.plan import Plan
from weft.torch.apply.collective_routes import CollectiveRoute, GroupRoutes
from weft.torch.apply.module_swaps import is_fused
from weft.torch.apply.step_watch import StepWatch
from weft.torch.backend.group_base import GroupBase
from weft.torch.hosts.multi_host_channel import MultiHostChannel
from weft.units import format_size, format_time

_TITLES = ("collective", "size", "planned", "path", "by plan", "by default", "why")


def rows_of(group: GroupBase, routes: GroupRoutes, *, fused: bool) -> list[dict[str, Any]]:
    """Return one row per distinct collective of a group."""
    alike: dict[tuple[Any, ...], dict[str, Any]] = {}
    for route in routes.routes():
        row = _row(group, route, fused=fused)
        key = tuple(row[name] for name in ("collective", "nbytes", "planned", "path"))
        kept = alike.setdefault(key, {**row, "by_plan": 0, "by_default": 0})
        kept["by_plan"] += route.by_plan
        kept["by_default"] += route.by_default
    return list(alike.values())


def _row(group: GroupBase, route: CollectiveRoute, *, fused: bool) -> dict[str, Any]:
    choice = route.choice
    return {
        "collective": route.kind,
        "nbytes": route.nbytes,
        "planned": "nothing" if choice is None else choice.strategy.name,
        "path": _path(group, route, fused=fused),
        "why": "not in the plan: default algorithm" if choice is None else choice.why,
    }


def _path(group: GroupBase, route: CollectiveRoute, *, fused: bool) -> str:
    choice = route.choice
    if choice is not None and is_fused(choice) and fused:
        return "fused: EmbeddingAllToAll"
    if route.backend == "gloo":
        return "gloo"
    if isinstance(group.channel, MultiHostChannel):
        return f"weft: {group.channel.paths().get(route.kind, 'gloo between hosts')}"
    if route.algorithm:
        return f"weft: {route.algorithm}"
    return f"weft: {group.channel.world.algorithm_of(route.kind, route.nbytes)}"


def as_text(plan: Plan, watch: StepWatch, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the durations of steps, then a line per collective."""
    said = (
        f"{plan.workload} on {plan.num_ranks} ranks of {plan.platform}: planned "
        f"{format_time(plan.planned)} a step ({format_time(plan.low)} to "
        f"{format_time(plan.high)}), {format_time(plan.baseline)} by default"
    )
    measured = [
        f"measured: {format_time(v.seconds)} {'by default' if v.default else 'by plan'}"
        for v in watch.verdicts[-2:]
    ]
    lines = [said, *measured]
    table = [_TITLES, *(_cells(row) for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(_TITLES) - 1)]
    for row in table:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*padded, row[-1]]).rstrip())
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    numbers = (str(row["by_plan"]), str(row["by_default"]))
    size = format_size(row["nbytes"])
    return (row["collective"], size, row["planned"], row["path"], *numbers, row["why"])
