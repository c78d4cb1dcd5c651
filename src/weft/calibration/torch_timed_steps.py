"""A captured step with measured durations of its ops.

Each op was timed with its data in the caches and with its data in memory; how much of it is where
follows from what the step touches between two uses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.calibration.torch_op_calls import captured_calls
from weft.cost.cache_state import missing_shares
from weft.hardware.measured import Ddp, TorchHost
from weft.step import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weft.calibration.torch_op_calls import OpCall, RecordedCall
    from weft.calibration.torch_op_times import OpTime
    from weft.hardware import Platform
    from weft.step import StepGraph


# Half of the repetitions of an op lie within its spread; four of five within twice that, where
# they are spread as chance does it. All ops of a step tend to lie on the same side.
_WIDE = 1.9


@dataclass(frozen=True)
class CapturedStep:
    """A step as a CPU carries it out: its workload, and the calls behind the ops of each rank."""

    graph: StepGraph
    calls: dict[int, dict[int, RecordedCall]]

    @property
    def unique(self) -> list[OpCall]:
        """The different calls of all ranks, collectives left out."""
        every = (called.call for mine in self.calls.values() for called in mine.values())
        return [call for call in dict.fromkeys(every) if call.op.startswith("aten")]

    def timed(
        self, times: Mapping[OpCall, OpTime], here: Platform, library: str, *, side: float = 0.0
    ) -> StepGraph:
        """Return the workload with measured durations of ops, and the overhead of the host.

        With a ``side`` of -1 or 1 all ops take as little or as much as repetitions of them did.
        """
        host = here.torch or TorchHost()
        steps = []
        for index, step in enumerate(self.graph.steps):
            called = self.calls[step.ranks[0]]
            ops = [
                _hosted(op, called[number], host)
                for number, op in enumerate(self.priced(times, host.cached, index, side=side))
            ]
            steps.append(replace(step, ops=_wrapped(ops, host.ddp.get(library, Ddp()))))
        return replace(self.graph, steps=tuple(steps))

    def priced(
        self, times: Mapping[OpCall, OpTime], room: float, place: int = 0, *, side: float = 0.0
    ) -> list[Op]:
        """Return the ops of a class of ranks, each between its cold and its warm duration."""
        step = self.graph.steps[place]
        mine = self.calls[step.ranks[0]]
        touched = [(*mine[n].given, *mine[n].made) for n in range(len(step.ops))]
        shares = missing_shares(touched, room)
        return [
            _op_priced(op, times.get(mine[number].call), shares[number], side)
            for number, op in enumerate(step.ops)
        ]


def _op_priced(op: Op, time: OpTime | None, missing: float, side: float) -> Op:
    if time is None:
        return op
    seconds = time.warm + missing * max(0.0, time.cold - time.warm)
    return replace(op, seconds=seconds * max(0.5, 1 + side * _WIDE * time.spread))


def _hosted(op: Op, called: RecordedCall, host: TorchHost) -> Op:
    """Add what the host spends; where that is less than nothing, the op itself takes less."""
    more = (1 + called.free) * getattr(host, op.phase or "forward")
    if more >= 0 or op.seconds is None:
        return replace(op, host=max(0.0, more))
    return replace(op, host=0.0, seconds=max(op.seconds / 2, op.seconds + more))


def _wrapped(ops: list[Op], ddp: Ddp) -> tuple[Op, ...]:
    """Replace DDP's copies by its measured overhead."""
    reduced = [op.collective for op in ops if op.collective and op.phase == "backward"]
    nbytes = sum(what.nbytes for what in reduced if what.kind == "all_reduce")
    if not nbytes:
        return tuple(ops)
    copies = [op for op in ops if _is_copy(op)]
    seconds = ddp.step + ddp.parameter * len(copies) / 2 + ddp.byte * nbytes  # one in, one out
    kept = tuple(replace(op, seconds=0.0, host=0.0) if _is_copy(op) else op for op in ops)
    return (*kept, Op("ddp", "host", seconds=seconds, phase="backward"))


def _is_copy(op: Op) -> bool:
    return op.name == "aten.copy_" and op.phase == "backward"


def captured_step(
    step: Callable[[], Any],
    num_ranks: int,
    *,
    name: str,
    zipfs: Mapping[int, float] | None = None,
    every_rank: bool = False,
) -> CapturedStep:
    """Capture a step as a CPU carries it out."""
    found = captured_calls(step, num_ranks, name=name, zipfs=zipfs, every_rank=every_rank)
    return CapturedStep(*found)
