"""Prepared schedules by what is asked for, the least recently used closed first."""

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from weft.collectives import collective, pull
from weft.collectives.catalogue import BUILDERS
from weft.errors import UsageError
from weft.runtime.crew import Crew
from weft.runtime.interpreter import Prepared, prepare
from weft.schedule import Schedule

MOST = 256  # prepared at once
MOST_BYTES = 256 << 20  # of heap that they take on a rank, together


_APART = ("all_gather", "all_to_all")  # some of their algorithms work in place

# A plain tuple is a third of the time of a call: kind, nbytes, dtype, op, root, algorithm.
Asked = tuple[str, int, str, str, int, str]


class Question(NamedTuple):
    """What all ranks of a call must ask alike."""

    kind: str
    nbytes: int
    dtype: str
    op: str
    root: int  # -1: there is none
    algorithm: str

    def __str__(self) -> str:
        if self.kind == "barrier":
            return self.kind
        parts = [f"{self.nbytes} bytes"] if self.kind != "exchange" else []  # of any sizes
        parts += [part for part in (self.dtype, self.op, self.algorithm) if part]
        parts += [f"root {self.root}"] if self.root >= 0 else []
        return f"{self.kind}({', '.join(parts)})"


class Ready(NamedTuple):
    """A prepared schedule and the name its calls go by."""

    prepared: Prepared
    call: str
    run: Callable[[list[tuple[int, int, int]], str], None]


class Cache:
    """The first use of a call prepares it, on all ranks together."""

    def __init__(self, crew: Crew) -> None:
        # No circle: a closed world's memory and descriptors go with the last who knows it.
        self._crew = weakref.ref(crew)
        self._ready: OrderedDict[Asked, Ready] = OrderedDict()

    def find(self, asked: Asked) -> Ready:
        """Give what is prepared for a call."""
        ready = self._ready.get(asked)
        if ready is None:
            return self._make(asked)
        self._ready.move_to_end(asked)
        return ready

    def clear(self) -> None:
        """Forget everything: the next use is a first one."""
        self._ready.clear()

    def _make(self, asked: Asked) -> Ready:
        crew, question = self._crew(), Question(*asked)
        assert crew is not None
        call = str(question)
        crew.require_sound()
        crew.drain()
        # Shown before anybody waits: a rank that asks something else is found out.
        number = crew.member.begin_call(call)
        crew.agree(f"{call} as call {number}")
        schedule = _schedule_of(question, crew.num_ranks)
        self._make_room()
        prepared = prepare(schedule, crew, bound=True, elastic=question.kind == "exchange")
        crew.member.end_call(number)
        ready = Ready(prepared, call, prepared.execute)
        self._ready[asked] = ready
        return ready

    def _make_room(self) -> None:
        """Close the oldest: the same ones on every rank, because all ask alike."""
        while self._ready and (
            len(self._ready) >= MOST
            or sum(ready.prepared.nbytes for ready in self._ready.values()) > MOST_BYTES
        ):
            _, ready = self._ready.popitem(last=False)
            ready.prepared.close()


def _schedule_of(asked: Question, num_ranks: int) -> Schedule:
    if asked.kind == "exchange":
        return pull.exchange(num_ranks)
    algorithm = asked.algorithm or ("pull" if "pull" in BUILDERS[asked.kind] else "direct")
    options: dict[str, Any] = {}
    if asked.op:
        options |= {"dtype": asked.dtype, "op": asked.op}
        _require_order(asked.op, algorithm)
    if asked.root >= 0:
        options["root"] = asked.root
    if num_ranks == 1:
        return BUILDERS[asked.kind][algorithm](1, asked.nbytes, **options)
    made = collective(asked.kind, algorithm, num_ranks=num_ranks, nbytes=asked.nbytes, **options)
    if asked.kind in _APART and any(buffer.name == "data" for buffer in made.buffers):
        raise UsageError(
            f"{algorithm!r} {asked.kind} works in place, a call has an input and an output.",
            "Prepare its schedule with weft.prepare, or name another algorithm.",
        )
    return made


def _require_order(op: str, algorithm: str) -> None:
    """Raise where an operator needs all sources at once and the algorithm joins them in turn."""
    if (op == "avg" or op.startswith("premul")) and algorithm != "pull":
        raise UsageError(
            f"{op.partition(':')[0]} cannot be computed by {algorithm!r}.",
            "Leave the algorithm out.",
        )
