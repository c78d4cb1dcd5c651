"""An mpi4py of one rank, copied into a fake environment: all that a rank of the bench calls."""

import os
import types

import numpy as np

rc = types.SimpleNamespace(threads=True)


def _copy(sent, received):
    if "FAKE_LIES" not in os.environ:
        np.copyto(received[0], sent[0])


class _World:
    rank, size = 0, 1

    def Barrier(self):  # noqa: N802 - mpi4py names it
        assert rc.threads is False

    def Bcast(self, buffer):  # noqa: N802
        pass

    def Allreduce(self, sent, buffer):  # noqa: N802
        assert sent == "in place"
        assert buffer[1] == "float"

    Allgather = Reduce_scatter_block = Alltoall = staticmethod(_copy)


MPI = types.SimpleNamespace(
    COMM_WORLD=_World(),
    FLOAT="float",
    IN_PLACE="in place",
    Get_library_version=lambda: "Fake MPI v1.0, package: none\nmore",
)
