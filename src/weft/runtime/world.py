"""A World: ranks of one machine that share memory and compute together."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from weft.errors import RunError, UsageError
from weft.runtime.cache import Asked, Cache
from weft.runtime.crew import DEFAULT_TIMEOUT, Crew, launch
from weft.runtime.mail import Message, open_slots
from weft.runtime.memory import Bindable, Memory, located
from weft.runtime.work import Work

IN, OUT, DATA = 0, 1, 0  # the numbers of the buffers of every collective's schedule

_names: dict[Any, str] = {}


def _dtype_of(x: Bindable) -> str:
    if isinstance(x, Memory):
        return x.dtype
    name = _names.get(x.dtype)
    if name is None:
        name = _names[x.dtype] = x.dtype.name
    return name


def _parts(memory: Bindable, splits: Sequence[int] | None, num_ranks: int, *, writable: bool
           ) -> list[tuple[int, int]]:
    """Cut memory into one part for each rank: address and bytes. Splits count elements."""
    address, nbytes = located(memory, writable=writable)
    if splits is None:
        if nbytes % num_ranks:
            raise UsageError(f"{nbytes} bytes cannot be shared evenly by {num_ranks} ranks.")
        sizes = [nbytes // num_ranks] * num_ranks
    else:
        item = 1 if isinstance(memory, Memory) else memory.itemsize
        sizes = [count * item for count in splits]
        if len(sizes) != num_ranks or sum(sizes) != nbytes or min(sizes) < 0:
            raise UsageError(f"splits {list(splits)} do not cut {nbytes} bytes for {num_ranks} ranks.")
    parts = []
    for size in sizes:
        parts.append((address, size))
        address += size
    return parts


class World(Crew):
    """One rank's view of its world; ``weft.spawn`` and ``weft.world`` make it.

    Collectives take contiguous numpy arrays or a Memory, fastest in arrays of ``empty``.
    ``x`` is this rank's input. ``algorithm`` names one of weft.collectives; ``async_op``
    returns a Work at once. All ranks make the same calls in the same order.
    """

    def __init__(self, name: str, rank: int, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        super().__init__(name, rank, timeout=timeout)
        open_slots(self)
        self._cache = Cache(self)
        self._under_way: list[Work] = []
        self._blocks: dict[int, int] = {}  # of empty(): block by address

    def barrier(self, *, async_op: bool = False) -> Work | None:
        """Return when every rank has come here."""
        self.require_sound()
        return self._call(Asked("barrier"), [], None, async_op=async_op)

    def all_gather(
        self, out: Bindable, x: Bindable, *, algorithm: str | None = None, async_op: bool = False
    ) -> Work | None:
        """Fill ``out`` with the ``x`` of all ranks, in their order."""
        there, total = located(out)
        here, nbytes = located(x, writable=False)
        if total != nbytes * self.num_ranks:
            raise UsageError(
                f"all_gather of {nbytes} bytes by {self.num_ranks} ranks does not fill {total}."
            )
        asked = Asked("all_gather", total, _dtype_of(x), algorithm=algorithm or "")
        binds = [(IN, here, nbytes), (OUT, there, total)]
        return self._call(asked, binds, (out, x), async_op=async_op)

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
        there, nbytes = located(out)
        here, total = located(x, writable=False)
        if total != nbytes * self.num_ranks:
            raise UsageError(
                f"reduce_scatter of {total} bytes by {self.num_ranks} ranks leaves not {nbytes}."
            )
        asked = Asked("reduce_scatter", total, _dtype_of(x), op, algorithm=algorithm or "")
        binds = [(IN, here, total), (OUT, there, nbytes)]
        return self._call(asked, binds, (out, x), async_op=async_op)

    def all_reduce(
        self, x: Bindable, op: str = "sum", *, algorithm: str | None = None, async_op: bool = False
    ) -> Work | None:
        """Reduce ``x`` over all ranks, in place.

        Operators: sum, avg, prod, min, max, ``premul:FACTOR``; band, bor, bxor of integers.
        """
        here, nbytes = located(x)
        asked = Asked("all_reduce", nbytes, _dtype_of(x), op, algorithm=algorithm or "")
        return self._call(asked, [(DATA, here, nbytes)], x, async_op=async_op)

    def broadcast(
        self, x: Bindable, root: int = 0, *, algorithm: str | None = None, async_op: bool = False
    ) -> Work | None:
        """Copy the root's ``x`` into that of all ranks."""
        here, nbytes = located(x)
        asked = Asked("broadcast", nbytes, _dtype_of(x), "", self._root(root), algorithm or "")
        return self._call(asked, [(DATA, here, nbytes)], x, async_op=async_op)

    def reduce(
        self,
        x: Bindable,
        root: int = 0,
        op: str = "sum",
        *,
        algorithm: str | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Reduce ``x`` over all ranks into the root's; those of the others stay."""
        here, nbytes = located(x)
        asked = Asked("reduce", nbytes, _dtype_of(x), op, self._root(root), algorithm or "")
        binds = [(IN, here, nbytes), (OUT, here, nbytes if self.rank == root else 0)]
        return self._call(asked, binds, x, async_op=async_op)

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
        """Part j of rank i's ``x`` becomes part i of rank j's ``out``.

        Splits are elements for each rank (bytes of a Memory); without them parts are even.
        """
        if out_splits is None and in_splits is None:
            there, total = located(out)
            here, nbytes = located(x, writable=False)
            if total != nbytes:
                raise UsageError(f"all_to_all of {nbytes} bytes does not fill {total}.")
            asked = Asked("all_to_all", total, _dtype_of(x), algorithm=algorithm or "")
            binds = [(IN, here, nbytes), (OUT, there, total)]
            return self._call(asked, binds, (out, x), async_op=async_op)
        sent = _parts(x, in_splits, self.num_ranks, writable=False)
        received = _parts(out, out_splits, self.num_ranks, writable=True)
        return self._exchange(sent, received, _dtype_of(x), (out, x), async_op=async_op)

    def gather(
        self, out: Bindable | None, x: Bindable, root: int = 0, *, async_op: bool = False
    ) -> Work | None:
        """Fill the root's ``out`` with the ``x`` of all ranks; the others pass None."""
        here, nbytes = located(x, writable=False)
        binds = [(IN, here, nbytes)]
        binds += self._at_root(OUT, out, nbytes * self.num_ranks, root)
        asked = Asked("gather", nbytes * self.num_ranks, _dtype_of(x), root=self._root(root))
        return self._call(asked, binds, (out, x), async_op=async_op)

    def scatter(
        self, out: Bindable, x: Bindable | None, root: int = 0, *, async_op: bool = False
    ) -> Work | None:
        """Give every rank its part of the root's ``x``; the others pass None."""
        there, nbytes = located(out)
        binds = [(OUT, there, nbytes)]
        binds += self._at_root(IN, x, nbytes * self.num_ranks, root)
        asked = Asked("scatter", nbytes * self.num_ranks, _dtype_of(out), root=self._root(root))
        return self._call(asked, binds, (out, x), async_op=async_op)

    def send(
        self, x: Bindable, to: int, tag: int = 0, *, async_op: bool = False
    ) -> Message | None:
        """Send ``x`` to a rank that receives it; little of it goes without waiting for that."""
        return self._message(Message(self, x, to, tag, sends=True), async_op=async_op)

    def recv(
        self, x: Bindable, source: int, tag: int = 0, *, async_op: bool = False
    ) -> Message | None:
        """Receive ``x`` from a rank: its oldest message of that tag, as long as ``x``."""
        return self._message(Message(self, x, source, tag, sends=False), async_op=async_op)

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = "float32") -> NDArray[Any]:
        """Give an array that all ranks can reach, at the same offset on all of them.

        Collective, with equal bytes everywhere; ``free`` gives it back, closing the world too.
        """
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        self.drain()
        self.agree(f"empty({nbytes} bytes)")
        block = self.blocks.take(max(nbytes, 1))
        self.member.reserve(self.region(self.rank) + block, nbytes)
        self.agree(f"empty({nbytes} bytes) taken")
        for rank in range(self.num_ranks):  # nobody pays for the first touch later
            self.member.populate(self.region(rank) + block, nbytes)
        array: NDArray[Any] = self.member.view(self.region(self.rank) + block, nbytes).view(kind)
        self._blocks[located(array)[0]] = block
        return array.reshape(shape)

    def free(self, array: NDArray[Any]) -> None:
        """Give the memory of an array of ``empty`` back. Collective; the array is invalid then."""
        address, nbytes = located(array)
        if address not in self._blocks:
            raise RunError("this array is not one that empty() of this world returned.")
        self.drain()
        self.agree(f"free({nbytes} bytes)")
        block = self._blocks.pop(address)
        self.member.release(self.region(self.rank) + block, nbytes)
        self.blocks.give_back(block)

    def group(self, ranks: Sequence[int]) -> "World | None":
        """Make a world of some ranks; None on those that are not among them.

        Every rank of this world calls it, with the group that it will be in, if any.
        """
        chosen = sorted(set(ranks))
        if not chosen or len(chosen) != len(ranks) or not 0 <= chosen[0] <= chosen[-1] < self.num_ranks:
            raise UsageError(f"ranks {list(ranks)} are no group of {self.num_ranks} ranks.")
        self.drain()
        if self.rank not in chosen:
            self.agree("group")
            self.agree("group made")
            return None
        with closing(launch(len(chosen))) if self.rank == chosen[0] else _Nothing() as launcher:
            name = launcher.name.encode() if launcher else b""
            name = self.agree("group", name)[chosen[0]]
            made = World(name.decode(), chosen.index(self.rank), timeout=self.timeout)
            self.agree("group made")
        return made

    def _call(
        self, asked: Asked, binds: list[tuple[int, int, int]], keep: Any, *, async_op: bool
    ) -> Work | None:
        ready = self._cache.find(asked)
        if not async_op and self.member.is_idle():
            ready.run(binds, ready.call)
            return None
        self.require_sound()
        job = ready.prepared.submit(binds, ready.call)
        work = Work(self, job, ready.call, ready.prepared.where, keep)
        if not async_op:
            work.wait()
            return None
        # Whoever drops a Work must not take the memory away from under it.
        self._under_way = [each for each in self._under_way if not each.is_done()]
        self._under_way.append(work)
        return work

    def _message(self, message: Message, *, async_op: bool) -> Message | None:
        if async_op:
            message.is_done()  # a message that can go goes now
            return message
        message.wait()
        return None

    def _exchange(
        self,
        sent: list[tuple[int, int]],
        received: list[tuple[int, int]],
        dtype: str,
        keep: Any,
        *,
        async_op: bool,
    ) -> Work | None:
        if self.stages:
            raise RunError("uneven parts need process_vm_readv, which this system forbids.")
        binds = [(number, *part) for number, part in enumerate([*sent, *received])]
        return self._call(Asked("exchange", 0, dtype), binds, keep, async_op=async_op)

    def _at_root(
        self, number: int, memory: Bindable | None, nbytes: int, root: int
    ) -> list[tuple[int, int, int]]:
        if self.rank != root:
            return []
        address, size = (0, 0) if memory is None else located(memory)
        if size != nbytes:
            raise UsageError(f"the root's memory has {size} bytes, {nbytes} are needed.")
        return [(number, address, size)]

    def _root(self, root: int) -> int:
        if not 0 <= root < self.num_ranks:
            raise UsageError(f"root {root} is not one of {self.num_ranks} ranks.")
        return root


class _Nothing:
    """In place of a launcher on ranks that launch nothing."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None
