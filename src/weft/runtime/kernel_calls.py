"""Calls of a schedule's kernels with arrays of the heap."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft._core import Member
from weft.errors import RunError, nearest
from weft.runtime.native_program import PlacedLayout
from weft.schedule import WRITE, CommandKind, Kernel

Bytes = NDArray[np.uint8]
Op = Callable[[list[Bytes], list[Bytes]], Any]


class KernelError(Exception):
    """An op raised; its error is the cause. Internal to the runtime."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class KernelCalls:
    """The kernels of one rank: their ops and the arrays they read and write."""

    def __init__(self, member: Member, placed: PlacedLayout, rank: int) -> None:
        self._member = member
        self._placed = placed
        table = placed.layout.table
        self.rows = placed.layout.rows_of(rank)
        kernels = np.flatnonzero(table.kind[self.rows] == CommandKind.KERNEL).tolist()
        self._op_of = {
            number: command.op
            for number in kernels
            if isinstance(command := table.commands[table.command[self.rows[number]]], Kernel)
            and not command.external
        }
        self._arrays: dict[int, tuple[list[Bytes], list[Bytes]]] = {}

    def require(self, ops: Mapping[str, Op]) -> None:
        """Raise if an op is not among ``ops``."""
        for op in dict.fromkeys(self._op_of.values()):
            if op not in ops:
                raise RunError(
                    f"ops: {op!r} of {self._placed.layout.table.schedule.name} is missing.",
                    nearest(op, ops) or "Pass ops={name: callable(inputs, outputs)}.",
                )

    def caller(self, ops: Mapping[str, Op]) -> Callable[[int], None]:
        """Return the function that calls the kernel of a row."""

        def call(number: int) -> None:
            try:
                ops[self._op_of[number]](*self._arrays_of(number))
            except Exception as error:
                raise KernelError(int(self.rows[number])) from error

        return call

    def _arrays_of(self, number: int) -> tuple[list[Bytes], list[Bytes]]:
        if number not in self._arrays:
            table, row = self._placed.layout.table, int(self.rows[number])
            span = range(table.access_start[row], table.access_start[row + 1])
            writes = [bool(table.access_mode[access] & WRITE) for access in span]
            arrays = [self._array(access) for access in span]
            pairs = list(zip(arrays, writes, strict=True))
            self._arrays[number] = (
                [array for array, written in pairs if not written],
                [array for array, written in pairs if written],
            )
        return self._arrays[number]

    def _array(self, access: int) -> Bytes:
        table, layout = self._placed.layout.table, self._placed.layout
        start = self._placed.start(int(table.access_rank[access]))
        offset = layout.buffers[table.access_buffer[access]] + table.access_offset[access]
        return self._member.view(int(start + offset), int(table.access_nbytes[access]))
