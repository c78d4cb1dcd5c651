"""A receiver of weight updates: stages an update while it computes, then switches at once."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import torch.distributed as dist
from torch import Tensor

from weft._core import FrameStatus, apply_changes, check_changes
from weft.compress.codec_registry import codec_of
from weft.compress.delta import is_list_of_changes
from weft.compress.frame import Octets, check_frame_status, frame_bytes
from weft.errors import NotDoneError, StaleWeightsError, UsageError
from weft.torch.backend.c10d import ProcessGroup
from weft.torch.backend.group_functions import weft_group
from weft.torch.hosts.host_topology import HostTopology
from weft.torch.hosts.serial_executor import SerialExecutor, SerialJob
from weft.torch.weights.weight_layout import Segment, WeightLayout, layout_of, whole_codec
from weft.torch.weights.weight_protocol import Held, collective_runner, exchange_update

_NOTHING = Held(0, 0)


class StagedUpdate:
    """The frames of one update, in memory of their own."""

    def __init__(self, held: Held) -> None:
        self.held = held
        self.pieces: list[Octets] = []


class WeightReceiver:
    """Receives the weights of the rank ``source`` into tensors of this rank.

        receiver.stage()      # returns at once; the update arrives while this rank computes
        generate(model)       # with the weights of the last switch
        receiver.switch()     # all tensors at once

    Threads: one thread calls ``stage`` and ``switch``. The tensors are written only inside
    ``switch``. Nobody else may write them: an update states what changed, and a receiver that
    holds other bytes than the update starts from gets all values instead.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        *,
        source: int = 0,
        group: ProcessGroup | None = None,
    ) -> None:
        self._run = collective_runner(weft_group(group).channel)
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        if not 0 <= source < size or source == rank:
            raise UsageError(
                f"source: expected another rank of the group, 0 to {size - 1} (got {source} on "
                f"rank {rank}).",
                "Pass the rank of the WeightSender in the group.",
            )
        self._tensors = dict(tensors)
        self._use(*layout_of(self._tensors))
        self._source = source
        self._held = _NOTHING  # after the staged updates
        self._switched = _NOTHING
        self._staged: list[StagedUpdate] = []
        self._incoming: list[Octets] = []
        self._stale = False
        self._job: SerialJob | None = None
        self._executor = SerialExecutor("weft-weights")

    @property
    def version(self) -> int:
        """The version of the tensors, as of the last switch; 0 before the first."""
        return self._switched.version

    @property
    def is_staged(self) -> bool:
        """Whether ``switch`` would not wait."""
        return self._job is None or self._job.is_done()

    def stage(self) -> None:
        """Begin to receive the next update in a thread; ``switch`` waits for it.

        Collective with the sender's ``publish``. Several updates may be staged before a switch.
        """
        self._wait(None)
        layout, memory = layout_of(self._tensors)
        if layout != self._layout:  # as of other tensors: all values are needed
            self._staged.clear()
            self._held = _NOTHING
        self._use(layout, memory)
        self._job = self._executor.run(self._receive, async_op=True)

    def switch(self, timeout: float | None = None) -> int:
        """Write the staged updates into the tensors, and return their version.

        Waits for an update that is still arriving, at most ``timeout`` seconds (NotDoneError).
        """
        self._wait(timeout)
        layout, memory = layout_of(self._tensors)
        if layout != self._layout:
            raise UsageError(
                "tensors: their dtypes or shapes changed since the update was staged.",
                "Call stage again, with a sender whose tensors changed alike.",
            )
        self._use(layout, memory)
        while self._staged:
            update = self._staged.pop(0)
            for number, frames in enumerate(update.pieces):
                self._apply(self._pieces[number], frames)
            self._switched = update.held
        return self.version

    def close(self) -> None:
        """End the thread; an update that is arriving is waited for."""
        self._executor.close()

    def forget(self) -> None:
        """Drop what is staged, and ask for all values with the next update.

        For a rank whose tensors were loaded or changed by something else.
        """
        self._wait(None)
        self._staged.clear()
        self._held = _NOTHING

    def start(self, *, is_current: bool) -> None:
        """Prepare for an update, which this rank can use as it is or not."""
        self._incoming, self._stale = [], not is_current

    def take(self, frames: Octets, *, full: bool) -> None:
        """Keep the frames of a piece of the update that arrives."""
        if full != self._stale:
            return  # this rank only passes them on
        piece = self._pieces[len(self._incoming)]
        if not full and not self._staged and not self._starts_from_ours(piece, frames):
            self._stale = True
        self._incoming.append(frames.copy())

    def needs_full(self) -> bool:
        """Return whether what changed cannot be used; forgets it then."""
        if self._stale:
            self._incoming = []
        return self._stale

    def encode(self, piece: list[Segment], out: Octets, *, full: bool) -> int:
        """Raise: receivers encode nothing."""
        raise NotImplementedError

    def _receive(self) -> None:
        def act(topology: HostTopology) -> None:
            exchanged = exchange_update(topology, self._source, self._layout, self._held, self)
            update = StagedUpdate(exchanged.held)
            update.pieces, self._incoming = self._incoming, []
            if self._stale:  # all values: what was staged before is not needed any more
                self._staged.clear()
            self._staged.append(update)
            self._held = exchanged.held

        self._run(act)

    def _use(self, layout: WeightLayout, memory: list[Octets]) -> None:
        """Write into this memory from now on: a parameter may have been given other."""
        self._layout, self._memory = layout, memory
        self._pieces = layout.pieces()
        self._words = list(layout.words())
        self._skipped = _tied(layout, memory)

    def _wait(self, timeout: float | None) -> None:
        """Wait for the update that arrives; its failure is raised once."""
        if self._job is None:
            return
        try:
            self._job.wait(timeout)
        except NotDoneError:
            raise
        except BaseException:
            self._job = None
            raise
        self._job = None

    def _starts_from_ours(self, piece: list[Segment], frames: Octets) -> bool:
        """Return whether the frames are whole and start from the bytes that the tensors hold."""
        return all(
            segment.tensor in self._skipped
            or not is_list_of_changes(frame)
            or check_changes(frame, self._bytes_of(segment), self._words[segment.tensor])
            == FrameStatus.GOOD
            for segment, frame in zip(piece, _split(frames), strict=True)
        )

    def _apply(self, piece: list[Segment], frames: Octets) -> None:
        for segment, frame in zip(piece, _split(frames), strict=True):
            if segment.tensor in self._skipped:
                continue
            memory = self._bytes_of(segment)
            if not is_list_of_changes(frame):
                dtype = self._layout.dtypes[segment.tensor]
                codec_of(whole_codec(dtype), dtype).decode(frame, memory)
                continue
            status = apply_changes(frame, memory, self._words[segment.tensor])
            if status == FrameStatus.BASE:
                self._staged.clear()
                self._held = self._switched = _NOTHING
                raise StaleWeightsError(
                    f"tensors: {self._layout.names[segment.tensor]!r} was changed after the update "
                    "was staged.",
                    "Write the tensors only by switch; the next update has all values.",
                )
            check_frame_status(status, "changes")

    def _bytes_of(self, segment: Segment) -> Octets:
        return self._memory[segment.tensor][segment.start : segment.stop]


def _split(frames: Octets) -> list[Octets]:
    """Return the frames of a piece, one for each segment."""
    ends = [0]
    while ends[-1] < len(frames):
        ends.append(ends[-1] + frame_bytes(frames[ends[-1] :]))
    return [frames[start:stop] for start, stop in pairwise(ends)]


def _tied(layout: WeightLayout, memory: list[Octets]) -> set[int]:
    """Return the tensors inside of another one: they change with it, so they are not written.

    Raise if two overlap otherwise: what is written through one would change the other.
    """
    places = [(int(np.asarray(each).ctypes.data), len(each)) for each in memory]
    longest_first = sorted(range(len(places)), key=lambda n: (places[n][0], -places[n][1], n))
    found: set[int] = set()
    last, end = 0, 0
    for number in longest_first:
        start, nbytes = places[number]
        if nbytes and start + nbytes <= end:
            found.add(number)
        elif nbytes and start < end:
            names = layout.names[last], layout.names[number]
            raise UsageError(
                f"tensors: {names[0]!r} and {names[1]!r} share a part of their memory.",
                "Pass the tensor of which both are views, or copies.",
            )
        elif nbytes:
            last, end = number, start + nbytes
    return found
