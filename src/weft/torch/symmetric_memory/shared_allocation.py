"""Memory that other processes of this host can map: an anonymous file for each allocation.

    ┌──────────────┬────────────┐   pages of a memfd; peers open /proc/PID/fd/N and map them
    │ buffer       │ signal pad │
    └──────────────┴────────────┘

The file has no name: it ends with the last process that maps it, however these end.
"""

import ctypes
import mmap
import os
import weakref
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.errors import RunError

Octets = NDArray[np.uint8]

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
]
_FAILED = ctypes.c_void_p(-1).value


class SharedFile(NamedTuple):
    """What a peer needs to map an allocation."""

    pid: int
    fd: int
    buffer_bytes: int
    pad_bytes: int


def allocate(buffer_bytes: int, pad_bytes: int) -> tuple[SharedFile, Octets]:
    """Return new memory of zeros and its file, which is closed when the memory is not used."""
    fd = os.memfd_create("weft-symmetric", os.MFD_CLOEXEC)
    total = padded(buffer_bytes) + pad_bytes
    try:
        os.ftruncate(fd, total)
        memory = _mapped(fd, total)
    except OSError:
        os.close(fd)
        raise
    weakref.finalize(memory, _close, fd, os.getpid())
    return SharedFile(os.getpid(), fd, buffer_bytes, pad_bytes), memory


def map_peer(file: SharedFile, rank: int) -> Octets:
    """Map the allocation of another process."""
    try:
        fd = os.open(f"/proc/{file.pid}/fd/{file.fd}", os.O_RDWR)
        try:
            return _mapped(fd, padded(file.buffer_bytes) + file.pad_bytes)
        finally:
            os.close(fd)
    except OSError as error:
        raise RunError(
            f"rendezvous: pid {os.getpid()} cannot map the memory of rank {rank} (pid {file.pid}): "
            f"{error.strerror}.",
            "All ranks must run as one user in one pid namespace, with descriptors and addresses "
            "left (ulimit -n, -v).",
        ) from error


def padded(nbytes: int) -> int:
    """Return the bytes of whole pages."""
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _mapped(fd: int, nbytes: int) -> Octets:
    """Map a file; Python's mmap would keep a descriptor for every mapping (before 3.13)."""
    address = _LIBC.mmap(
        None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, ctypes.c_long(0)
    )
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
    weakref.finalize(memory, _LIBC.munmap, ctypes.c_void_p(address), ctypes.c_size_t(nbytes))
    return memory


def _close(fd: int, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has descriptors of its own
        os.close(fd)
