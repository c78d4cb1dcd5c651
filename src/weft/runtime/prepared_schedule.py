"""Execution of schedules on real memory: ``prepare`` once, ``run`` many times.

Schedule ── expand ──▶ CommandTable ── HeapLayout ──▶ memory in the heap
└───── build_program ──▶ native Program ── run ──▶ Timeline
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from types import TracebackType
from typing import Any, Literal, NoReturn, overload

import numpy as np
from numpy.typing import NDArray

from weft._core import Kernels as NativeKernels
from weft.errors import DisagreeError, RunError, UnknownNameError, nearest
from weft.runtime.bound_memory import Bindable, Binder, unbacked_buffers
from weft.runtime.communicator import Communicator
from weft.runtime.faults import AbortTuple
from weft.runtime.heap_layout import (
    STAMP_BYTES,
    HeapLayout,
    require_bounds,
    require_equal_sizes,
    require_rotation,
)
from weft.runtime.kernel_calls import Bytes, KernelCalls, KernelError, Op
from weft.runtime.native_program import PlacedLayout, build_program, engine_queues
from weft.schedule import Kernel, Schedule, Slice, expand
from weft.schedule.schedule import commands_of
from weft.timeline import Timeline

Stamps = NDArray[np.uint64]


def run(
    schedule: Schedule,
    world: Communicator,
    data: Mapping[str, NDArray[Any]] | None = None,
    ops: Mapping[str, Op] | None = None,
) -> Timeline:
    """Execute ``schedule`` once, together with all ranks; return the spans of all of them.

    ``data`` holds this rank's arrays by buffer name: they are copied in before, and those of
    ``out`` and ``inout`` buffers back afterwards. ``ops`` holds the kernels by name, called
    as ``op(inputs, outputs)`` with lists of byte arrays.
    """
    arrays = data or {}
    with prepare(schedule, world) as prepared:
        prepared.on_all_ranks(f"data for {schedule.name}", lambda: prepared.take(arrays))
        timeline = prepared.run(ops, timeline=True)
        prepared.store(arrays)
    return timeline


def prepare(
    schedule: Schedule,
    world: Communicator,
    *,
    bound: bool = False,
    elastic: bool = False,
    num_buffers: int = 1,
    direct: Schedule | None = None,
) -> "PreparedSchedule":
    """Allocate memory for ``schedule`` on every rank, so that it can be executed many times.

    ``bound``: every execution binds the caller's memory to the in, out and inout buffers,
    which then need no backing memory. ``elastic``: every slice of the schedule is a whole
    buffer, and as long as what is bound to it. ``num_buffers``: scratch buffers to rotate
    through, so that a rank may leave an execution before the others have read its data, and be
    so many executions ahead of them. ``direct``: the same commands with the offsets that they
    use if the memory bound to the first buffer, of which the scratch is a stage, is in the heap
    (see weft.collectives.staged). Collective: every rank passes the same.
    """
    with world.exclusive(f"prepare {schedule.name}"):
        _require_same(schedule, world)
        return PreparedSchedule(
            schedule,
            world,
            bound=bound or elastic,
            elastic=elastic,
            num_buffers=num_buffers,
            direct=direct,
        )


def _require_same(schedule: Schedule, world: Communicator) -> None:
    whole = repr([getattr(schedule, each.name) for each in fields(schedule)])
    # A digest, because a schedule is too long for the word of ``agree``. Ranks with different
    # schedules would wait for flags that no rank raises, or copy to wrong offsets.
    digest = hashlib.blake2b(whole.encode(), digest_size=16).digest()
    shown = world.agree("prepare", digest + schedule.name.encode()[:300])
    for rank, text in enumerate(shown):
        if text[:16] != shown[0][:16]:
            first, other = (t[16:].decode(errors="replace") for t in (shown[0], text))
            raise DisagreeError(
                f"rank 0 prepares {first!r}, rank {rank} prepares {other!r}"
                + (", which differs." if first == other else "."),
                "Every rank must pass the same schedule.",
            )
    if schedule.num_ranks != world.num_ranks:
        raise RunError(
            f"{schedule.name}: wrong number of ranks (got {schedule.num_ranks}, this world has "
            f"{world.num_ranks})."
        )


class PreparedSchedule:
    """A schedule with its memory in the heap of a world. Created by ``prepare``.

    Close it on every rank to release the memory; arrays of its buffers are invalid afterwards.
    """

    def __init__(
        self,
        schedule: Schedule,
        world: Communicator,
        *,
        bound: bool = False,
        elastic: bool = False,
        num_buffers: int = 1,
        direct: Schedule | None = None,
    ) -> None:
        self.schedule = schedule
        self.world = world
        self.table = expand(schedule)
        self._elastic = elastic
        self._direct = None if direct is None else expand(direct)
        self._layout = layout = HeapLayout(self.table)
        if bound:
            unbacked = unbacked_buffers(layout, stages=world.stages)
            self._layout = HeapLayout(self.table, unbacked, num_buffers)
        if num_buffers > 1:
            require_rotation(layout)
        self._binder = Binder(self._layout, world.rank, elastic=elastic)
        require_bounds(self._layout)
        require_equal_sizes(self.table)
        engines = world.engine_numbers(engine_queues(self.table))
        self._placed = PlacedLayout(
            self._layout, world.region, world.blocks.allocate(self._layout.nbytes)
        )
        self._closed = False
        # /dev/shm may be full for one rank only. Then all raise, rather than wait for it in a call.
        self.on_all_ranks(f"memory for {schedule.name}", lambda: self._allocate_memory(engines))
        self._map_peers()

    @property
    def nbytes(self) -> int:
        """Bytes of heap that it uses on a rank."""
        return self._layout.nbytes

    def buffer(self, name: str) -> Bytes:
        """Return this rank's bytes of a buffer, without a copy."""
        if name not in self.table.buffers:
            raise UnknownNameError(
                f"{self.schedule.name}: no buffer {name!r}.", nearest(name, self.table.buffers)
            )
        number = self.table.buffers.index(name)
        offset = self._placed.start(self.world.rank) + int(self._layout.buffers[number])
        return self.world.member.view(
            offset, int(self._layout.backed_bytes[number, self.world.rank])
        )

    @overload
    def run(
        self,
        ops: Mapping[str, Op] | None = None,
        *,
        bind: Mapping[str, Bindable] | None = None,
        timeline: Literal[False] = False,
        call: str = "",
    ) -> None: ...
    @overload
    def run(
        self,
        ops: Mapping[str, Op] | None = None,
        *,
        bind: Mapping[str, Bindable] | None = None,
        timeline: Literal[True],
        call: str = "",
    ) -> Timeline: ...
    def run(
        self,
        ops: Mapping[str, Op] | None = None,
        *,
        bind: Mapping[str, Bindable] | None = None,
        timeline: bool = False,
        call: str = "",
    ) -> Timeline | None:
        """Execute once; with ``timeline`` (on every rank) return the spans of all ranks.

        ``bind`` names memory of this rank that stands for its buffers, in this execution
        only: arrays of ``world.empty``, any other array, or a Memory. ``call`` is its
        name in the flight recorder and in errors of waiting ranks.
        """
        if self._closed:
            raise RunError(f"{self.schedule.name} is closed.", "Prepare it again.")
        self.world.require_healthy()
        binds = self.binds(bind or {})
        self._execute(ops or {}, binds, timeline=timeline, call=call)
        return self.timeline() if timeline else None

    def binds(self, bind: Mapping[str, Bindable]) -> list[tuple[int, int, int]]:
        """Return the bound memory in the form of the native core."""
        return self._binder.binds(bind)

    def execute(
        self,
        binds: list[tuple[int, int, int]],
        call: str,
        kernels: NativeKernels | None = None,
        *,
        stamps: bool = False,
    ) -> None:
        """Execute in this thread, as the call of that name; ``stamps`` are for ``timeline``."""
        try:
            abort = self.program.run(self.world.member, stamps, kernels, binds, call)
        except BaseException as error:
            self.world.fail_with(error, f" in {call}")
            raise
        if abort is not None:
            self.raise_aborted(abort, call)

    def raise_aborted(self, abort: AbortTuple, call: str) -> None:
        """Raise why a call of that name was aborted."""
        self.world.raise_abort(abort, lambda row: f"{call} ({self.where(row)})")

    def submit(
        self, binds: list[tuple[int, int, int]], call: str, kernels: NativeKernels | None = None
    ) -> int:
        """Submit an execution to the world's worker; return the number of the job."""
        job = self.program.submit(self.world.member, binds, call, kernels)
        if job == 0:
            self.world.raise_second_thread(call)
        return job

    def kernel_rows(self) -> Iterator[tuple[int, str, list[Slice]]]:
        """Yield this rank's kernels: the number of its row, its op and its slices."""
        places = commands_of(self.table)
        mine = (command for place, command in places if place.rank == self.world.rank)
        for number, command in enumerate(mine):
            if isinstance(command, Kernel):
                yield number, command.op, [*command.reads, *command.writes]

    def take(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Load arrays into which ``store`` will copy the results; check that they are writable."""
        for name in self._results(arrays):
            if not arrays[name].flags.writeable:
                raise RunError(f"{name}: the array is read-only.", "Pass a copy of it.")
        self.load(arrays)

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Copy arrays into this rank's buffers."""
        for name, array in arrays.items():
            self.buffer(name)[:] = _bytes_of(name, array, len(self.buffer(name)))

    def store(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Copy ``out`` and ``inout`` buffers of this rank into the given arrays."""
        for name in self._results(arrays):
            here = self.buffer(name)
            _bytes_of(name, arrays[name], len(here))[:] = here

    def _results(self, arrays: Mapping[str, NDArray[Any]]) -> list[str]:
        written = [b.name for b in self.schedule.buffers if b.role in ("out", "inout")]
        return [name for name in written if name in arrays]

    def on_all_ranks(self, what: str, act: Callable[[], None]) -> None:
        """Call ``act`` on every rank; if it fails on one, release the memory and raise on all."""
        if failure := self.world.attempt(what, act):
            self._closed = True
            self._free_memory()
            raise failure

    def close(self) -> None:
        """Release the memory. Collective."""
        with self.world.exclusive(f"close {self.schedule.name}"):
            if not self._closed:
                self.world.drain()
                self._closed = True
                self.world.agree(f"close {self.schedule.name}")
                self._free_memory()

    def __enter__(self) -> "PreparedSchedule":  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:  # after an error the other ranks may never call close
            self.close()

    def __repr__(self) -> str:
        return f"<Prepared {self.schedule.name}: {self.program.num_executions} executions>"

    def _allocate_memory(self, engines: Mapping[str, int]) -> None:
        world, rank = self.world, self.world.rank
        for offset, nbytes in self._layout.ranges(rank):
            world.reserve(self._placed.block + offset, nbytes)
        self.program = build_program(
            world.member, self._placed, rank, engines, elastic=self._elastic, direct=self._direct
        )
        self._kernels = KernelCalls(world.member, self._placed, rank)

    def _map_peers(self) -> None:
        """Touch the pages of all peers, so that no execution has page faults."""
        for rank in range(self.world.num_ranks):
            for offset, nbytes in self._layout.ranges(rank):
                self.world.member.populate(self._placed.start(rank) + offset, nbytes)

    def _free_memory(self) -> None:
        start = self._placed.start(self.world.rank)
        self.world.member.release(start, self._layout.nbytes)
        self.world.blocks.free(self._placed.block)

    def _execute(
        self,
        ops: Mapping[str, Op],
        binds: list[tuple[int, int, int]],
        *,
        timeline: bool,
        call: str,
    ) -> None:
        self.world.drain()
        try:
            self._kernels.require(ops)
            abort = self.program.run(
                self.world.member, timeline, self._kernels.caller(ops), binds, call
            )
        except KernelError as error:
            self._raise_of_op(error)
        except BaseException as error:
            self.world.fail_with(error, f" in {self.schedule.name}")
            raise
        if abort is not None:
            self.world.raise_abort(abort, self.where)

    def where(self, number: int) -> str:
        """Return the name of the command of a row of this rank."""
        return self.table.where(self._kernels.rows[number]) if number >= 0 else self.schedule.name

    def _raise_of_op(self, error: KernelError) -> NoReturn:
        cause, place = error.__cause__, self.table.where(error.row)
        assert cause is not None
        self.world.fail_with(cause, f" at {place}")
        raise RunError(
            f"{place}: the op raised {type(cause).__name__}: {cause}.",
        ) from cause

    def stamps(self, rank: int) -> Stamps:
        """Return begin and end of the commands of a rank in its last execution with stamps."""
        start = self._placed.start(rank) + self._layout.stamps
        view = self.world.member.view(start, len(self._layout.rows_of(rank)) * STAMP_BYTES)
        return view.view(np.uint64).reshape(-1, 2)

    def timeline(self) -> Timeline:
        """Read the timestamps of all ranks. Collective: all read before any overwrites them."""
        self.world.agree(f"timeline of {self.schedule.name}")
        stamps = np.zeros((self.table.num_rows, 2), np.uint64)
        for rank in range(self.world.num_ranks):
            stamps[self._layout.rows_of(rank)] = self.stamps(rank)
        self.world.agree(f"timeline of {self.schedule.name} read")
        seconds = (stamps - stamps.min(initial=np.iinfo(np.uint64).max)) / 1e9
        return Timeline.from_table(
            self.table, seconds[:, 0], seconds[:, 1], basis="measured", platform="here"
        )


def _bytes_of(name: str, array: NDArray[Any], nbytes: int) -> Bytes:
    if not array.flags.c_contiguous:
        raise RunError(f"{name}: the array is not contiguous.", "Pass a copy of it.")
    if array.nbytes != nbytes:
        raise RunError(f"{name}: wrong size (got {array.nbytes} bytes, expected {nbytes}).")
    return array.reshape(-1).view(np.uint8)
