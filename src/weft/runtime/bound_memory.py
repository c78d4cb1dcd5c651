"""Memory of the caller that is bound to the buffers of a schedule: arrays, or raw addresses."""

import ctypes
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft._core import address_of
from weft.errors import RunError, UnknownNameError, UsageError, nearest
from weft.runtime.heap_layout import HeapLayout
from weft.schedule import CommandKind

STAGED_BYTES = 32 << 10  # up to this size a copy into the heap is cheaper than a system call


class RawMemory(NamedTuple):  # made in a third of the time of a frozen dataclass
    """``nbytes`` from ``address`` on; the caller keeps the memory alive."""

    address: int
    nbytes: int
    dtype: str = "uint8"


Bindable = NDArray[Any] | RawMemory
Bind = tuple[int, int, int]
Part = tuple[int, int]  # address, bytes


def address_and_size(memory: Bindable, *, writable: bool = True) -> tuple[int, int]:
    """Return address and bytes of an array or RawMemory."""
    if isinstance(memory, RawMemory):
        return memory.address, memory.nbytes
    if memory.dtype.hasobject:
        raise UsageError(
            f"the array holds Python objects (dtype {memory.dtype}), which other processes cannot "
            "use.",
            "Convert it to numbers, or send pickled bytes.",
        )
    try:
        return address_of(memory, writable)
    except (ValueError, BufferError) as error:
        what = "read-only" if writable and not memory.flags.writeable else "not contiguous"
        raise RunError(
            f"the array cannot be bound: it is {what} ({error}).", "Pass a contiguous copy of it."
        ) from error


def bytes_of(memory: Bindable) -> NDArray[np.uint8]:
    """Return the bytes of an array or RawMemory, without a copy."""
    address, nbytes = address_and_size(memory)
    if isinstance(memory, RawMemory):
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
    return memory.reshape(-1).view(np.uint8)


def apart(x: Part, out: Part, own: int | None = None) -> tuple[Part, object]:
    """Return the part to read in place of ``x`` while ``out`` is written, and what keeps it alive.

    That is a copy where they overlap: other ranks may still read ``x``. Not where it lies ``own``
    bytes from the start of ``out``, at this rank's own part, which no other rank writes.
    """
    (here, nbytes), (there, total) = x, out
    if here >= there + total or there >= here + nbytes or here - there == own:
        return x, None
    held = bytes_of(RawMemory(here, nbytes)).copy()
    return address_and_size(held), held


def all_apart(xs: Sequence[Part], outs: Sequence[Part]) -> tuple[Sequence[Part], object]:
    """Return the same for several parts, of which none may overlap any output."""
    first, last = min(outs)[0], max(start + nbytes for start, nbytes in outs)
    if not any(start < last and first < start + nbytes for start, nbytes in xs):
        return xs, None
    found: list[tuple[Part, object]] = [(x, None) for x in xs]
    written = sorted(out for out in outs if out[1])
    starts = [start for start, _ in written]
    for number, x in enumerate(xs):
        after = bisect_left(starts, x[0] + x[1])  # outputs do not overlap each other
        if after and sum(written[after - 1]) > x[0]:
            found[number] = apart(x, written[after - 1])
    return [part for part, _ in found], [held for _, held in found]


_names: dict[Any, str] = {}


def dtype_of(x: Bindable) -> str:
    """Return the name of the dtype."""
    if isinstance(x, RawMemory):
        return x.dtype
    name = _names.get(x.dtype)
    if name is None:
        # Of the other byte order it has the same name, which would reduce it as it does not lie.
        name = _names[x.dtype] = x.dtype.name if x.dtype.isnative else x.dtype.str
    return name


def parts_of(
    memory: Bindable, splits: Sequence[int] | None, num_ranks: int, *, writable: bool
) -> list[tuple[int, int]]:
    """Split memory into one part for each rank: address and bytes. Splits count elements."""
    address, nbytes = address_and_size(memory, writable=writable)
    if splits is None:
        if nbytes % num_ranks:
            raise UsageError(
                f"all_to_all: {nbytes} bytes are not divisible by {num_ranks} ranks.",
                "Pass splits, or pad the array.",
            )
        sizes = [nbytes // num_ranks] * num_ranks
    else:
        item = 1 if isinstance(memory, RawMemory) else memory.itemsize
        sizes = [count * item for count in splits]
        if len(sizes) != num_ranks or sum(sizes) != nbytes or min(sizes) < 0:
            raise UsageError(
                f"splits: expected {num_ranks} sizes that add up to {nbytes} bytes "
                f"(got {list(splits)})."
            )
    parts = []
    for size in sizes:
        parts.append((address, size))
        address += size
    return parts


def unbacked_buffers(layout: HeapLayout, *, stages: bool) -> frozenset[int]:
    """Return the buffers that need no heap memory if the caller always binds memory.

    Other ranks read a staged copy of small buffers, or of all where they cannot read the memory
    of another process; these buffers need heap memory.
    """
    return frozenset(
        number
        for number, buffer in enumerate(layout.table.schedule.buffers)
        if buffer.role != "scratch"
        and not (
            layout.shared[number].any()
            and (stages or layout.sizes[number].max(initial=0) <= STAGED_BYTES)
        )
    )


class Binder:
    """Converts bound memory into the form of the native core, after checking its size."""

    def __init__(self, layout: HeapLayout, rank: int, *, elastic: bool) -> None:
        table = layout.table
        self._name = table.schedule.name
        self._buffers = table.buffers
        self._roles = [buffer.role for buffer in table.schedule.buffers]
        self._sizes = None if elastic else layout.sizes[:, rank].tolist()
        self._needed = [b for b in layout.unbacked if elastic or layout.sizes[b, rank]]
        row_of = np.repeat(np.arange(table.num_rows), np.diff(table.access_start))
        here = table.access_rank == table.thread_rank[table.thread[row_of]]
        coded = np.isin(table.kind[row_of], (CommandKind.ENCODE, CommandKind.DECODE))
        fixed = (table.kind[row_of] == CommandKind.KERNEL) | (coded & ~here)
        self._fixed = set(np.unique(table.access_buffer[fixed]).tolist())

    def binds(self, memory: Mapping[str, Bindable]) -> list[Bind]:
        """Return buffer number, address and bytes of everything bound."""
        binds = [self._bind(name, what) for name, what in memory.items()]
        for number in self._needed:
            if self._buffers[number] not in memory:
                raise RunError(f"bind: {self._buffers[number]!r} of {self._name} is missing.")
        return binds

    def _bind(self, name: str, memory: Bindable) -> Bind:
        if name not in self._buffers:
            raise UnknownNameError(
                f"bind: {self._name} has no buffer {name!r}.", nearest(name, self._buffers)
            )
        number = self._buffers.index(name)
        if number in self._fixed or self._roles[number] == "scratch":
            raise RunError(
                f"bind: {name!r} of {self._name} cannot be bound.",
                "Scratch, and buffers of kernels and remote codecs, use the schedule's memory.",
            )
        address, nbytes = address_and_size(memory, writable=self._roles[number] != "in")
        if self._sizes is not None and nbytes != self._sizes[number]:
            raise RunError(f"bind: {name!r} has {nbytes} bytes, expected {self._sizes[number]}.")
        return number, address, nbytes
