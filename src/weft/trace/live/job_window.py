"""Collectives of a running job, joined across ranks: who waits, who is late, and why.

Every rank stamps its collectives (``StampBatch``); one of them joins them (``JobJoiner``) into
windows of some seconds (``JobWindow``). A collective moves bytes from the last start to the first
end; before that, ranks wait for the last one. The last rank was late because it computed for longer
than the others since its previous collective, or because it did nothing for longer. These are the
definitions of ``weft analyze``; a test compares the two. The job appends its windows to a journal
(window_journal.py) that ``weft watch`` follows.
"""

import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.result_tables import ResultTables, Tables
from weft.timeline.intervals import IntervalSet
from weft.units import format_time

STAMP = np.dtype(
    [
        ("group", "u4"),
        ("sequence", "u4"),
        ("kind", "u2"),
        ("nbytes", "u8"),
        ("start", "i8"),  # nanoseconds of a clock that the processes of a host share
        ("end", "i8"),
        ("busy", "i8"),  # since the collective before, and
        ("idle", "i8"),  # without computing
    ]
)
KINDS = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"),
    *("gather", "scatter", "barrier"),
)
VERSION = 1  # of windows in journals
_SILENT = 3.0  # intervals without a word: a rank that is stuck or dead
_WORTH = 0.05  # of all waiting: a rank that costs less is no straggler
_KEPT = 4096  # collectives per rank that wait for other ranks; older ones are dropped


class StampBatch(msgspec.Struct, frozen=True):
    """The stamps of one rank since its last batch."""

    rank: int
    host: str
    stamps: bytes  # of dtype STAMP
    groups: dict[int, tuple[str, list[int]]]  # by number: name and ranks
    steps: list[int]  # nanoseconds at which steps ended
    dropped: int = 0
    last: bool = False  # the rank has finished


class RankWindow(msgspec.Struct, frozen=True):
    """One rank in a window; of collectives in flight at the same time, seconds count once."""

    rank: int
    host: str = ""
    num_collectives: int = 0
    waiting: float = 0.0
    moving: float = 0.0
    num_last: int = 0
    cost: float = 0.0  # seconds that the others waited for it, summed over them
    longer_busy: float = 0.0  # than the others, before the collectives in which it was last
    longer_idle: float = 0.0
    silent: float = 0.0  # seconds since its last batch, if that is unusual
    steps: int = 0
    step_seconds: float | None = None

    @property
    def why(self) -> str:
        """Why it was late."""
        if self.longer_busy <= 0 and self.longer_idle <= 0:
            return "unknown"
        if self.longer_busy >= self.longer_idle:
            return f"its kernels took {format_time(self.longer_busy)} longer than the others'"
        return f"its host was late: {format_time(self.longer_idle)} longer without computing"


class KindWindow(msgspec.Struct, frozen=True):
    """The collectives of one kind, size and number of ranks in a window; means over them."""

    kind: str
    nbytes: int
    num_ranks: int
    count: int
    waiting: float
    moving: float


class JobWindow(ResultTables, msgspec.Struct, frozen=True):
    """Some seconds of a job."""

    time: float  # of the day, at its end
    seconds: float
    world_size: int
    ranks: list[RankWindow]
    kinds: list[KindWindow]
    dropped: int = 0
    weft_monitor: int = VERSION

    def tables(self) -> Tables:
        """Return the tables of a window: ranks, then kinds of collectives."""
        return {
            "ranks": lambda: [msgspec.structs.asdict(rank) for rank in self.ranks],
            "collectives": lambda: [msgspec.structs.asdict(kind) for kind in self.kinds],
        }

    @property
    def stragglers(self) -> list[RankWindow]:
        """The ranks that cost the others most, the worst first."""
        total = sum(rank.cost for rank in self.ranks)
        worth = [rank for rank in self.ranks if rank.cost > _WORTH * total and rank.cost > 0]
        return sorted(worth, key=lambda rank: -rank.cost)

    @property
    def step_seconds(self) -> float | None:
        """The mean step of the slowest rank."""
        known = [rank.step_seconds for rank in self.ranks if rank.step_seconds is not None]
        return max(known, default=None)

    @property
    def silent(self) -> list[RankWindow]:
        """The ranks that have not been heard of."""
        return [rank for rank in self.ranks if rank.silent]

    def sentences(self) -> list[str]:
        """Return what to know: three lines at most, and one per silent rank."""
        count = sum(kind.count for kind in self.kinds)
        ranks = [rank for rank in self.ranks if rank.num_collectives]
        step = f"step {format_time(self.step_seconds)}, " if self.step_seconds else ""
        waited = sum(rank.waiting for rank in ranks) / max(len(ranks), 1)
        moved = sum(rank.moving for rank in ranks) / max(len(ranks), 1)
        lines = [
            (
                f"{step}{count} collectives in {format_time(self.seconds)} on {len(ranks)} of "
                f"{self.world_size} ranks: on average a rank waits {_share(waited, self.seconds)} "
                f"of the time and moves bytes {_share(moved, self.seconds)}"
            )
        ]
        if self.stragglers:
            worst = self.stragglers[0]
            lines.append(
                f"slowest is rank {worst.rank}{f' on {worst.host}' if worst.host else ''}: last in "
                f"{worst.num_last} of {worst.num_collectives} collectives, the others waited "
                f"{format_time(worst.cost)} for it; {worst.why}"
            )
        lines += [
            f"rank {rank.rank} has been silent for {format_time(rank.silent)}: stuck or dead"
            for rank in self.silent
        ]
        return lines


def _share(seconds: float, whole: float) -> str:
    return f"{100 * seconds / whole:.1f} %" if whole > 0 else "0 %"


def group_number(name: str) -> int:
    """Return the number of a process group in stamps: the same on all ranks."""
    return zlib.crc32(name.encode())


def encode_batch(batch: StampBatch) -> bytes:
    """Return a batch as bytes."""
    return msgspec.msgpack.encode(batch)


def decode_batch(raw: bytes) -> StampBatch:
    """Parse a batch of another rank."""
    try:
        batch = msgspec.msgpack.decode(raw, type=StampBatch)
        np.frombuffer(batch.stamps, STAMP)
    except (msgspec.DecodeError, ValueError) as error:
        raise FormatError(f"stamps of a rank cannot be read: {error}") from None
    return batch


class JobJoiner:
    """Collects the batches of all ranks and joins collectives that all their ranks have stamped."""

    def __init__(self, world_size: int, interval: float) -> None:
        self.world_size, self.interval = world_size, interval
        self._pending: dict[int, NDArray[Any]] = {}
        self._hosts: dict[int, str] = {}
        self._heard: dict[int, float] = {}
        self._began: float | None = None  # when the first batch came
        self._done: set[int] = set()
        self._steps: dict[int, list[int]] = defaultdict(list)
        self._groups: dict[int, tuple[str, list[int]]] = {}
        self._joined: dict[int, int] = {}  # nanoseconds: the last end that was joined, by rank
        self._dropped = 0

    def add(self, batch: StampBatch, now: float) -> None:
        """Take a batch; ``now`` is a monotonic time in seconds."""
        stamps = np.frombuffer(batch.stamps, STAMP)
        before = self._pending.get(batch.rank, np.empty(0, STAMP))
        merged = np.concatenate((before, stamps))
        self._dropped += batch.dropped + max(len(merged) - _KEPT, 0)
        self._pending[batch.rank] = merged[-_KEPT:]
        self._hosts[batch.rank] = batch.host
        self._heard[batch.rank] = now
        self._began = now if self._began is None else self._began
        self._steps[batch.rank] = (self._steps[batch.rank] + batch.steps)[-_KEPT:]
        self._groups |= batch.groups
        if batch.last:
            self._done.add(batch.rank)

    def window(self, now: float, seconds: float) -> JobWindow:
        """Join what all ranks have stamped since the last window, ``seconds`` ago.

        If a batch comes late, the next window has the collectives of two: its seconds are then
        those that they cover. Steps and drops of a window without collectives are the next one's.
        """
        silent = {
            rank: now - heard
            for rank, heard in self._heard.items()
            if rank not in self._done and now - heard > _SILENT * self.interval
        }
        sums: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        spans: dict[int, _Spans] = defaultdict(_Spans)
        kinds: dict[tuple[int, int, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        used: dict[int, NDArray[np.bool_]] = {
            rank: np.zeros(len(stamps), bool) for rank, stamps in self._pending.items()
        }
        # Ranks start at different times: the first batch of each is waited for like any other.
        starting = self._began is None or now - self._began <= _SILENT * self.interval
        for number, (_, ranks) in self._groups.items():
            members = [rank for rank in ranks if rank in self._pending and rank not in silent]
            if len(members) > 1 and not (starting and any(r not in self._heard for r in ranks)):
                self._join(number, members, sums, kinds, used, spans)
        for rank, found in spans.items():
            sums[rank]["waiting"] = found.waiting()
            sums[rank]["moving"] = found.moving()
            for late, waited in found.waiting_for():
                sums[late]["cost"] += waited
        for rank, done in used.items():
            if done.any():
                newest = int(self._pending[rank]["end"][done].max())
                covered = (newest - self._joined.get(rank, newest)) * 1e-9
                seconds, self._joined[rank] = max(seconds, covered), newest
            self._pending[rank] = self._pending[rank][~done]
        made = [self._rank(rank, sums[rank], silent.get(rank, 0.0)) for rank in sorted(self._heard)]
        dropped = self._dropped
        if kinds or silent:
            self._dropped = 0
            for rank in self._heard:
                self._steps[rank] = self._steps[rank][-1:]
        return JobWindow(
            time=time.time(),
            seconds=seconds,
            world_size=self.world_size,
            ranks=made,
            kinds=[
                KindWindow(KINDS[kind], nbytes, size, int(n), waits / n, moves / n)
                for (kind, nbytes, size), (n, waits, moves) in sorted(kinds.items())
            ],
            dropped=dropped,
        )

    def _rank(self, rank: int, sums: dict[str, float], silent: float) -> RankWindow:
        ends = self._steps[rank]
        lengths = np.diff(np.array(ends, np.int64)) * 1e-9
        return RankWindow(
            rank=rank,
            host=self._hosts[rank],
            num_collectives=int(sums["count"]),
            waiting=sums["waiting"],
            moving=sums["moving"],
            num_last=int(sums["last"]),
            cost=sums["cost"],
            longer_busy=sums["busy"],
            longer_idle=sums["idle"],
            silent=silent,
            steps=len(lengths),
            step_seconds=float(lengths.mean()) if len(lengths) else None,
        )

    def _join(
        self,
        number: int,
        members: Sequence[int],
        sums: dict[int, dict[str, float]],
        kinds: dict[tuple[int, int, int], list[float]],
        used: dict[int, NDArray[np.bool_]],
        spans: "dict[int, _Spans]",
    ) -> None:
        """Add the collectives of one group that all its ranks have stamped."""
        rows = {}
        for rank in members:
            mine = np.flatnonzero(self._pending[rank]["group"] == number)
            _, first = np.unique(self._pending[rank]["sequence"][mine], return_index=True)
            rows[rank] = mine[first]
        common = _common(self._pending[rank]["sequence"][rows[rank]] for rank in members)
        if not len(common):
            return
        picked = []
        for rank in members:
            sequence = self._pending[rank]["sequence"][rows[rank]]
            chosen = rows[rank][np.searchsorted(sequence, common)]
            used[rank][chosen] = True
            # What is older than the newest common one will never be complete.
            old = rows[rank][sequence <= common[-1]]
            used[rank][old] = True
            picked.append(self._pending[rank][chosen])
        table = np.stack(picked)
        start, end = table["start"] * 1e-9, table["end"] * 1e-9
        ahead = _clocks([self._hosts[rank] for rank in members], end)
        start, end = start - ahead, end - ahead
        waits, moves = waiting_and_moving(start, end)
        last = start.argmax(axis=0)
        ranks = np.array(members)
        moved = np.maximum(start.max(axis=0), end.min(axis=0) - moves), end.min(axis=0)
        busy, idle = (_longer(table[key] * 1e-9, last) for key in ("busy", "idle"))
        for index, rank in enumerate(members):
            mine = last == index
            each = sums[rank]
            each["count"] += len(common)
            # On its own clock: the first host of another group may be another one.
            began = start[index] + ahead[index]
            bytes_moved = (bound + ahead[index] for bound in moved)
            spans[rank].add(began, began + waits[index], ranks[last], *bytes_moved)
            each["last"] += float(mine.sum())
            for name, values in (("busy", busy), ("idle", idle)):
                each[name] += float(values[mine].sum())
        for at in range(len(common)):
            key = int(table["kind"][0, at]), int(table["nbytes"][0, at]), len(members)
            found = kinds[key]
            found[0] += 1
            found[1] += float(waits[:, at].mean())
            found[2] += float(moves[at])


class _Spans:
    """When a rank waited, for whom, and when bytes moved; collectives in flight overlap."""

    def __init__(self) -> None:
        self._parts: list[tuple[NDArray[Any], ...]] = []

    def add(self, *parts: NDArray[Any]) -> None:
        """Add starts and ends of waiting, the rank waited for, and starts and ends of moving."""
        self._parts.append(parts)

    def _column(self, number: int) -> NDArray[Any]:
        return np.concatenate([parts[number] for parts in self._parts])

    def waiting(self) -> float:
        """Return the seconds in which any collective waited."""
        return IntervalSet.of(self._column(0), self._column(1)).seconds

    def moving(self) -> float:
        """Return the seconds in which any collective moved bytes."""
        return IntervalSet.of(self._column(3), self._column(4)).seconds

    def waiting_for(self) -> Iterator[tuple[int, float]]:
        """Yield the seconds waited for each rank that was last."""
        start, end, late = (self._column(number) for number in range(3))
        for rank in np.unique(late[end > start]).tolist():
            mine = late == rank
            yield rank, IntervalSet.of(start[mine], end[mine]).seconds


def waiting_and_moving(start: NDArray[Any], end: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return how long each rank (row) waits in each collective (column), and its transfer time."""
    moves = np.maximum(end.min(axis=0) - start.max(axis=0), 0.0)
    waits = np.maximum(np.minimum(start.max(axis=0), end) - start, 0.0)
    return waits, moves


def _common(sequences: Iterable[NDArray[Any]]) -> NDArray[Any]:
    common: NDArray[Any] | None = None
    for each in sequences:
        common = each if common is None else np.intersect1d(common, each, assume_unique=True)
    return np.empty(0, np.uint32) if common is None else common


def _clocks(hosts: Sequence[str], end: NDArray[Any]) -> NDArray[Any]:
    """Return by rank how far its clock is ahead of that of the first host, as a column.

    A collective ends on all ranks together.
    """
    ahead = np.zeros((len(hosts), 1))
    for host in dict.fromkeys(hosts):
        if host != hosts[0]:
            there = np.array([each == host for each in hosts])
            ahead[there] = np.median(end[there] - end[0])
    return ahead


def _longer(values: NDArray[Any], last: NDArray[Any]) -> NDArray[Any]:
    """Return how much larger the value of the last rank is than the median of the others."""
    count, columns = values.shape
    at = np.arange(columns)
    others = np.where(np.arange(count)[:, None] == last, np.nan, values)
    out: NDArray[Any] = values[last, at] - np.nanmedian(others, axis=0)
    return out
