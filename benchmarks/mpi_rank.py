"""A rank of an MPI job, run by the Python of that MPI's environment: -m benchmarks.mpi_rank."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.collective_case import RankCall, arrays_of, collective_case_of
from benchmarks.lookups import lookups_of
from weft.local_runs.rank_server import RankWork, serve


class MpiRank:
    """One process of the job, at home in mpi4py's module ``MPI``."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._world = mpi.COMM_WORLD
        self.rank = self._world.rank
        first = mpi.Get_library_version().splitlines()[0].split(",")[0]
        self.about = " ".join(first.split())

    def barrier(self) -> None:
        """Wait for the other ranks."""
        self._world.Barrier()

    def open(self, case: dict[str, Any]) -> RankWork:
        """Use the calls that take memory as it is, without pickling."""
        if "operator" in case:
            return self._looking(case)
        exchange, world = collective_case_of(case, self._world.size), self._world
        x, out = arrays_of(exchange, self.rank)
        here, there = [x, self._mpi.FLOAT], [out, self._mpi.FLOAT]
        acts: dict[str, Callable[[], Any]] = {
            "broadcast": partial(world.Bcast, here),
            "all_gather": partial(world.Allgather, here, there),
            "reduce_scatter": partial(world.Reduce_scatter_block, here, there),
            "all_reduce": partial(world.Allreduce, self._mpi.IN_PLACE, here),
            "all_to_all": partial(world.Alltoall, here, there),
        }
        return RankCall(exchange, self.rank, x, out, acts[exchange.kind])

    def _looking(self, case: dict[str, Any]) -> RankWork:
        """Pool by torch, which is outside this environment, and exchange by MPI."""
        from benchmarks.torch_lookups import Serial, torch_bags

        lookups, here = lookups_of(case), (self.rank, self._world.size)

        def exchange(out: Any, x: Any) -> None:
            self._world.Alltoall([x.numpy(), self._mpi.FLOAT], [out.numpy(), self._mpi.FLOAT])

        return Serial(lookups, *here, torch_bags(lookups, *here), exchange)


def start_mpi() -> Any:
    """Start MPI for one thread, so that it need not guard itself against others."""
    import mpi4py

    mpi4py.rc.threads = False
    from mpi4py import MPI

    return MPI


if __name__ == "__main__":
    serve(sys.argv[1], MpiRank(start_mpi()))
