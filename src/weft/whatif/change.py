"""What may be changed in a step, each with what it rests on.

A change gives recordings for a stage: the one that is taken to be right and, where an assumption
has two ends, those at its ends. Names with a number take any: ``links*2``, ``buckets/4``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.c3 import STRATEGIES as OF_PAIRS
from weft.errors import UnknownNameError, UsageError, nearest
from weft.planner.candidates import OCCUPANCY, SLICES
from weft.planner.gpu_candidates import FUSED
from weft.schedule.strategies import STRATEGIES
from weft.units import format_time
from weft.whatif.buckets import merged, split
from weft.whatif.overheads import USUAL_GAP
from weft.whatif.pairs import BOUNDS, coded, effect
from weft.whatif.serial import in_turn

if TYPE_CHECKING:
    from weft.whatif.recorded import Recording
    from weft.whatif.scene import Comm, Scene


@dataclass(frozen=True, slots=True)
class Variant:
    """One way a step might be: its recording, and the streams that go first."""

    recording: Recording
    first: frozenset[str] = frozenset()
    rebuilt: bool = False  # calls or their order differ


@dataclass(frozen=True, slots=True)
class Change:
    """A change with what it rests on; ``ends`` are the variants at the ends of its assumption."""

    name: str
    why: str
    value: Variant
    ends: tuple[Variant, ...] = ()


class Scaling(NamedTuple):
    """What is made larger or smaller, and how many times."""

    what: str
    times: float


def scaling_of(name: str) -> Scaling | None:
    """Read a name such as ``links*2``; None for changes without a number."""
    found = re.fullmatch(r"(links|buckets|ranks)([*/])(\d+(?:\.\d+)?)", name)
    if found is None:
        if name not in (*OF_PAIRS, *_NAMED):
            raise UnknownNameError(f"no change is called {name!r}", nearest(name, NAMES))
        return None
    number = float(found[3])
    if not 0 < number < inf:
        raise UsageError(f"{name} leaves nothing to replay", f"Use {found[1]}{found[2]}2, say.")
    return Scaling(found[1], number if found[2] == "*" else 1 / number)


def change(scene: Scene, name: str) -> Change | None:
    """Make a change by its name; None where there is nothing that it would change."""
    scaling = scaling_of(name)
    if not scene.comms and name not in _WITHOUT_COLLECTIVES:
        return None
    if scaling is not None:
        return _SCALED[scaling.what](scene, name, scaling.times)
    return _strategy(scene, name) if name in OF_PAIRS else _NAMED[name](scene, name)


def _each(scene: Scene, moved: Callable[[Comm], float]) -> tuple[Variant, tuple[Variant, ...]]:
    """Change how long bytes move; if only one rank was seen, all of a collective may be that."""
    ends = (Variant(scene.if_all_moved.with_moved(moved)),)
    return Variant(scene.with_moved(moved)), ends


def _links(scene: Scene, name: str, times: float) -> Change:
    def moved(comm: Comm) -> float:
        floor = min(comm.moved, _price(scene, comm, nbytes=1) or 0.0)
        return floor + (comm.moved - floor) / times

    value, ends = _each(scene, moved)
    return Change(name, f"links of {times:g} times the rate; latency and waiting stay", value, ends)


def _price(
    scene: Scene, comm: Comm, nbytes: int | None = None, num_ranks: int | None = None
) -> float | None:
    what = comm.what
    size = what.nbytes if nbytes is None else nbytes
    return scene.ground.links.seconds(what.kind, size, num_ranks or what.num_ranks, what.dtype)


def _ranks(scene: Scene, name: str, times: float) -> Change:
    """Scale groups; each rank keeps its batch and its bytes (weak scaling)."""

    def moved(comm: Comm) -> float:
        count = comm.what.num_ranks or 1
        now = _price(scene, comm)
        then = _price(scene, comm, num_ranks=max(1, round(count * times)))
        return comm.moved * then / now if now and then else comm.moved

    value, ends = _each(scene, moved)
    why = f"groups of {times:g} times the ranks, the same work and bytes for each; waiting stays"
    return Change(name, why, value, ends)


def _buckets(scene: Scene, name: str, times: float) -> Change | None:
    """Merge or split collectives of one kind that follow each other on a stream."""
    if times >= 1:
        found = merged(scene, round(times), lambda comm, size: _price(scene, comm, nbytes=size))
        why = f"every {round(times)} of a kind go as one behind the last; their waiting adds up"
    else:
        found = split(scene, round(1 / times), lambda comm, size: _price(scene, comm, nbytes=size))
        why = f"each in {round(1 / times)} pieces, ready one after the other since the one before"
    return None if found is None else Change(name, why, Variant(found, rebuilt=True))


def _strategy(scene: Scene, name: str) -> Change | None:
    if name == "serial":
        return Change(
            name,
            "nothing computes while a collective runs",
            Variant(in_turn(scene), rebuilt=True),
        )
    if name == "concurrent":
        return Change(name, "as recorded", Variant(scene.recording))
    if name == "priority":
        why = "collectives start as soon as they are ready, before queued workgroups"
        return Change(name, why, Variant(scene.recording, scene.streams))
    scenes = (scene, scene.if_all_moved)
    both = [_paired(each, name, bound) for each in scenes for bound in BOUNDS]
    found = [each for each in both if each is not None]
    if not found:
        return None
    middle = np.mean([each.recording.seconds for each in found[: len(BOUNDS)]], axis=0)
    value = replace(found[0], recording=replace(scene.recording, seconds=middle))
    why = f"by the step engine on {scene.ground.machine.name}: {_known(scene, name)}"
    return Change(name, why, value, tuple(found))


def _paired(scene: Scene, name: str, bound: str) -> Variant | None:
    """Apply what the table says of each collective beside a kernel bound in one way."""
    effects = {
        comm.call: effect(scene.ground.machine, comm.what, name, bound) for comm in scene.comms
    }
    known = [(comm, found) for comm in scene.comms if (found := effects[comm.call]) is not None]
    weight = sum(comm.moved for comm, _ in known)
    if not known or not weight:
        return None
    compute = sum(comm.moved * found.compute for comm, found in known) / weight
    if scene.ground.slowdown is not None:  # nothing gives back more than was lost
        compute = max(compute, 1 / scene.ground.slowdown)

    def moved(comm: Comm) -> float:
        found = effects[comm.call]
        return comm.moved * (1.0 if found is None else found.comm)

    # Copy engines need no slot of a unit, so they wait behind no workgroups either.
    ahead = STRATEGIES[name].first or STRATEGIES[name].by_engines
    return Variant(scene.with_moved(moved, compute), scene.streams if ahead else frozenset())


def _known(scene: Scene, name: str) -> str:
    there = sum(
        effect(scene.ground.machine, comm.what, name, BOUNDS[0]) is not None for comm in scene.comms
    )
    return f"{there} of {len(scene.comms)} collectives have one"


def _fused(scene: Scene, name: str) -> Change:
    """Start each collective with the first slices of the kernel that makes its input."""
    calls = scene.recording.calls

    def variant(*, slower: float) -> Variant:
        recording = scene.with_moved(lambda comm: comm.moved)
        seconds = recording.seconds
        for comm in (each for each in scene.comms if each.what.kind in FUSED):
            made = [n for n in recording.order.after[comm.call] if n not in recording.collectives]
            if not made:
                continue
            last = max(made, key=lambda n: float(calls.gpu_end[n]))
            hidden = min(float(scene.recording.seconds[last]), comm.moved) * (1 - 1 / SLICES)
            seconds[comm.call] = comm.waited + comm.moved - hidden
            seconds[last] *= slower
        return Variant(replace(recording, seconds=seconds))

    why = f"transfers start with the first of {SLICES} slices of the kernel before; that one runs"
    why += " 0 to 12.5 % longer"
    mean = variant(slower=(1 + OCCUPANCY) / 2)
    return Change(name, why, mean, (variant(slower=1.0), variant(slower=OCCUPANCY)))


def _compressed(scene: Scene, name: str) -> Change | None:
    """Send fewer bytes through a codec, where the planner would and it pays."""
    codec = "int8" if name.endswith("int8") else "pack"
    machine = scene.ground.machine
    known = {comm.call: coded(machine, comm.what, codec) for comm in scene.comms}
    there = sum(each is not None for each in known.values())
    if not there:
        return None

    def variant(which: int) -> Variant:
        def moved(comm: Comm) -> float:
            found = known[comm.call]
            return comm.moved * (1.0 if found is None else min(1.0, found[which]))

        return Variant(scene.with_moved(moved))

    why = f"{codec} where it pays, by the planner's prices: "
    why += f"{there} of {len(scene.comms)} collectives can be encoded"
    return Change(name, why, variant(0), (variant(1), variant(2)))


def _no_waiting(scene: Scene, name: str) -> Change:
    seconds = scene.recording.seconds.copy()
    for comm in scene.comms:
        seconds[comm.call] = comm.moved
    value = Variant(replace(scene.recording, seconds=seconds))
    return Change(name, "every rank comes to every collective at the same time", value)


def _no_moving(scene: Scene, name: str) -> Change:
    value, ends = _each(scene, lambda _: 0.0)
    return Change(name, "bytes move in no time, or behind computation; waiting stays", value, ends)


def _no_communication(scene: Scene, name: str) -> Change:
    seconds = scene.recording.seconds.copy()
    seconds[[comm.call for comm in scene.comms]] = 0.0
    value = Variant(replace(scene.recording, seconds=seconds))
    return Change(name, "collectives take no time: a bound for all that can be done", value)


def _no_host(scene: Scene, name: str) -> Change:
    over = scene.recording.overheads
    none = replace(over, before=over.before * 0, inside=over.inside * 0, head=0.0, tail=0.0)
    value = Variant(replace(scene.recording, overheads=none), rebuilt=True)
    return Change(name, "the host takes no time, as with one graph for the step: a bound", value)


def _no_launching(scene: Scene, name: str) -> Change:
    over = scene.recording.overheads
    none = replace(over, before=over.before * 0, inside=over.inside * 0)
    value = Variant(replace(scene.recording, overheads=none), rebuilt=True)
    why = "launching takes no time, as with one graph for the step; its input is prepared as it was"
    return Change(name, why, value)


def _no_input(scene: Scene, name: str) -> Change | None:
    over = scene.recording.overheads
    if over.head + over.tail <= 0:
        return None
    none = replace(over, head=0.0, tail=0.0)
    value = Variant(replace(scene.recording, overheads=none), rebuilt=True)
    why = "the host takes no time from the last call of a step to the first of the next: its "
    why += "input is ready"
    return Change(name, why, value)


def _no_sync(scene: Scene, name: str) -> Change | None:
    order = scene.recording.order
    if not any(order.host_waits):
        return None
    none = replace(order, host_waits=((),) * len(order.host_waits))
    value = Variant(replace(scene.recording, order=none), rebuilt=True)
    return Change(name, "the host never waits for the device", value)


def _no_gaps(scene: Scene, name: str) -> Change | None:
    over = scene.recording.overheads
    if over.gap <= USUAL_GAP and not over.pauses.any():
        return None
    none = replace(over, gap=min(over.gap, USUAL_GAP), pauses=over.pauses * 0)
    value = Variant(replace(scene.recording, overheads=none), rebuilt=True)
    why = f"kernels that are ready follow each other within {format_time(USUAL_GAP)}: a bound"
    return Change(name, why, value)


def _no_slowdown(scene: Scene, name: str) -> Change | None:
    if scene.ground.slowdown is None or scene.ground.slowdown <= 1:
        return None
    value = Variant(scene.with_moved(lambda comm: comm.moved, 1 / scene.ground.slowdown))
    why = f"kernels that overlap collectives run as fast as alone, {scene.ground.slowdown:.2f} "
    why += "times as fast as recorded: a bound"
    return Change(name, why, value)


_SCALED: dict[str, Callable[[Scene, str, float], Change | None]] = {
    "links": _links,
    "buckets": _buckets,
    "ranks": _ranks,
}
_NAMED: dict[str, Callable[[Scene, str], Change | None]] = {
    "fused": _fused,
    "compressed": _compressed,
    "compressed-int8": _compressed,
    "no-waiting": _no_waiting,
    "no-moving": _no_moving,
    "no-communication": _no_communication,
    "no-slowdown": _no_slowdown,
    "no-launching": _no_launching,
    "no-input": _no_input,
    "no-sync": _no_sync,
    "no-gaps": _no_gaps,
    "no-host": _no_host,
}
_WITHOUT_COLLECTIVES = ("no-launching", "no-input", "no-sync", "no-gaps", "no-host")
NAMES = (
    *OF_PAIRS,
    *("fused", "compressed", "compressed-int8"),
    *("links*2", "links/2", "ranks*2", "buckets*2", "buckets/2"),
    *("no-waiting", "no-moving", "no-communication", "no-slowdown"),
    *_WITHOUT_COLLECTIVES,
)
