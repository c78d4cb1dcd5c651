"""A World: the collectives and messages of the ranks of one machine."""

from collections.abc import Sequence
from dataclasses import replace
from operator import index
from typing import Any

from weft.compress import Deltas
from weft.compress.delta import inner_of, is_delta
from weft.compress.frame import Octets
from weft.errors import UsageError
from weft.runtime.algorithm_selector import AlgorithmSelector, reads_pay
from weft.runtime.bound_memory import (
    Bind,
    Bindable,
    Part,
    RawMemory,
    address_and_size,
    all_apart,
    apart,
    bytes_of,
    dtype_of,
    parts_of,
)
from weft.runtime.communicator import DEFAULT_TIMEOUT, join_group, out_of_shared_memory
from weft.runtime.engine_threads import Engines
from weft.runtime.heap_arrays import HeapCommunicator
from weft.runtime.p2p_messages import Message, MessageQueues, open_p2p_slots, receive_now, send_now
from weft.runtime.prepared_cache import (
    CallKey,
    CallSignature,
    PreparedCache,
    encoded_broadcast_key,
    require_compatible,
)
from weft.runtime.prepared_schedule import Stamps
from weft.runtime.private_arena import PrivateArena
from weft.runtime.streaming_stores import measured_cores
from weft.runtime.work import Work
from weft.schedule import Schedule

IN, OUT, DATA = 0, 1, 0  # the numbers of the buffers of every collective's schedule


class World(HeapCommunicator):
    """One rank's view of its world; created by ``weft.spawn`` and ``weft.world``.

    Collectives take contiguous numpy arrays or RawMemory, and are fastest on arrays of ``empty``.
    ``x`` is this rank's input. ``algorithm`` names one of weft.collectives; ``async_op``
    returns a Work at once. All ranks make the same calls in the same order.

    Threads: several threads of a rank may send and receive at once, to and from the same or
    different ranks, and wait for a Work or a Message, while one of them makes collective calls. Two
    threads that make collective calls at once need a ``group`` each; in one world the second call
    fails, with a DisagreeError on all ranks. The messages of one thread with
    one peer and tag keep their order.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        engines: Engines = Engines(),  # noqa: B008 - frozen, so one serves all
    ) -> None:
        super().__init__(name, rank, timeout=timeout, engines=engines)
        self._cache = PreparedCache(self)
        self.dispatch_cache = self._cache.dispatch_cache
        self.private_arena = PrivateArena(self)
        self._in_flight: list[Work] = []
        self._queues = MessageQueues()
        self._deltas = Deltas(rank)
        # Last, because another rank can make it fail: close() then finds all attributes.
        open_p2p_slots(self)
        self._cache.selector = self._agreed_selector()

    def barrier(self, *, async_op: bool = False) -> Work | None:
        """Wait until every rank has called it."""
        self.require_healthy()
        return self._call(("barrier", 0, "", "", -1, ""), [], None, async_op=async_op)

    def all_gather(
        self, out: Bindable, x: Bindable, *, algorithm: str | None = None, async_op: bool = False
    ) -> Work | None:
        """Fill ``out`` with the ``x`` of all ranks, in their order."""
        # A repeated call is one step into the native core. A named algorithm or a Work that
        # outlives the call needs the general path below, which also fills the cache.
        if not (algorithm or async_op) and self.dispatch_cache.arrays("all_gather", out, x, "", -1):
            return None
        there, total = address_and_size(out)
        here, nbytes = address_and_size(x, writable=False)
        if total != nbytes * self.num_ranks:
            raise UsageError(
                f"all_gather: output is {total} bytes, expected {nbytes}*{self.num_ranks} = "
                f"{nbytes * self.num_ranks}."
            )
        key = ("all_gather", total, dtype_of(x), "", -1, algorithm or "")
        read, held = apart((here, nbytes), (there, total), self.rank * nbytes)
        binds = [(IN, *read), (OUT, there, total)]
        return self._call_and_cache(key, binds, (out, held), x, async_op=async_op)

    def reduce_scatter(
        self,
        out: Bindable,
        x: Bindable,
        op: str = "sum",
        *,
        algorithm: str | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Reduce ``x`` over all ranks; ``out`` is this rank's part of the result."""
        if not (algorithm or async_op) and self.dispatch_cache.arrays(
            "reduce_scatter", out, x, op, -1
        ):
            return None
        there, nbytes = address_and_size(out)
        here, total = address_and_size(x, writable=False)
        if total != nbytes * self.num_ranks:
            raise UsageError(
                f"reduce_scatter: output is {nbytes} bytes, expected {total}/{self.num_ranks} = "
                f"{total / self.num_ranks:g}."
            )
        key = ("reduce_scatter", total, dtype_of(x), op, -1, algorithm or "")
        read, held = apart((here, total), (there, nbytes), -self.rank * nbytes)
        binds = [(IN, *read), (OUT, there, nbytes)]
        return self._call_and_cache(key, binds, (out, held), x, async_op=async_op)

    def all_reduce(
        self, x: Bindable, op: str = "sum", *, algorithm: str | None = None, async_op: bool = False
    ) -> Work | None:
        """Reduce ``x`` over all ranks, in place.

        Operators: sum, avg, prod, min, max, ``premul:FACTOR``; band, bor, bxor of integers.
        """
        if not (algorithm or async_op) and self.dispatch_cache.arrays(
            "all_reduce", None, x, op, -1
        ):
            return None
        here, nbytes = address_and_size(x)
        key = ("all_reduce", nbytes, dtype_of(x), op, -1, algorithm or "")
        return self._call_and_cache(key, [(DATA, here, nbytes)], None, x, async_op=async_op)

    def broadcast(
        self,
        x: Bindable,
        root: int = 0,
        *,
        algorithm: str | None = None,
        codec: str | None = None,
        keep_root: bool = False,
        async_op: bool = False,
    ) -> Work | None:
        """Copy the root's ``x`` into that of all ranks.

        With a ``codec`` it is sent encoded. After a lossy one all ranks hold the same bytes, also
        the root, unless ``keep_root``.
        """
        if codec is not None and codec != "none":
            require_compatible(codec, algorithm, keep_root=keep_root, async_op=async_op)
            if is_delta(codec):
                self._broadcast_delta(x, root, codec)
                return None
            return self._broadcast_encoded(x, root, codec, keep_root=keep_root, async_op=async_op)
        if not (algorithm or async_op) and self.dispatch_cache.arrays(
            "broadcast", None, x, "", root
        ):
            return None
        here, nbytes = address_and_size(x)
        key = ("broadcast", nbytes, dtype_of(x), "", self._root(root), algorithm or "")
        return self._call_and_cache(key, [(DATA, here, nbytes)], None, x, async_op=async_op)

    def _broadcast_encoded(
        self, x: Bindable, root: int, codec: str, *, keep_root: bool, async_op: bool
    ) -> Work | None:
        here, nbytes = address_and_size(x)
        key = encoded_broadcast_key(
            codec, nbytes, dtype_of(x), self._root(root), keep_root=keep_root
        )
        if self.num_ranks == 1:
            return None
        return self._call(key, [(DATA, here, nbytes)], x, async_op=async_op)

    def _broadcast_delta(self, x: Bindable, root: int, codec: str) -> None:
        dtype, inner = dtype_of(x), inner_of(codec)

        def plain(note: Octets) -> None:
            self.broadcast(note, root)

        def coded(change: Octets) -> None:
            memory = RawMemory(*address_and_size(change), dtype)
            self.broadcast(memory, root, codec=inner)

        self._deltas.broadcast(codec, dtype, bytes_of(x), self._root(root), plain, coded)

    def reduce(
        self,
        x: Bindable,
        root: int = 0,
        op: str = "sum",
        *,
        algorithm: str | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Reduce ``x`` over all ranks into the root's ``x``; the others stay unchanged."""
        here, nbytes = address_and_size(x)
        key = ("reduce", nbytes, dtype_of(x), op, self._root(root), algorithm or "")
        binds = [(IN, here, nbytes), (OUT, here, nbytes if self.rank == root else 0)]
        return self._call(key, binds, x, async_op=async_op)

    def all_to_all(
        self,
        out: Bindable,
        x: Bindable,
        out_splits: Sequence[int] | None = None,
        in_splits: Sequence[int] | None = None,
        *,
        algorithm: str | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Copy part j of rank i's ``x`` to part i of rank j's ``out``.

        Splits are elements for each rank (bytes of RawMemory); without them parts are equal.
        """
        if out_splits is None and in_splits is None:
            if not (algorithm or async_op) and self.dispatch_cache.arrays(
                "all_to_all", out, x, "", -1
            ):
                return None
            there, total = address_and_size(out)
            here, nbytes = address_and_size(x, writable=False)
            if total != nbytes:
                raise UsageError(f"all_to_all: output is {total} bytes, expected {nbytes}.")
            key = ("all_to_all", total, dtype_of(x), "", -1, algorithm or "")
            read, held = apart((here, nbytes), (there, total))
            binds = [(IN, *read), (OUT, there, total)]
            return self._call_and_cache(key, binds, (out, held), x, async_op=async_op)
        sent = parts_of(x, in_splits, self.num_ranks, writable=False)
        received = parts_of(out, out_splits, self.num_ranks, writable=True)
        return self._exchange(sent, received, dtype_of(x), (out, x), async_op=async_op)

    def exchange(
        self, outs: Sequence[Bindable], xs: Sequence[Bindable], *, async_op: bool = False
    ) -> Work | None:
        """Send ``xs[j]`` to rank j and receive ``outs[i]`` from rank i, of any sizes."""
        if len(outs) != self.num_ranks or len(xs) != self.num_ranks:
            raise UsageError(
                f"exchange: expected {self.num_ranks} inputs and outputs (got {len(xs)} and "
                f"{len(outs)})."
            )
        sent = [address_and_size(x, writable=False) for x in xs]
        received = [address_and_size(out) for out in outs]
        return self._exchange(sent, received, dtype_of(xs[0]), (outs, xs), async_op=async_op)

    def gather(
        self, out: Bindable | None, x: Bindable, root: int = 0, *, async_op: bool = False
    ) -> Work | None:
        """Fill the root's ``out`` with the ``x`` of all ranks; the others pass None."""
        here, nbytes = address_and_size(x, writable=False)
        filled = self._at_root(OUT, out, nbytes * self.num_ranks, root)
        read, held = (here, nbytes), None
        for _, start, size in filled:  # on the root
            read, held = apart(read, (start, size), self.rank * nbytes)
        key = ("gather", nbytes * self.num_ranks, dtype_of(x), "", self._root(root), "")
        return self._call(key, [(IN, *read), *filled], (out, x, held), async_op=async_op)

    def scatter(
        self, out: Bindable, x: Bindable | None, root: int = 0, *, async_op: bool = False
    ) -> Work | None:
        """Send every rank its part of the root's ``x``; the others pass None."""
        there, nbytes = address_and_size(out)
        binds, held = [(OUT, there, nbytes)], None
        for _, start, size in self._at_root(IN, x, nbytes * self.num_ranks, root):
            read, held = apart((start, size), (there, nbytes), -self.rank * nbytes)
            binds.append((IN, *read))
        key = ("scatter", nbytes * self.num_ranks, dtype_of(out), "", self._root(root), "")
        return self._call(key, binds, (out, x, held), async_op=async_op)

    def send(self, x: Bindable, to: int, tag: int = 0, *, async_op: bool = False) -> Message | None:
        """Send ``x`` to a rank; short messages return before they are received."""
        return self._message(x, to, tag, sends=True, async_op=async_op)

    def recv(
        self, x: Bindable, source: int, tag: int = 0, *, async_op: bool = False
    ) -> Message | None:
        """Receive ``x`` from a rank: its oldest message of that tag, as long as ``x``.

        64 MiB of messages with other tags may come before it. Of more the sender waits until they
        are received, and a message behind them does not arrive.
        """
        return self._message(x, source, tag, sends=False, async_op=async_op)

    def group(self, ranks: Sequence[int]) -> "World | None":
        """Create a world of some ranks; return None on the others.

        Every rank of this world calls it, with the ranks of its group.
        """
        return join_group(self, ranks, World)

    def algorithm_of(self, kind: str, nbytes: int) -> str:
        """Return the default algorithm of a call; bytes count as in the catalogue."""
        return self._cache.algorithm_of(kind, nbytes)

    def schedule_of(self, key: CallKey, num_ranks: int) -> Schedule:
        """Return the schedule of a call in a world of so many ranks on such a host."""
        return self._cache.schedule_of(key, num_ranks)

    def execute(self, key: CallKey, binds: list[Bind], *, stamps: bool = False) -> Stamps | None:
        """Execute a call on memory: numbers of the buffers of its schedule, addresses, bytes.

        With ``stamps``, return begin and end of this rank's commands, in ns of the monotonic clock.
        """
        if not stamps:
            self._call(key, binds, None, async_op=False)
            return None
        with self.exclusive(str(CallSignature(*key))):
            prepared, call = self._cache.find(key)
            prepared.execute(binds, call, stamps=True)
            taken: Stamps = prepared.stamps(self.rank).copy()
            return taken

    def _agreed_selector(self) -> AlgorithmSelector:
        """Return the thresholds of rank 0: all must agree, even if only some can read the file."""
        mine = AlgorithmSelector().measured(measured_cores())
        # Without permission to read other processes, pull copies everything before anybody reads.
        if self.stages or (self.rank == 0 and not reads_pay()):
            mine = replace(mine, staged_unreduced=mine.staged)
        limits = mine.eager, mine.eager_reduced, mine.staged_unreduced
        shown = self.agree("thresholds", " ".join(map(str, limits)).encode())
        eager, reduced, unreduced = map(int, shown[0].split())
        return replace(mine, eager=eager, eager_reduced=reduced, staged_unreduced=unreduced)

    def _call_and_cache(
        self, key: CallKey, binds: list[Bind], keep: Any, x: Bindable, *, async_op: bool
    ) -> Work | None:
        """Execute a call and add it to the dispatch cache."""
        work = self._call(key, binds, (keep, x), async_op=async_op)
        self._cache.keep(key, x.dtype)
        return work

    def invalidate(self, why: str) -> None:
        """Make every later call raise ``why``; drop what was prepared."""
        super().invalidate(why)
        self._cache.clear()
        self._in_flight.clear()
        self._queues.clear()

    def _call(self, key: CallKey, binds: list[Bind], keep: Any, *, async_op: bool) -> Work | None:
        # As exclusive() does; a context manager takes a microsecond more.
        if not self.member.try_enter_call():
            self.raise_second_thread(str(CallSignature(*key)))
        try:
            entry = self._cache.find(key)
            if not async_op and self.member.is_idle():
                entry.prepared.execute(binds, entry.call)
                return None
            self.require_healthy()
            job = entry.prepared.submit(binds, entry.call)
            work = Work(self, job, entry.call, lambda _: entry.call, keep)
            if not async_op:
                work.wait()
                return None
            # If the caller drops the Work, its memory must stay alive.
            self._in_flight = [each for each in self._in_flight if not each.is_done()]
            self._in_flight.append(work)
            return work
        finally:
            self.member.leave_call()

    def _message(
        self, x: Bindable, peer: int, tag: int, *, sends: bool, async_op: bool
    ) -> Message | None:
        key = (sends, peer, tag)
        if not (async_op or self.stages or self._queues.has(key)):
            if sends:
                send_now(self, self._queues, x, peer, tag)
            else:
                receive_now(self, x, peer, tag)
            return None
        message = Message(self, x, peer, tag, sends=sends)
        self._queues.join(message, key)
        if async_op:
            message.is_done()  # starts it at once, if possible
            return message
        message.wait()
        return None

    def _exchange(
        self,
        sent: Sequence[Part],
        received: Sequence[Part],
        dtype: str,
        keep: Any,
        *,
        async_op: bool,
    ) -> Work | None:
        key = ("exchange", 0, dtype, "", -1, "")
        sent, held = all_apart(sent, received)
        keep = keep, held
        if not self.stages:
            binds = [(number, *part) for number, part in enumerate([*sent, *received])]
            return self._call(key, binds, keep, async_op=async_op)
        try:
            copies, taken = self.private_arena.copies(sent)
        except OSError as error:
            self.fail_with(error, " in exchange")
            raise out_of_shared_memory(error) from error
        binds = [(number, *part) for number, part in enumerate([*copies, *received])]
        work = None
        try:
            work = self._call(key, binds, keep, async_op=async_op)
        finally:
            self.private_arena.release(taken, after=work)
        return work

    def _at_root(self, number: int, memory: Bindable | None, nbytes: int, root: int) -> list[Bind]:
        if self.rank != root:
            return []
        address, size = (0, 0) if memory is None else address_and_size(memory)
        if size != nbytes:
            raise UsageError(f"root: the memory is {size} bytes, expected {nbytes}.")
        return [(number, address, size)]

    def _root(self, root: int) -> int:
        root = index(root)  # of numpy as well
        if not 0 <= root < self.num_ranks:
            raise UsageError(f"root: must be from 0 to {self.num_ranks - 1} (got {root}).")
        return root
