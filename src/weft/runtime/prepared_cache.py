"""An LRU cache of prepared schedules by call signature.

World.all_gather(..) ── DispatchCache (native) ── hit: one step into the executor
└── miss: PreparedCache ── prepare on all ranks, then execute
"""

import weakref
from typing import Any, NamedTuple

from weft._core import DispatchCache
from weft.collectives import collective, pull
from weft.collectives.catalogue import BUILDERS, REDUCING, SHARED_MEMORY
from weft.collectives.parts import is_premultiplied
from weft.compress import codec_of, is_lossless
from weft.compress.delta import is_delta
from weft.errors import SharedMemoryError, UsageError
from weft.runtime.algorithm_selector import AlgorithmSelector
from weft.runtime.communicator import Communicator
from weft.runtime.prepared_schedule import PreparedSchedule, prepare
from weft.schedule import Schedule

MAX_PREPARED = 256  # schedules
MAX_PREPARED_BYTES = 256 << 20  # of heap on a rank, of all of them together


KEEP_ROOT = "keep root"  # stands in the field ``op``, which a broadcast does not need
# Kinds that have an input and an output, although some of their algorithms work in place.
_OUT_OF_PLACE = ("all_gather", "all_to_all")

# kind, nbytes, dtype, op, root, algorithm. A plain tuple: making a NamedTuple would take a third
# of the time of a small call.
CallKey = tuple[str, int, str, str, int, str]


class CallSignature(NamedTuple):
    """The arguments of a collective call that must be equal on all ranks."""

    kind: str
    nbytes: int
    dtype: str
    op: str
    root: int  # -1: no root
    algorithm: str

    def __str__(self) -> str:
        if self.kind == "barrier":
            return self.kind
        # Sizes may differ between ranks.
        parts = [f"{self.nbytes} bytes"] if self.kind != "exchange" else []
        parts += [part for part in (self.dtype, self.op, self.algorithm) if part]
        parts += [f"root {self.root}"] if self.root >= 0 else []
        return f"{self.kind}({', '.join(parts)})"


class PreparedCall(NamedTuple):
    """A prepared schedule and the name of its calls in errors and in the flight recorder."""

    prepared: PreparedSchedule
    call: str


class PreparedCache:
    """Prepares a schedule when a signature is first used, on all ranks together.

    ``dispatch_cache`` serves repeated calls without coming here. Both are for the thread that holds
    the communicator (``Communicator.exclusive``); the dispatch cache takes it itself.
    """

    def __init__(self, comm: Communicator) -> None:
        # A weak reference: a cycle would keep the memory and descriptors of a closed world.
        self._comm = weakref.ref(comm)
        self.selector = AlgorithmSelector()
        self._calls: dict[CallKey, PreparedCall] = {}
        here = weakref.ref(self)  # weak for the same reason

        def failed(call: str, abort: Any, error: BaseException | None) -> None:
            if (cache := here()) is not None:
                cache._raise_abort(call, abort, error)  # noqa: SLF001 - its own

        self.dispatch_cache = DispatchCache(comm.member, failed)

    def find(self, key: CallKey) -> PreparedCall:
        """Return the prepared schedule of a call; prepare it if there is none."""
        if entry := self._calls.get(key):
            return entry
        comm = self._comm()
        assert comm is not None
        with comm.exclusive(str(CallSignature(*key))):
            return self._prepare(key)

    def keep(self, key: CallKey, dtype: object) -> None:
        """Add a call to the dispatch cache, which finds it by the caller's dtype object."""
        kind, nbytes, _, op, root, algorithm = key
        if not algorithm:
            entry = self.find(key)
            self.dispatch_cache.add(
                kind, nbytes, dtype, op, root, entry.prepared.program, entry.call
            )

    def _raise_abort(self, call: str, abort: Any, error: BaseException | None) -> None:
        comm = self._comm()
        assert comm is not None  # the caller holds it
        if error is not None:
            comm.fail_with(error, f" in {call}")
            return
        for entry in self._calls.values():
            if entry.call == call:
                entry.prepared.raise_aborted(abort, call)
        comm.raise_abort(abort, lambda _: call)  # the world was closed meanwhile

    def clear(self) -> None:
        """Remove all entries."""
        self.dispatch_cache.clear()
        self._calls.clear()

    def _prepare(self, key: CallKey) -> PreparedCall:
        comm, signature = self._comm(), CallSignature(*key)
        assert comm is not None
        call = str(signature)
        comm.require_healthy()
        comm.drain()
        # Recorded before anybody waits, so that a rank that makes another call is detected.
        number = comm.member.begin_call(call)
        comm.agree(f"{call} as call {number}")
        elastic = signature.kind == "exchange"
        algorithm = self._algorithm(signature, comm.num_ranks)
        schedule = _schedule_of(signature, comm.num_ranks, algorithm)
        direct = None
        if algorithm == "staged":
            direct = _schedule_of(signature, comm.num_ranks, algorithm, direct=True)
        num_buffers = 1
        if algorithm == "eager" and comm.num_ranks > 1:
            num_buffers = self.selector.num_buffers_of(signature.kind, signature.nbytes)
        self._evict(comm)
        while True:
            try:
                prepared = prepare(
                    schedule,
                    comm,
                    bound=True,
                    elastic=elastic,
                    num_buffers=num_buffers,
                    direct=direct,
                )
                break
            except SharedMemoryError:  # on all ranks alike: other groups may hold much, too
                if not self._calls:
                    raise
                self._close_oldest()
        comm.member.end_call(number)
        entry = PreparedCall(prepared, call)
        self._calls[key] = entry
        return entry

    def _evict(self, comm: Communicator) -> None:
        """Close the least recently used: the same on every rank, as all make the same calls."""
        # A region has twice the bytes of /dev/shm: all ranks together keep at most half of it.
        most = min(MAX_PREPARED_BYTES, comm.member.region_bytes // (4 * comm.num_ranks))
        while self._calls and (
            len(self._calls) >= MAX_PREPARED
            or sum(entry.prepared.nbytes for entry in self._calls.values()) > most
        ):
            self._close_oldest()

    def _close_oldest(self) -> None:
        oldest = min(self._calls, key=lambda key: self._calls[key].prepared.program.last_use)
        self.dispatch_cache.clear()
        self._calls.pop(oldest).prepared.close()

    def algorithm_of(self, kind: str, nbytes: int, num_ranks: int | None = None) -> str:
        """Return the algorithm of a call that names none."""
        comm = self._comm()
        assert comm is not None
        return self.selector.algorithm(
            kind, nbytes, num_ranks or comm.num_ranks, oversubscribed=comm.is_oversubscribed
        )

    def schedule_of(self, key: CallKey, num_ranks: int) -> Schedule:
        """Return the schedule of a call among ``num_ranks`` ranks."""
        signature = CallSignature(*key)
        return _schedule_of(signature, num_ranks, self._algorithm(signature, num_ranks))

    def _algorithm(self, signature: CallSignature, num_ranks: int) -> str:
        if signature.kind == "exchange":
            return "pull"
        return signature.algorithm or self.algorithm_of(signature.kind, signature.nbytes, num_ranks)


def _schedule_of(
    signature: CallSignature, num_ranks: int, algorithm: str, **options: Any
) -> Schedule:
    if signature.kind == "exchange":
        return pull.exchange(num_ranks)
    if signature.kind in REDUCING:
        options |= {"dtype": signature.dtype, "op": signature.op}
        _require_order(signature.op, algorithm)
    if signature.root >= 0:
        options["root"] = signature.root
    if "+" in algorithm and signature.kind == "broadcast":
        options |= {"dtype": signature.dtype, "keep_root": signature.op == KEEP_ROOT}
    if num_ranks == 1:
        return BUILDERS[signature.kind][algorithm](1, signature.nbytes, **options)
    made = collective(
        signature.kind, algorithm, num_ranks=num_ranks, nbytes=signature.nbytes, **options
    )
    if signature.kind in _OUT_OF_PLACE and any(buffer.name == "data" for buffer in made.buffers):
        raise UsageError(
            f"algorithm: {algorithm!r} {signature.kind} works in place, but a call has an input "
            "and an output.",
            "Prepare its schedule with weft.prepare, or choose another algorithm.",
        )
    return made


def can_reduce(algorithm: str, op: str) -> bool:
    """Return whether an algorithm has all inputs at once, or the operator does not need that."""
    return algorithm in SHARED_MEMORY or not (op == "avg" or is_premultiplied(op))


def _require_order(op: str, algorithm: str) -> None:
    if not can_reduce(algorithm, op):
        raise UsageError(
            f"algorithm: {algorithm!r} cannot compute {op.partition(':')[0]} (expected "
            f"{', '.join(SHARED_MEMORY)}).",
            "Leave the algorithm out.",
        )


def encoded_broadcast_key(
    codec: str, nbytes: int, dtype: str, root: int, *, keep_root: bool
) -> CallKey:
    """Return the call key; raise for an unknown codec or one that does not take the dtype."""
    name = codec_of(codec, dtype).name
    op = KEEP_ROOT if keep_root and not is_lossless(name) else ""
    return ("broadcast", nbytes, dtype, op, root, f"chain+{name}")


def require_compatible(
    codec: str, algorithm: str | None, *, keep_root: bool, async_op: bool
) -> None:
    """Raise if a codec is combined with arguments that it does not support."""
    if algorithm is not None:
        raise UsageError(
            f"codec: {codec!r} works with the chain algorithm only (got algorithm {algorithm!r}).",
            "Omit one of them.",
        )
    if is_delta(codec) and (keep_root or async_op):
        what = "keep_root" if keep_root else "async_op"
        raise UsageError(
            f"{what}: not supported by codec {codec!r}, which needs the same history on all ranks.",
            f"Omit {what}, or use codec {codec.partition('+')[2]!r}.",
        )
