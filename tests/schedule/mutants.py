"""Schedules with one thing changed: a signal or wait left out, a count, flag or offset moved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from weft.schedule import Program, Schedule, from_json, to_json
from weft.schedule.inline import inline


class Change(NamedTuple):
    """One change to a JSON value: what stands at ``path`` is removed, or ``by`` is added to it."""

    path: tuple[str | int, ...]
    by: int = 0

    @property
    def joins(self) -> bool:
        """Whether it concerns order alone, not which bytes are touched."""
        return self.path[-1] not in ("offset", "nbytes")


def rank_by_rank(schedule: Schedule) -> Schedule:
    """The same schedule without calls, a program for each rank: so that one can be changed."""
    flat = inline(schedule)
    programs = tuple(Program((rank,), p.queues) for p in flat.programs for rank in p.ranks)
    return replace(flat, programs=programs)


def changes(schedule: Schedule) -> list[Change]:
    """Every change there is to a schedule."""
    return list(_changes(json.loads(to_json(schedule)), ()))


def changed(schedule: Schedule, change: Change) -> Schedule:
    whole: Any = json.loads(to_json(schedule))
    inner = whole
    for step in change.path[:-1]:
        inner = inner[step]
    last = change.path[-1]
    if not change.by:
        del inner[last]
    elif isinstance(inner.setdefault(last, 1), int):  # the default of a count
        inner[last] += change.by
    else:
        inner[last]["base"] = inner[last].get("base", 0) + change.by
    return from_json(json.dumps(whole))


def _changes(value: Any, path: tuple[str | int, ...]) -> Iterator[Change]:
    if isinstance(value, list):
        for number, each in enumerate(value):
            if isinstance(each, dict) and each.get("kind") in ("Signal", "Wait"):
                yield Change((*path, number))
            yield from _changes(each, (*path, number))
    elif isinstance(value, dict):
        if value.get("kind") == "Wait":
            yield from (Change((*path, "count"), by) for by in (-1, 1))
        if path and path[-1] in ("flag", "hold"):
            yield from (Change((*path, "index"), by) for by in (-1, 1))
        if "buffer" in value:
            yield from (Change((*path, "offset"), by) for by in (-1, 1))
        for key, each in value.items():
            yield from _changes(each, (*path, key))
