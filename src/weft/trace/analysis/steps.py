"""Assigns GPU events to steps.

A step is marked by the profiler on the host. A GPU event belongs to the step that launched it,
however late it runs. Events whose launch was not recorded are *backlog*: they were launched before
the window. Events launched outside every mark belong to no step.

Without marks, a step is one period of the sequence of kernels on the busiest stream: the smallest
lag at which they repeat about as well as at any. Layers repeat too, but not at the boundary of a
step. No step begins inside a CUDA graph, whose kernels one call launches. A step begins after the
longest pause.

A step's *period* is from the first kernel it launched on the busiest stream to that of the next
step. If the host runs ahead of the GPU, walls are short and the period is the actual step time.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.trace.trace import Ints, SmallInts, StepMark, Trace

NO_STEP = -1
BACKLOG = -2
_ENOUGH = 0.9  # fraction of the kernels that must repeat
_WORSE, _CHANCE = 3.0, 0.005  # times the misses at the best lag, plus a fraction
_TRIED = 256  # lags that are compared kernel by kernel
_MOST = 1 << 17  # kernels that are compared: a step is shorter
_FEWEST = 8  # kernels of a step: fewer repeat by chance


@dataclass(frozen=True, slots=True)
class TraceSteps:
    """The steps of a trace; ``of`` is the step of each GPU event in the order of ``trace.gpu``."""

    marks: tuple[StepMark, ...]
    of: Ints
    periods: tuple[float | None, ...]
    begins: tuple[float | None, ...] = ()  # of their first kernels on the busiest stream
    found: bool = False  # found by period, not by marks

    def windows(self) -> list[tuple[float, float] | None]:
        """Return when each step had the GPU: its period, or its wall if no period is known."""
        walls = self.period is None
        return [
            (mark.start, mark.end)
            if walls
            else None
            if begin is None or period is None or period <= 0
            else (begin, begin + period)
            for mark, begin, period in zip(self.marks, self.begins, self.periods, strict=True)
        ]

    @property
    def period(self) -> float | None:
        """The mean period, if there are at least two steps."""
        known = [period for period in self.periods if period is not None]
        return sum(known) / len(known) if known else None


def step_by_row(trace: Trace, steps: TraceSteps) -> SmallInts:
    """Return the step of every row; only GPU events have one."""
    out = np.full(len(trace), NO_STEP, np.int32)
    out[trace.gpu] = steps.of
    return out


class _Cut(NamedTuple):
    """The indices at which steps begin among the kernels of a stream."""

    rows: Ints
    first: Ints


def steps_of(trace: Trace) -> TraceSteps:
    """Return the steps of a trace."""
    launch = trace.launch[trace.gpu]
    if trace.marks:
        when = trace.columns.start[launch]
        of = np.where(launch < 0, BACKLOG, _inside(trace.marks, when))
        begins = _begins(trace, of, len(trace.marks))
        return TraceSteps(trace.marks, of, _periods(begins), begins)
    cut = _repeats(trace)
    if cut is None:
        return TraceSteps((), np.where(launch < 0, BACKLOG, NO_STEP), ())
    return _steps_of_cut(trace, cut)


def _inside(marks: tuple[StepMark, ...], when: np.ndarray) -> Ints:
    starts = np.array([mark.start for mark in marks])
    ends = np.array([mark.end for mark in marks])
    place = np.searchsorted(starts, when, side="right") - 1
    return np.where((place >= 0) & (when < ends[np.maximum(place, 0)]), place, NO_STEP)


def busiest_stream(trace: Trace) -> int:
    """Return the stream with the most GPU events, which is assumed to compute."""
    streams = trace.columns.stream[trace.gpu]
    values, counts = np.unique(streams, return_counts=True)
    return int(values[counts.argmax()]) if len(values) else -1


def _begins(trace: Trace, of: Ints, num_steps: int) -> tuple[float | None, ...]:
    """Return when the first launched kernel of each step on the busiest stream began."""
    rows, launch = trace.gpu, trace.launch[trace.gpu]
    chosen = np.flatnonzero((of >= 0) & (trace.columns.stream[rows] == busiest_stream(trace)))
    order = chosen[np.argsort(trace.columns.start[launch[chosen]], kind="stable")]
    numbers, first = np.unique(of[order], return_index=True)
    began = dict(
        zip(numbers.tolist(), trace.columns.start[rows[order[first]]].tolist(), strict=True)
    )
    return tuple(began.get(step) for step in range(num_steps))


def _periods(begins: tuple[float | None, ...]) -> tuple[float | None, ...]:
    """Return the time from the beginning of each step to that of the next."""
    return tuple(
        None if begin is None or then is None else then - begin
        for begin, then in zip(begins, (*begins[1:], None), strict=True)
    )


def _repeats(trace: Trace) -> _Cut | None:
    """Return the lag at which the launches on the busiest stream repeat."""
    rows = trace.gpu[trace.columns.stream[trace.gpu] == busiest_stream(trace)]
    if not len(rows):
        return None
    # Number the launches of kernels in order; kernels of one call share a number.
    launch = trace.launch[rows].astype(np.int64)
    apart = (np.diff(launch, prepend=-2) != 0) | (launch < 0)
    group = np.cumsum(apart) - 1
    begin = np.flatnonzero(np.diff(group, prepend=-1))
    names = _group_names(trace.columns.name[rows], group)
    kernels = np.diff(begin, append=len(rows))
    fewest = max(1, int(np.ceil(_FEWEST / max(np.median(kernels), 1))))
    lag = _smallest_lag(names[:_MOST], fewest, kernels)
    if lag is None:
        return None
    start = trace.columns.start[rows[begin]]
    gaps = np.diff(start, prepend=start[0])
    whole = len(begin) // lag * lag
    first = int(gaps[:whole].reshape(-1, lag).sum(axis=0).argmax())
    return _Cut(rows, begin[np.arange(first, len(begin), lag)])


def _group_names(names: np.ndarray, group: Ints) -> Ints:
    """Number what was launched: a kernel by its name, a graph by the names of its kernels."""
    size = int(group.max(initial=-1)) + 1
    codes = np.random.default_rng(1).integers(1, 1 << 40, int(names.max(initial=0)) + 1)
    place = np.arange(len(names)) - np.flatnonzero(np.diff(group, prepend=-1))[group]
    total = np.zeros(size, np.int64)
    np.add.at(total, group, codes[names] * (2 * place + 1))
    out: Ints = np.unique(total, return_inverse=True)[1].reshape(-1)
    return out


def _smallest_lag(names: Ints, fewest: int, kernels: Ints) -> int | None:
    """Correlate the sequence with itself; names get random codes, so chance hits cancel."""
    count = len(names)
    if count < 2 * fewest:
        return None
    codes = np.random.default_rng(0).choice([-1.0, 1.0], (4, int(names.max()) + 1))[:, names]
    size = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(codes, size)
    alike = np.fft.irfft((spectrum * spectrum.conj()).sum(axis=0), size)[:count] / 4
    share = alike / np.maximum(count - np.arange(count), 1)
    lags = np.flatnonzero(share[fewest : count // 2 + 1] >= _ENOUGH - 0.1) + fewest
    if len(lags) > _TRIED:  # the first ones, and the most promising ones
        best = lags[np.argsort(-share[lags], kind="stable")[: _TRIED // 2]]
        lags = np.unique(np.concatenate((lags[: _TRIED // 2], best)))
    missed = {
        lag: float(np.mean(names[lag:] != names[:-lag]))
        for lag in lags.tolist()
        if len(np.unique(names[:lag])) > 1 or kernels[:lag].sum() > lag
    }
    least = min(missed.values(), default=1.0)
    allowed = min(1 - _ENOUGH, _WORSE * least + _CHANCE)
    return next((lag for lag, miss in missed.items() if miss <= allowed), None)


def _steps_of_cut(trace: Trace, cut: _Cut) -> TraceSteps:
    """Convert step boundaries to marks; events before the first are in no step."""
    begins = trace.columns.start[cut.rows[cut.first]]
    lengths = np.diff(begins)
    marks = tuple(
        StepMark(f"period {number}", float(start), float(start + length))
        for number, (start, length) in enumerate(zip(begins, lengths, strict=False))
    )
    when = trace.columns.start[trace.gpu]
    of = _inside(marks, when) if marks else np.full(len(trace.gpu), NO_STEP)
    starts = tuple(map(float, begins[: len(marks)]))
    return TraceSteps(marks, of, tuple(map(float, lengths)), starts, found=True)
