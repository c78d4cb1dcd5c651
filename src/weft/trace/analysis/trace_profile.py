"""The steps of a recorded trace as StepProfiles: one side of a comparison."""

from pathlib import Path

import numpy as np

from weft.errors import FormatError
from weft.timeline.step_diff import StepSide
from weft.timeline.step_profile import OpSpan, StepProfile, by_start
from weft.trace.analysis.analysis_result import Analysis, RankAnalysis, counted_times
from weft.trace.analysis.kernel_table import COPIES, family_of, operators, shape_text
from weft.trace.analysis.steps import steps_of
from weft.trace.formats.graph import Graph
from weft.trace.formats.reading import read_file
from weft.trace.formats.trace_files import TraceFile
from weft.trace.trace import EventKind, Ints, Trace
from weft.trace.trace_collectives import collectives, communication, with_host_collectives
from weft.units import format_size


def profiles_of(
    trace: Trace, *, by_op: bool = True, shapes: bool = False
) -> tuple[StepProfile, ...]:
    """Return the steps that means are taken over, each with what it launched.

    Without steps, the whole file is one. ``shapes`` tells ops of different inputs apart.
    """
    steps = steps_of(trace)
    walls = [mark.wall for mark in steps.marks]
    named = _OpNames(trace, by_op=by_op, shapes=shapes)
    label = Path(trace.path).name
    out = []
    for number in counted_times(steps.periods, walls):
        rows = trace.gpu[steps.of == number]
        period = steps.periods[number]
        if len(rows):
            seconds = walls[number] if period is None else period
            out.append(StepProfile(label, "measured", seconds, named.ops(rows)))
    if not out and len(trace.gpu) and not steps.marks:
        ops = named.ops(trace.gpu)
        out.append(StepProfile(label, "measured", max(op.end for op in ops), ops))
    if not out:
        raise FormatError(
            f"{trace.path} has no GPU event in its steps",
            "Record with ProfilerActivity.CUDA, and call prof.step() once per step.",
        )
    return tuple(out)


def side_of(
    analysis: Analysis, label: str = "", *, by_op: bool = True, shapes: bool = True
) -> StepSide:
    """Return the steps of the slowest rank of a job as one side of a comparison.

    ``shapes`` matches ops by the shapes of their inputs too, which predictions do not have.
    """
    rank = analysis.slowest
    if rank is None:
        raise FormatError(
            f"{analysis.ranks[0].file} has no GPU event",
            "Record with ProfilerActivity.CUDA; of a predicted step give the workload and its "
            "platform, as llama-8b@h100-8.",
        )
    trace = _whole(rank)
    several = len(analysis.ranks) > 1
    name = label or Path(rank.file).name
    parts: dict[str, list[float]] = {}
    inside = [step.inside for step in rank.counted if step.inside is not None]
    if inside:
        parts = {
            key: [float(getattr(split, key)) for split in inside]
            for key in ("compute", "communication", "exposed", "waiting", "moving")
            if all(getattr(split, key) is not None for split in inside)
        }
        parts["step"] = [step.seconds for step in rank.counted if step.inside is not None]
        parts["idle"] = [
            max(seconds - split.busy, 0.0)
            for seconds, split in zip(parts["step"], inside, strict=True)
        ]
    # Waiting was seen on several ranks; of one rank it is an estimate.
    if not (several and any(split.communication for split in inside)):
        parts.pop("waiting", None)
        parts.pop("moving", None)
    return StepSide(
        f"{name} (rank {rank.rank}, the slowest)" if several else name,
        profiles_of(trace, by_op=by_op, shapes=by_op and shapes),
        parts,
        {part.what: part.seconds for part in rank.step_idle},
    )


def _whole(rank: RankAnalysis) -> Trace:
    """Return the trace of a rank with all its events; the file of a streamed one is read again."""
    if rank.trace.is_whole:
        return rank.trace
    found = read_file(TraceFile.of(rank.file))
    traces = [each.to_trace() if isinstance(each, Graph) else each for each in found]
    same = [trace for trace in traces if trace.rank == rank.rank]
    return with_host_collectives((same or traces)[0])


class _OpNames:
    """Names the GPU events of a trace."""

    def __init__(self, trace: Trace, *, by_op: bool, shapes: bool) -> None:
        self.trace, self.by_op, self.shapes = trace, by_op, shapes
        self.moves = dict(zip(trace.gpu.tolist(), communication(trace).tolist(), strict=True))
        self.told = {each.row: each for each in collectives(trace)} if by_op else {}
        self.operator = np.full(len(trace), -1, np.int64)
        self.operator[trace.gpu] = operators(trace, trace.gpu)
        self._shapes: dict[int, str] = {}

    def ops(self, rows: Ints) -> tuple[OpSpan, ...]:
        """Return the ops of some GPU events, from the first start."""
        columns = self.trace.columns
        zero = float(columns.start[rows].min())
        return by_start(
            OpSpan(
                self._name(row),
                "communication" if self.moves[row] else "compute",
                f"stream {int(columns.stream[row])}",
                float(columns.start[row]) - zero,
                float(columns.start[row]) - zero + float(columns.duration[row]),
                self._family(row),
                self._shape(row),
            )
            for row in rows.tolist()
        )

    def _name(self, row: int) -> str:
        if row in self.told:
            found = self.told[row]
            size = "" if found.nbytes is None else f" {format_size(found.nbytes)}"
            return f"{found.kind or 'collective'}{size}"
        name, operator = self.trace.name_of(row), int(self.operator[row])
        if not self.by_op or operator < 0:
            return name
        launched_by = self.trace.name_of(operator).replace("::", ".")
        if self.trace.columns.kind[row] == EventKind.KERNEL:
            return launched_by
        return f"{name.partition(' ')[0]} of {launched_by}"  # Memset, Memcpy

    def _family(self, row: int) -> str:
        if self.moves[row]:
            return ""
        is_kernel = self.trace.columns.kind[row] == EventKind.KERNEL
        return family_of(self.trace.name_of(row)) if is_kernel else COPIES

    def _shape(self, row: int) -> str:
        if not self.shapes or self.moves[row]:
            return ""
        operator = int(self.operator[row])
        detail = int(self.trace.columns.detail[operator]) if operator >= 0 else -1
        if detail not in self._shapes:
            self._shapes[detail] = shape_text(self.trace, operator) if detail >= 0 else ""
        return self._shapes[detail]
