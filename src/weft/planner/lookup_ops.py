"""Ops of a step that a fused embedding replaces, and its price.

Lookups come before their exchange, pieces joined on the way; gradients come after theirs, and with
them the change of the rows. What the fused operator takes was measured: see ``weft.cost.lookups``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weft.cost.price import Price, price
from weft.errors import WeftError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weft.hardware import Device
    from weft.planner.candidates import Place
    from weft.step import Op, StepGraph

_JOINS = ("concat", "copy")
_MOVES = ("aten.clone", "aten.cat", "aten.stack", "aten.copy_")
_UPDATES = ("aten.add_", "aten.clone")  # of a sparse gradient into its table
_BACKWARD = ("aten._embedding_bag_backward", "aten.embedding_dense_backward")


@dataclass(frozen=True, slots=True)
class TableLookups:
    """The ops around one exchange, and all lookups of the step of their rank."""

    replaced: tuple[int, ...]
    tables: tuple[Op, ...]

    @classmethod
    def around(cls, ops: Sequence[Op], number: int) -> TableLookups | None:
        """Find them; None where neither lookups nor their gradients are next to the exchange."""
        what = ops[number].collective
        if what is None or what.kind != "all_to_all":
            return None
        tables = tuple(op for op in ops if _family(op) == "embedding")
        before, after = _before(ops, number), _after(ops, number)
        found = [ops[n] for n in (*before, *after)]
        if not tables or not any(_family(op) == "embedding" or _is_backward(op) for op in found):
            return None
        return cls((*before, *after), tables)

    def seconds(self, device: Device, phase: str) -> Price | None:
        """Price the fused operator's computation; None where it was not measured."""
        family = "fused-embedding-backward" if phase == "backward" else "fused-embedding"
        if "weft" not in device.lookups:
            return None
        try:
            each = [price(replace(op.cost, family=family), device) for op in self.tables if op.cost]
        except WeftError:
            return None
        return Price(
            sum(one.seconds for one in each),
            sum(one.low for one in each),
            sum(one.high for one in each),
            model=f"{family}, measured",
        )


def lookups_at(graph: StepGraph, places: Iterable[Place]) -> tuple[TableLookups, ...]:
    """Find the lookups of every rank's exchange; none unless all have some."""
    found = [TableLookups.around(graph.steps[c].ops, n) for c, n in places]
    return tuple(each for each in found if each) if all(found) else ()


def _before(ops: Sequence[Op], number: int) -> list[int]:
    """Walk back over what is joined, and over lookups behind it."""
    found: list[int] = []
    for n in range(number - 1, -1, -1):
        op = ops[n]
        joins = _family(op) in _JOINS or op.name in _MOVES
        if op.collective is not None or not (joins or _family(op) == "embedding"):
            break
        if joins and found and _family(ops[found[-1]]) == "embedding":
            break
        found.append(n)
    return found


def _after(ops: Sequence[Op], number: int) -> list[int]:
    """Walk on over what is taken apart, gradients of tables and their updates."""
    found: list[int] = []
    for n in range(number + 1, len(ops)):
        op = ops[n]
        belongs = _is_backward(op) or op.name in _UPDATES or _family(op) in _JOINS
        if op.collective is not None or not belongs or op.phase != ops[number].phase:
            break
        if _family(op) in _JOINS and any(_is_backward(ops[m]) for m in found):
            break
        found.append(n)
    return found


def _family(op: Op) -> str:
    return "" if op.cost is None else op.cost.family


def _is_backward(op: Op) -> bool:
    return op.name in _BACKWARD or _family(op) == "embedding-backward"
