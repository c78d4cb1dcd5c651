"""A rank of oneCCL, started by Intel MPI's launcher: -m benchmarks.oneccl_rank SHIM KVS ADDRESS.

``SHIM`` is the library made of oneccl_shim.cpp, ``KVS`` a file by which ranks find each other.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.collective_case import RankCall, arrays_of, collective_case_of
from weft.local_runs.rank_server import serve

_TO_MEET = 60.0  # seconds


class OneCclRank:
    """One process of the job."""

    about = "oneCCL 2022.2.0"

    def __init__(self, shim: ctypes.CDLL, store: Path) -> None:
        self.rank, self._size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
        self._shim = shim
        shim.address_bytes.restype = ctypes.c_size_t
        address = ctypes.create_string_buffer(shim.address_bytes())
        if self.rank == 0:
            shim.create_store(address)
            made = store.with_suffix(".new")
            made.write_bytes(address.raw)
            made.rename(store)  # whole, or not there
        else:
            shim.join_store(_read(store))
        shim.join_ranks(self._size, self.rank)

    def barrier(self) -> None:
        """Wait for the other ranks."""
        self._shim.barrier()

    def open(self, case: dict[str, Any]) -> RankCall:
        """Bind the arguments of the call once."""
        exchange = collective_case_of(case, self._size)
        x, out = arrays_of(exchange, self.rank)
        here, there = (ctypes.c_void_p(array.ctypes.data) for array in (x, out))
        shim, item = self._shim, exchange.item_bytes
        whole, each = (ctypes.c_size_t(n) for n in (exchange.count, exchange.count // self._size))
        acts: dict[str, Callable[[], Any]] = {
            "broadcast": partial(shim.broadcast, here, whole, item),
            "all_gather": partial(shim.all_gather, here, there, each, item),
            "reduce_scatter": partial(shim.reduce_scatter, here, there, each, item),
            "all_reduce": partial(shim.all_reduce, here, whole, item),
            "all_to_all": partial(shim.all_to_all, here, there, each, item),
        }
        return RankCall(exchange, self.rank, x, out, acts[exchange.kind])


def _read(store: Path) -> bytes:
    """Return the address that rank 0 writes."""
    begin = time.monotonic()
    while not store.exists():
        if time.monotonic() - begin > _TO_MEET:
            raise TimeoutError(f"rank 0 wrote no address to {store}")
        time.sleep(0.01)
    return store.read_bytes()


if __name__ == "__main__":
    serve(sys.argv[3], OneCclRank(ctypes.CDLL(sys.argv[1]), Path(sys.argv[2])))
