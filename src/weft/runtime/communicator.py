"""A Communicator: processes of one machine that share a heap, synchronize and fail together."""

import atexit
import contextlib
import ctypes
import hashlib
import os
import resource
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

from weft._core import Launcher, Member
from weft.errors import DisagreeError, RunError, SharedMemoryError, UsageError, WeftError
from weft.runtime.block_allocator import PAGE, BlockAllocator, round_up
from weft.runtime.bound_memory import STAGED_BYTES
from weft.runtime.core_placement import num_cores, own_core
from weft.runtime.engine_threads import Cores, Engines, move
from weft.runtime.faults import Faults, require_timeout
from weft.runtime.ptrace_permission import allow_sibling_reads
from weft.runtime.stale_segments import SHARED_MEMORY, remove_stale_segments
from weft.runtime.streaming_stores import set_streaming_threshold

T = TypeVar("T", bound="Communicator")
DEFAULT_TIMEOUT = 300.0
_MOST_ADDRESSES = 1 << 45  # a quarter of what Linux gives a process on x86-64
_TO_START = 60.0  # seconds, at least: the other ranks import their modules first
_MOST_SHOWN = 960  # bytes of one payload of ``agree``


class Communicator(Faults):
    """Ranks, their heap and their threads: what a World has before its collectives.

    Its methods are collective: every rank calls them, in the same order, from one thread at a
    time (``exclusive``). ``set_timeout``, ``recent`` and ``close`` may be called by any thread.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        engines: Engines = Engines(),  # noqa: B008 - frozen, so one serves all
    ) -> None:
        require_timeout(timeout)
        engines.require_possible()
        set_streaming_threshold()
        super().__init__(_enter(name, rank, max(timeout, _TO_START)), rank, timeout)
        # The rest of a rank's region is its private arena, which needs no agreement of the ranks.
        self.common_bytes = self.member.region_bytes // PAGE * 3 // 4 * PAGE
        self.blocks = BlockAllocator(self.common_bytes)
        self.engines = Engines()
        self._numbers: dict[str, int] = {}
        self._callers_cores: Cores | None = None  # affinity of the calling thread before
        masks = self._masks()
        self._num_cores = num_cores(masks)
        self._own_core = own_core(rank, masks)
        self.stages = not (self._can_read_all() or (allow_sibling_reads() and self._can_read_all()))
        self.member.set_staging(self.stages, STAGED_BYTES)
        # All have mapped it; without a name nothing is left behind if a rank is killed.
        if rank == 0:
            self.member.unlink()
        self.member.set_timeout(timeout)
        self.engine_numbers(())
        self._move_caller(self._own_core)
        self.set_engines(engines)
        _open_worlds.add(self)

    def agree(self, call: str, payload: bytes = b"") -> list[bytes]:
        """Return the payloads of all ranks; raise unless all make the same ``call``."""
        self.require_healthy()
        mine = call.encode()[:400] + b"\0" + payload
        with self.exclusive(call):
            self.member.show(mine[:_MOST_SHOWN])
            self._wait_for_all(call)
            shown = [self.member.shown(rank).split(b"\0", 1) for rank in range(self.num_ranks)]
            self._wait_for_all(call)
        self._require_same_call([name.decode(errors="replace") for name, _ in shown])
        return [text for _, text in shown]

    def reserve(self, block: int, nbytes: int) -> None:
        """Commit memory of this rank's region."""
        try:
            self.member.reserve(self.region(self.rank) + block, nbytes)
        except OSError as error:
            raise out_of_shared_memory(error) from error

    def attempt(self, what: str, act: Callable[[], None]) -> WeftError | None:
        """Call ``act`` on every rank; if it fails on one, return the failure on all of them."""
        failure: WeftError | None = None
        try:
            act()
        except WeftError as error:
            failure = error
        kind = "memory" if isinstance(failure, SharedMemoryError) else ""
        told = f"{kind}\0{failure.message}\0{failure.hint}" if failure else ""
        shown = self.agree(what, told.encode()[:500])
        complaints = [(rank, text) for rank, text in enumerate(shown) if text]
        if failure is None and complaints:
            rank, text = complaints[0]
            kind, message, hint, *_ = (*text.decode(errors="replace").split("\0"), "")
            raised = SharedMemoryError if kind else RunError
            return raised(f"rank {rank} failed at {what}: {message}", hint)
        return failure

    def region(self, rank: int) -> int:
        """Return the offset in the heap at which a rank's region starts."""
        return self.member.control_bytes + rank * self.member.region_bytes

    @property
    def is_oversubscribed(self) -> bool:
        """Whether there are more ranks than cores."""
        return self.num_ranks > self._num_cores

    @property
    def has_core_for_worker(self) -> bool:
        """Whether the worker thread has a core besides that of the calling thread."""
        return self.engines != Engines() or 2 * self.num_ranks <= self._num_cores

    @property
    def paths(self) -> dict[str, str]:
        """How memory of another rank is reached, by where it lies."""
        ordinary = "a copy in the heap" if self.stages else "process_vm_readv"
        return {"heap": "shared memory", "ordinary": ordinary}

    def drain(self) -> None:
        """Wait for the jobs of the worker, so that calls keep their order."""
        if not self.member.is_idle():
            self.require_healthy()  # a forked child has no worker
            self.member.drain()

    def engine_numbers(self, queues: tuple[str, ...]) -> dict[str, int]:
        """Return the engine number of each queue; a queue keeps its engine."""
        for queue in queues:
            taken = len(self._numbers)
            self._numbers.setdefault(queue, taken % (self.engines.number or taken + 1) + 1)
        threads = self.num_ranks * (1 + self._num_engines)
        self.member.set_spins(threads <= self._num_cores)
        self.member.set_core_for_worker(self.has_core_for_worker)
        self._place_threads()
        return self._numbers

    def set_engines(self, engines: Engines) -> None:
        """Set the cores and priority of this rank's engines and worker; each rank for itself.

        Threads are restarted, since an unprivileged thread cannot lower its nice value again. The
        number of engines holds for schedules that are prepared from now on.
        """
        if engines == self.engines:
            return
        engines.require_possible()
        with self.exclusive("set_engines"):
            self.drain()
            self.member.end_threads()
            self.engines = engines
            self.member.set_core_for_worker(self.has_core_for_worker)
            self._move_caller(engines.cores_of_caller() or self._own_core)
            self._place_threads()

    def threads(self) -> tuple[int, ...]:
        """Return the kernel thread ids of the worker and the engines of this rank."""
        with self.exclusive("threads"):  # it starts what a call of another thread may use
            return tuple(self.member.start_threads(self._num_engines))

    @property
    def _num_engines(self) -> int:
        return max(self._numbers.values(), default=0)

    def _place_threads(self) -> None:
        """Start and place the threads; without Engines they start when they are first needed."""
        if self.engines != Engines():
            for thread in self.threads():
                self.engines.place(thread)

    def _move_caller(self, cores: Cores | None) -> None:
        """Pin the calling thread to its cores, or restore its affinity."""
        before = self._callers_cores
        if cores is None:
            self._callers_cores = None
            move(0, before)
        else:
            self._callers_cores = before or frozenset(os.sched_getaffinity(0))
            move(0, cores)

    def close(self) -> None:
        """Leave the world. Arrays of its buffers stay valid, everything else is closed."""
        if not self._closed:
            self._closed = "this world is closed."
            self.member.leave()  # first: its worker may be executing a prepared schedule
            self._move_caller(None)
            self.invalidate(self._closed)

    def invalidate(self, why: str) -> None:
        """Make every later call raise ``why``."""
        self._closed = why
        _open_worlds.discard(self)

    def set_timeout(self, seconds: float) -> None:
        """Set how many seconds this rank waits for the others at any one point."""
        require_timeout(seconds)
        self.timeout = seconds
        self.member.set_timeout(seconds)

    def __enter__(self: T) -> T:  # noqa: PYI019 - Self needs Python 3.11
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not self._closed:
            self.fail_with(error)
        self.close()

    def __del__(self) -> None:
        """Leave with the GIL released: a Python codec of the worker may be waiting for it.

        If the worker itself drops the last reference, another thread has to join it.
        """
        member = getattr(self, "member", None)  # missing if opening the heap failed
        if member is None or self._closed:
            return
        if member.is_worker():
            threading.Thread(target=Communicator._leave, args=(self,)).start()
        else:
            self._leave()

    def _leave(self) -> None:
        self.member.leave()

    def __repr__(self) -> str:
        return f"<World: rank {self.rank} of {self.num_ranks}>"

    def _wait_for_all(self, call: str) -> None:
        try:
            abort = self.member.barrier()
        except BaseException as error:  # this rank arrived at the barrier, but does not go on
            self.fail_with(error, f" at {call}")
            raise
        if abort:
            self.raise_abort(abort, lambda _: call)

    def _require_same_call(self, calls: list[str]) -> None:
        for rank, call in enumerate(calls):
            if call != calls[0]:
                failure = DisagreeError(
                    f"rank 0 calls {calls[0]}, rank {rank} calls {call}.",
                    "Every rank must make the same calls in the same order.",
                )
                raise self._recorded(failure)

    def _can_read_all(self) -> bool:
        """Check whether every rank may read the memory of every other one."""
        probe = (ctypes.c_uint64 * 1)()
        shown = self.agree("memory", ctypes.addressof(probe).to_bytes(8, "little"))
        mine = all(
            rank == self.rank or self.member.can_read(rank, int.from_bytes(address, "little"))
            for rank, address in enumerate(shown)
        )
        return all(answer == b"y" for answer in self.agree("memory read", b"y" if mine else b"n"))

    def _masks(self) -> list[int]:
        """Return the affinity of every rank as a bit mask."""
        mine = sum(1 << core for core in os.sched_getaffinity(0))
        shown = self.agree("world", mine.to_bytes(512, "little"))
        return [int.from_bytes(mask, "little") for mask in shown]


_open_worlds: "weakref.WeakSet[Communicator]" = weakref.WeakSet()


@atexit.register
def close_open_worlds() -> None:
    """Close the open worlds of a process that exits; report its exception to the other ranks."""
    for world in list(_open_worlds):
        error = getattr(sys, "last_value", None)
        if error is not None:
            world.fail_with(error)
        world.close()


def _invalidate_worlds() -> None:
    """Invalidate the worlds of a forked child: it is not a rank."""
    for world in list(_open_worlds):
        world.invalidate(
            f"this process was forked from rank {world.rank} and is not a rank of its world."
        )


os.register_at_fork(after_in_child=_invalidate_worlds)


def out_of_shared_memory(error: OSError) -> SharedMemoryError:
    """Return the error of a system that has no more shared memory."""
    return SharedMemoryError(
        f"{error.strerror}.",
        "Make /dev/shm larger (in a container: --shm-size), or allocate less.",
    )


def _enter(name: str, rank: int, timeout: float) -> Member:
    try:
        return Member(name, rank, timeout)
    except (OSError, RuntimeError, IndexError) as error:
        raise RunError(
            f"rank {rank} cannot join its world: {error}.",
            "Start every rank once, with one version of weft, while their launcher still runs.",
        ) from error


def create_segment(num_ranks: int) -> Launcher:
    """Create the shared memory of a world, after removing stale segments of dead ones."""
    if num_ranks < 1:
        raise UsageError(f"ranks: must be >= 1 (got {num_ranks}).")
    with contextlib.suppress(OSError):  # not fatal: only old files stay
        remove_stale_segments()
    room = os.statvfs(SHARED_MEMORY)
    # Addresses for twice the size of /dev/shm, so that fragmentation of the region never fails
    # before memory does. A size of zero means that there is no limit.
    most = _MOST_ADDRESSES
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:  # of everything that a process maps, other groups included
        most = min(most, limit // 8)
    nbytes = min(2 * room.f_blocks * room.f_frsize or most, most // num_ranks)
    try:
        return Launcher(num_ranks, round_up(nbytes, PAGE))
    except OSError as error:
        raise RunError(
            f"cannot create shared memory for {num_ranks} ranks: {error.strerror}.",
            f"Check the size and the permissions of {SHARED_MEMORY}.",
        ) from error


def join_group(comm: Communicator, ranks: Sequence[int], kind: type[T]) -> T | None:
    """Create a world of ``ranks``: the first creates its segment, the others join it.

    All ranks of the communicator synchronize: when the names are known, and when all have joined,
    so that no launcher is closed early. Groups that share no rank are made at once. If a rank
    fails, or names other ranks for a group, all ranks raise.
    """
    chosen, made, name = sorted(set(ranks)), None, b""
    with comm.exclusive("group"), contextlib.ExitStack() as stack:
        comm.drain()

        def create() -> None:
            nonlocal name
            _require_distinct(ranks, comm.num_ranks)
            if comm.rank == chosen[0]:
                launcher = stack.enter_context(contextlib.closing(create_segment(len(chosen))))
                name = launcher.name.encode()

        if failure := comm.attempt("ranks of a group", create):
            raise failure
        digest = hashlib.blake2b(repr(chosen).encode(), digest_size=16).digest()
        shown = comm.agree("group", digest + name)

        def join() -> None:
            nonlocal made
            if comm.rank in chosen:
                _require_same_group([shown[rank][: len(digest)] for rank in chosen], chosen)
                place, segment = chosen.index(comm.rank), shown[chosen[0]][len(digest) :].decode()
                made = kind(segment, place, timeout=comm.timeout, engines=comm.engines)

        if failure := comm.attempt("group made", join):
            if made is not None:
                made.close()
            raise failure
    return made


def _require_distinct(ranks: Sequence[int], num_ranks: int) -> None:
    outside = [rank for rank in ranks if not 0 <= rank < num_ranks]
    if not ranks or len(set(ranks)) != len(ranks) or outside:
        raise UsageError(
            f"ranks: expected distinct ranks from 0 to {num_ranks - 1} (got {list(ranks)})."
        )


def _require_same_group(digests: list[bytes], chosen: list[int]) -> None:
    for rank, digest in zip(chosen, digests, strict=True):
        if digest != hashlib.blake2b(repr(chosen).encode(), digest_size=16).digest():
            raise DisagreeError(
                f"ranks: rank {rank} makes a group of other ranks than {chosen}.",
                "Every rank of a group must name the same ranks.",
            )
