"""Fewer or more collectives: those of one kind that follow each other merged, or each split.

Merged, the last of some carries the bytes of all and what needed one of them waits for the last.
Split, pieces become ready one after the other since the collective before: work that makes the
input of a bucket goes on all the while.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.whatif.order import Order

if TYPE_CHECKING:
    from weft.whatif.calls import Ints
    from weft.whatif.recorded import Recording
    from weft.whatif.scene import Comm, Scene

_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")  # that may go in one message
Price = Callable[["Comm", int], float | None]


def merged(scene: Scene, times: int, price: Price) -> Recording | None:
    """Give the step with every ``times`` neighbours as one; None where there are none."""
    groups = [g for run in _runs(scene) for g in _cut(scene, run, times) if len(g) > 1]
    if not groups:
        return None
    seconds = scene.recording.seconds.copy()
    instead: dict[int, int] = {}
    for group in groups:
        last = group[-1]
        seconds[[comm.call for comm in group]] = 0.0
        seconds[last.call] = sum(comm.waited for comm in group) + _together(group, price)
        instead |= {comm.call: last.call for comm in group}
    order = scene.recording.order
    after = tuple(
        tuple(sorted({instead.get(n, n) if instead.get(n, n) < number else n for n in each}))
        for number, each in enumerate(order.after)
    )
    return replace(scene.recording, seconds=seconds, order=replace(order, after=after))


def _runs(scene: Scene) -> list[list[Comm]]:
    """Give collectives of one kind, group and dtype that follow each other on a stream."""
    runs: list[list[Comm]] = []
    for comm in scene.comms:
        last = runs[-1][-1:] if runs else []
        alike = any(_sign(scene, each) == _sign(scene, comm) for each in last)
        if comm.what.kind not in _KINDS or not comm.what.nbytes:
            runs.append([])
        elif alike:
            runs[-1].append(comm)
        else:
            runs.append([comm])
    return [run for run in runs if run]


def _sign(scene: Scene, comm: Comm) -> tuple[object, ...]:
    stream = int(scene.recording.calls.stream[comm.call])
    return comm.what.kind, comm.what.dtype, comm.what.group, comm.what.num_ranks, stream


def _cut(scene: Scene, run: list[Comm], times: int) -> list[list[Comm]]:
    """Cut a run into groups; one whose result is needed before the last is issued ends its own."""
    needed = {n for each in scene.recording.order.after for n in each}
    first_use = {
        n: min(k for k, each in enumerate(scene.recording.order.after) if n in each) for n in needed
    }
    groups: list[list[Comm]] = [[]]
    for comm in run:
        early = any(first_use.get(c.call, comm.call) < comm.call for c in groups[-1])
        if len(groups[-1]) >= times or early:
            groups.append([])
        groups[-1].append(comm)
    return groups


def _together(group: list[Comm], price: Price) -> float:
    total = sum(comm.what.nbytes or 0 for comm in group)
    apart = [price(comm, comm.what.nbytes or 0) for comm in group]
    one, moved = price(group[-1], total), sum(comm.moved for comm in group)
    known = [each for each in apart if each]
    return moved * one / sum(known) if one and len(known) == len(group) else moved


def split(scene: Scene, pieces: int, price: Price) -> Recording | None:
    """Give the step with each collective in pieces; None where nothing can be split."""
    found = [comm for run in _runs(scene) for comm in run]
    if not found or pieces < 2:
        return None
    places = _places(found, pieces)
    recording = scene.recording
    at = np.array([place for place, _ in places])
    like = np.array([comm.call for _, comm in places])
    moved = _moved_by(at, len(recording.calls))
    out = _inserted(recording, at, like, moved)
    seconds = out.seconds.copy()
    for comm in found:
        size = max(1, (comm.what.nbytes or 0) // pieces)
        whole, part = price(comm, comm.what.nbytes or 0), price(comm, size)
        each = comm.moved * part / whole if whole and part else comm.moved / pieces
        seconds[moved[comm.call]] = comm.waited + each
        mine = np.flatnonzero(like == comm.call)
        seconds[at[mine] + mine] = each
    return replace(out, seconds=seconds)


def _places(comms: list[Comm], pieces: int) -> list[tuple[int, Comm]]:
    """Give the calls in front of which the earlier pieces go, evenly since the one before."""
    places: list[tuple[int, Comm]] = []
    before = 0
    for comm in comms:
        step = comm.call - before
        places += [(before + step * piece // pieces, comm) for piece in range(1, pieces)]
        before = comm.call
    return sorted(places, key=lambda each: each[0])


def _moved_by(at: Ints, size: int) -> Ints:
    """Give the new number of each call."""
    return np.arange(size) + np.searchsorted(at, np.arange(size), side="right")


def _inserted(recording: Recording, at: Ints, like: Ints, moved: Ints) -> Recording:
    """Put copies of the calls ``like`` in front of the calls ``at``."""
    columns: dict[str, Any] = {}
    for field in fields(recording.calls):
        own = getattr(recording.calls, field.name)
        if isinstance(own, np.ndarray):
            columns[field.name] = np.insert(own, at, own[like])
        elif isinstance(own, tuple) and field.name != "mark":
            columns[field.name] = _with(own, at, [own[n] for n in like.tolist()])
    over = recording.overheads
    zeros = np.zeros(len(at))
    return replace(
        recording,
        calls=replace(recording.calls, **columns),
        order=_order(recording, at, like, moved),
        overheads=replace(
            over,
            before=np.insert(over.before, at, zeros),
            inside=np.insert(over.inside, at, over.inside[like]),
            pauses=np.insert(over.pauses, at, zeros),
        ),
        seconds=np.insert(recording.seconds, at, recording.seconds[like]),
        collectives={int(moved[n]): what for n, what in recording.collectives.items()}
        | {
            int(a) + i: recording.collectives[n]
            for i, (a, n) in enumerate(zip(at, like.tolist(), strict=True))
        },
    )


def _order(recording: Recording, at: Ints, like: Ints, moved: Ints) -> Order:
    """Renumber what waits for what; a piece waits for the last work in front of it."""
    own = recording.order

    def renumbered(waits: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(int(moved[n]) for n in each) for each in waits)

    fronts = [_front(recording, int(a), int(n)) for a, n in zip(at, like, strict=True)]
    after = _with(renumbered(own.after), at, [tuple(int(moved[n]) for n in f) for f in fronts])
    return Order(after, _with(renumbered(own.host_waits), at, [()] * len(at)))


def _front(recording: Recording, place: int, like: int) -> tuple[int, ...]:
    """Give the last launch in front of a place on each stream that the collective waits for."""
    calls = recording.calls
    waited = {int(calls.stream[n]) for n in recording.order.after[like]}
    found = []
    for stream in waited:
        mine = np.flatnonzero((calls.stream[:place] == stream) & (calls.row[:place] >= 0))
        found += [int(mine[-1])] if len(mine) else []
    return tuple(sorted(found))


def _with(values: tuple, at: Ints, new: list) -> tuple:  # type: ignore[type-arg]
    out = list(values)
    for place, each in reversed(list(zip(at.tolist(), new, strict=True))):
        out.insert(place, each)
    return tuple(out)
