"""A captured step whose ops have the seconds that their calls took by themselves.

Each op was timed with its data in the caches and with its data in memory; how much of it is where
follows from what the step touches between two uses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.cost.cache_state import missing_shares
from weft.hardware.measured import TorchHost
from weft.torch.op_calls import captured_calls
from weft.workload import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weft.hardware import Platform
    from weft.torch.op_calls import Called, OpCall
    from weft.torch.op_times import OpTime
    from weft.workload import Step, Workload


@dataclass(frozen=True)
class CapturedStep:
    """A step as a CPU carries it out: its workload, and the calls behind the ops of each rank."""

    workload: Workload
    calls: dict[int, dict[int, Called]]

    @property
    def unique(self) -> list[OpCall]:
        """The different calls of all ranks, collectives left out."""
        every = (called.call for mine in self.calls.values() for called in mine.values())
        return [call for call in dict.fromkeys(every) if call.op.startswith("aten")]

    def timed(self, times: Mapping[OpCall, OpTime], here: Platform) -> Workload:
        """Give every op its seconds where its call was timed, and what the host adds to it.

        Two ranks share the last cache; one has half of it.
        """
        device, host = here.require_device(), here.torch or TorchHost()
        room = max(device.last_level_bytes, device.l2_bytes) / max(1, here.node_size)
        steps = tuple(self._timed(step, times, host, room) for step in self.workload.steps)
        return replace(self.workload, steps=steps)

    def _timed(
        self, step: Step, times: Mapping[OpCall, OpTime], host: TorchHost, room: float
    ) -> Step:
        mine = self.calls[step.ranks[0]]
        touched = [(*mine[n].given, *mine[n].made) for n in range(len(step.ops))]
        shares = missing_shares(touched, room)
        ops = [
            _op_timed(op, times.get(mine[number].call), shares[number], host)
            for number, op in enumerate(step.ops)
        ]
        return replace(step, ops=(*ops, *_wrapper(step, host)))

    def hot_sum(self, times: Mapping[OpCall, OpTime]) -> float:
        """Add up the ops of the busiest rank as if they found all data in the caches."""
        return max(
            sum(times[called.call].warm for called in mine.values() if called.call in times)
            for mine in self.calls.values()
        )


def _op_timed(op: Op, time: OpTime | None, missing: float, host: TorchHost) -> Op:
    more = getattr(host, op.phase or "forward")
    if time is None:
        return replace(op, host=more)
    seconds = time.warm + missing * max(0.0, time.cold - time.warm)
    return replace(op, host=more, seconds=seconds)


def _wrapper(step: Step, host: TorchHost) -> tuple[Op, ...]:
    """Give what DDP spends beyond the copies and collectives that were captured."""
    reduced = [op for op in step.ops if op.collective and op.collective.kind == "all_reduce"]
    if not reduced:
        return ()
    copies = sum(op.name == "aten.copy_" and op.phase == "backward" for op in step.ops)
    seconds = host.ddp_step + host.ddp_parameter * copies / 2  # one in, one out
    return (Op("ddp", "host", seconds=seconds, phase="backward"),)


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
