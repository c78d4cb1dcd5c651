"""What the host takes between and in its calls, by kind of operator, from recorded steps.

The five overheads of arXiv 2201.07821: between two calls of one operator lies T5; between those
of two, T3 of the first, T1, and T2 of the second, which a sequence of calls shows only in sum; a
call itself is T4. Each is the mean over all calls of its kind, so that a step's sum is kept while
no gap stands where it was recorded. In a call that waits, what counts begins with the end of what
it waited for.

With one recorded step there is nothing to average: its gaps stand where they were.

A stream may also stand idle although its next work was launched, nothing it waits for was still
running and no kernel filled the device: kernels of a graph, work that waits for something outside
the trace. Such a *pause* belongs to the device and is kept where it was.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from weft.timeline.intervals import IntervalSet
from weft.trace.analysis.kernel_slowdown import is_gemm_name
from weft.trace.recorded.calls import Calls, Floats, stand_apart
from weft.trace.recorded.order import Order

_BUSY = 5e-6  # a launch so long before the work in front of it ended found the stream busy
_USUAL = 5  # times the median gap: longer ones have another reason, as slots that are taken
_LONGEST = 50e-6  # between two on a busy stream; more is a pause of its own
USUAL_GAP = 1e-6  # between two kernels, where no stream was ever busy (arXiv 2404.12674)


@dataclass(frozen=True, slots=True)
class HostOverheads:
    """Seconds: before and in each call, around a step, and between two kernels of a stream.

    ``pauses`` are by call: how much longer than ``gap`` its stream stands idle before it, and
    ``behind_products`` how much of that a product ran of which the trace does not tell the waves:
    it may have filled the device, which a contended simulation shows by itself.
    """

    before: Floats
    inside: Floats
    head: float  # from the start of a step to its first call
    tail: float  # from its last call to the next step
    gap: float
    pauses: Floats
    behind_products: Floats


def overheads_of(steps: Sequence[Calls], order: Order) -> HostOverheads:
    """Learn from ``steps``, which ask for the same, what the host takes."""
    before = np.array([_before(step) for step in steps])
    inside = np.array([_inside(step, order) for step in steps])
    apart = stand_apart(steps)  # then the tail of the last step is not in its mark
    head = float(np.mean([_around(step)[0] for step in steps]))
    tail = float(np.mean([_around(s)[1] for s in steps if np.isfinite(s.until) or not apart]))
    if len(steps) > 1:
        before = _by_kind(before, _places(steps[0]))
        inside = _by_kind(inside, _kinds(steps[0], order))
    gap = _gap(steps, order)
    pauses, behind = np.mean([_pauses(step, order, gap) for step in steps], axis=0)
    return HostOverheads(before.mean(axis=0), inside.mean(axis=0), head, tail, gap, pauses, behind)


def _before(step: Calls) -> Floats:
    """Return the time from the end of one call to the start of the next; the first has none."""
    gaps = np.zeros(len(step))
    gaps[1:] = np.maximum(step.start[1:] - np.maximum.accumulate(step.end)[:-1], 0.0)
    return gaps


def _inside(step: Calls, order: Order) -> Floats:
    seconds = step.end - step.start
    for number, waits in enumerate(order.host_waits):
        if waits:
            # The wait itself is simulated; the host's own part is what came after the device was
            # done.
            late = step.end[number] - max(step.gpu_end[each] for each in waits)
            seconds[number] = min(seconds[number], max(late, 0.0))
    return seconds


def _around(step: Calls) -> tuple[float, float]:
    """Return what the host does before its first call and behind its last one."""
    until = step.mark.end if np.isnan(step.until) else step.until
    return max(step.start[0] - step.mark.start, 0.0), max(until - step.end[-1], 0.0)


def _places(step: Calls) -> list[Hashable]:
    """Name the gap before each call: inside an operator, or between two."""
    names: list[Hashable] = [()]
    for number in range(1, len(step)):
        if step.same_op[number]:
            names.append((step.op[number],))
        else:
            # A change of thread, as from forward to autograd's, takes longer than going on in one.
            turn = bool(step.thread[number] != step.thread[number - 1])
            names.append((step.op[number - 1], step.op[number], turn))
    return names


def _kinds(step: Calls, order: Order) -> list[Hashable]:
    waits = map(bool, order.host_waits)
    return list(zip(step.call, step.op, waits, strict=True))


def _by_kind(seconds: Floats, names: list[Hashable]) -> Floats:
    """Replace each value by the mean of its kind over all steps."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    kind = np.array([numbers[name] for name in names])
    count = np.bincount(kind) * len(seconds)
    mean: Floats = (np.bincount(kind, seconds.sum(axis=0)) / count)[kind][None, :]
    return mean


def _gap(steps: Sequence[Calls], order: Order) -> float:
    """Return the mean time between two on a stream that had more to do."""
    gaps = np.concatenate([_busy_gaps(step, order) for step in steps])
    if not len(gaps):
        return USUAL_GAP
    # A mean over all would count gaps with other reasons, such as slots that another kernel holds.
    usual = gaps[gaps <= _USUAL * np.median(gaps)]
    return float(usual.mean())


def _waited(step: Calls, order: Order) -> Floats:
    """Return by call when the last of what it comes after on other streams ended, or -inf."""
    ends = (max((step.gpu_end[n] for n in each), default=-np.inf) for each in order.after)
    return np.fromiter(ends, float, len(step))


def _pauses(step: Calls, order: Order, gap: float) -> tuple[Floats, Floats]:
    """Return by call how long its stream idles for no reason that the trace shows.

    The second array is how much of that a product ran whose waves are unknown. Up to
    ``_LONGEST`` is what the mean gap stands for. What a stream did before its first event of the
    trace is unknown.
    """
    pauses, behind = np.zeros((2, len(step)))
    mine = step.own_launches[np.isfinite(step.front[step.own_launches])]
    ready = np.maximum(step.front, np.maximum(_issued(step, order), _waited(step, order)))[mine]
    start = np.maximum(step.gpu_start[mine], ready)
    # A kernel that filled the device explains idle time of other streams.
    idle = start - ready - step.full.within(ready, start)
    pauses[mine] = np.where(idle > _LONGEST, idle - gap, 0.0)
    products = [
        n for n in step.launches.tolist() if not step.waves[n] and is_gemm_name(step.name[n])
    ]
    ran = IntervalSet.of(step.gpu_start[products], step.gpu_end[products])
    behind[mine] = np.minimum(pauses[mine], ran.within(ready, start))
    return pauses, behind


def _issued(step: Calls, order: Order) -> Floats:
    """Return when each call had put its work on a stream; one that waits returns much later."""
    waits = np.fromiter(map(bool, order.host_waits), bool, len(step))
    return np.where(waits, step.start, step.end)


def _busy_gaps(step: Calls, order: Order) -> Floats:
    found = [np.empty(0)]
    waited = _waited(step, order)
    for stream in np.unique(step.stream[step.launches]):
        mine = np.flatnonzero(step.stream == stream)
        front = step.gpu_end[mine[:-1]]
        gap = step.gpu_start[mine[1:]] - front
        busy = (step.end[mine[1:]] < front - _BUSY) & (gap >= 0) & (gap < _LONGEST)
        found.append(gap[busy & (waited[mine[1:]] <= front)])  # else another stream held it up
    return np.concatenate(found)
