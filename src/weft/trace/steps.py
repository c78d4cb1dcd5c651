"""Which step a GPU event belongs to.

A step is what the profiler marks on the host. A GPU event belongs to the step in which it was
launched, however late it runs. Events whose launch the profiler did not see are *backlog*: they
were launched before the window. Events launched outside every mark belong to no step.

Without marks, a step is one period of the sequence of kernels: the smallest lag at which nearly
all kernels of the busiest stream repeat. It begins behind the longest pause.

A step's *period* is from the first kernel it launched on the busiest stream to that of the next
step: a job that runs ahead of its GPU has short walls and a longer period, and its period is what
it takes.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.trace.trace import Ints, Mark, SmallInts, Trace

NO_STEP = -1
BACKLOG = -2
_ENOUGH = 0.9  # of the kernels must repeat
_MOST = 1 << 17  # kernels that are compared: a step is shorter
_FEWEST = 8  # kernels of a step: fewer repeat by chance


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a trace; ``of`` gives each GPU event's (in the order of ``trace.gpu``)."""

    marks: tuple[Mark, ...]
    of: Ints
    periods: tuple[float | None, ...]
    found: bool = False  # by their period, not by marks

    @property
    def period(self) -> float | None:
        """The mean period, if there are two steps at least."""
        known = [period for period in self.periods if period is not None]
        return sum(known) / len(known) if known else None


def step_by_row(trace: Trace, steps: Steps) -> SmallInts:
    """Give the step of every row; what is no GPU event is in none."""
    out = np.full(len(trace), NO_STEP, np.int32)
    out[trace.gpu] = steps.of
    return out


class _Cut(NamedTuple):
    """Where steps begin among the kernels of a stream."""

    rows: Ints
    first: Ints


def steps_of(trace: Trace) -> Steps:
    """Find the steps of a trace."""
    launch = trace.launch[trace.gpu]
    if trace.marks:
        when = trace.columns.start[launch]
        of = np.where(launch < 0, BACKLOG, _inside(trace.marks, when))
        return Steps(trace.marks, of, _periods(trace, of, len(trace.marks)))
    cut = _repeats(trace)
    if cut is None:
        return Steps((), np.where(launch < 0, BACKLOG, NO_STEP), ())
    return _steps_of_cut(trace, cut)


def _inside(marks: tuple[Mark, ...], when: np.ndarray) -> Ints:
    starts = np.array([mark.start for mark in marks])
    ends = np.array([mark.end for mark in marks])
    place = np.searchsorted(starts, when, side="right") - 1
    return np.where((place >= 0) & (when < ends[np.maximum(place, 0)]), place, NO_STEP)


def busiest_stream(trace: Trace) -> int:
    """Give the stream with the most GPU events, which is the one that computes."""
    streams = trace.columns.stream[trace.gpu]
    values, counts = np.unique(streams, return_counts=True)
    return int(values[counts.argmax()]) if len(values) else -1


def _periods(trace: Trace, of: Ints, num_steps: int) -> tuple[float | None, ...]:
    """Measure from the first launched kernel of a step on the busiest stream to the next one's."""
    rows, launch = trace.gpu, trace.launch[trace.gpu]
    chosen = np.flatnonzero((of >= 0) & (trace.columns.stream[rows] == busiest_stream(trace)))
    order = chosen[np.argsort(trace.columns.start[launch[chosen]], kind="stable")]
    numbers, first = np.unique(of[order], return_index=True)
    began = dict(
        zip(numbers.tolist(), trace.columns.start[rows[order[first]]].tolist(), strict=True)
    )
    return tuple(
        began[step + 1] - began[step] if step in began and step + 1 in began else None
        for step in range(num_steps)
    )


def _repeats(trace: Trace) -> _Cut | None:
    """Find the smallest lag at which the kernels of the busiest stream repeat."""
    rows = trace.gpu[trace.columns.stream[trace.gpu] == busiest_stream(trace)]
    names = trace.columns.name[rows]
    lag = _smallest_lag(names[:_MOST])
    if lag is None:
        return None
    gaps = np.diff(trace.columns.start[rows], prepend=trace.columns.start[rows[0]])
    whole = len(rows) // lag * lag
    first = int(gaps[:whole].reshape(-1, lag).sum(axis=0).argmax())
    return _Cut(rows, np.arange(first, len(rows), lag))


def _smallest_lag(names: np.ndarray) -> int | None:
    """Correlate the sequence with itself; codes of names are random, so chance hits cancel."""
    count = len(names)
    if count < 2 * _FEWEST:
        return None
    codes = np.random.default_rng(0).choice([-1.0, 1.0], (4, int(names.max()) + 1))[:, names]
    size = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(codes, size)
    alike = np.fft.irfft((spectrum * spectrum.conj()).sum(axis=0), size)[:count] / 4
    share = alike / np.maximum(count - np.arange(count), 1)
    lags = np.flatnonzero(share[_FEWEST : count // 2 + 1] >= _ENOUGH - 0.1) + _FEWEST
    for lag in lags.tolist():
        if np.mean(names[lag:] == names[:-lag]) >= _ENOUGH and len(np.unique(names[:lag])) > 1:
            return int(lag)
    return None


def _steps_of_cut(trace: Trace, cut: _Cut) -> Steps:
    """Turn places where steps begin into marks; what lies before the first is in no step."""
    begins = trace.columns.start[cut.rows[cut.first]]
    lengths = np.diff(begins)
    marks = tuple(
        Mark(f"period {number}", float(start), float(start + length))
        for number, (start, length) in enumerate(zip(begins, lengths, strict=False))
    )
    when = trace.columns.start[trace.gpu]
    of = _inside(marks, when) if marks else np.full(len(trace.gpu), NO_STEP)
    return Steps(marks, of, tuple(map(float, lengths)), found=True)
