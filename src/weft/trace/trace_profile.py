"""The typical step of a recorded trace as a StepProfile."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from weft.errors import FormatError
from weft.timeline.step_profile import OpSpan, StepProfile, by_start
from weft.trace.steps import steps_of
from weft.trace.trace import EventKind, Trace
from weft.trace.trace_collectives import collectives, communication
from weft.units import format_size


def profile_of(trace: Trace, *, by_op: bool = True) -> StepProfile:
    """Return the step with the period closest to the mean, its GPU events ``by_op`` or by kernel.

    By op, kernels have the name of the operator that launched them, as in predictions, and
    collectives their kind and size.
    """
    steps = steps_of(trace)
    number = _typical(steps.periods, len(steps.marks))
    rows = trace.gpu[steps.of == number] if number is not None else trace.gpu
    if not len(rows):
        raise FormatError(
            f"{trace.path} has no GPU event in its steps",
            "Record with ProfilerActivity.CUDA, and call prof.step() once per step.",
        )
    moves = dict(zip(trace.gpu.tolist(), communication(trace).tolist(), strict=True))
    told = {each.row: each for each in collectives(trace)} if by_op else {}
    zero = float(trace.columns.start[rows].min())
    ops = []
    for row in rows.tolist():
        name = trace.name_of(row)
        if row in told:
            found = told[row]
            size = "" if found.nbytes is None else f" {format_size(found.nbytes)}"
            name = f"{found.kind or 'collective'}{size}"
        elif by_op:
            name = _operator(trace, row) or name
        stream = f"stream {int(trace.columns.stream[row])}"
        start = float(trace.columns.start[row]) - zero
        kind = "communication" if moves[row] else "compute"
        ops.append(
            OpSpan(name, kind, stream, start, start + float(trace.columns.duration[row]))  # type: ignore[arg-type]
        )
    last = max(op.end for op in ops)
    seconds = last
    if number is not None:
        period = steps.periods[number]
        seconds = steps.marks[number].wall if period is None else period
    return StepProfile(Path(trace.path).name, "measured", seconds, by_start(ops))


def _typical(periods: tuple[float | None, ...], count: int) -> int | None:
    known = {n: period for n, period in enumerate(periods) if period is not None}
    if not known:
        return count - 1 if count else None
    mean = float(np.mean(list(known.values())))
    return min(known, key=lambda n: abs(known[n] - mean))


def _operator(trace: Trace, row: int) -> str:
    """Return the name of the operator that launched a kernel, as captured steps name it."""
    launch = int(trace.launch[row])
    if launch < 0:
        return ""
    for each in trace.ancestors(launch):
        if trace.columns.kind[each] == EventKind.OP:
            return trace.name_of(each).replace("::", ".")
    return ""
