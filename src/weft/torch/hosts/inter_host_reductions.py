"""Reductions over several hosts, by the schedules of ``weft.collectives.host_leaders``."""

from torch import Tensor

from weft.collectives import host_leaders
from weft.torch.backend.channel import DTYPE_NAMES
from weft.torch.hosts.host_topology import HostTopology
from weft.torch.hosts.intra_host import require_reduction


def reduce(topology: HostTopology, x: Tensor, root: int, op: str) -> None:
    """Reduce inside every host, then on the root."""
    require_reduction(op, x)
    with topology.session("reduce", x.nbytes, x.dtype, op, f"root {root}") as session:
        dtype = DTYPE_NAMES[x.dtype]
        topology.nic_queues.run(
            session, host_leaders.reduce, {"data": x}, root=root, dtype=dtype, op=op
        )


def all_reduce(topology: HostTopology, x: Tensor, op: str) -> None:
    """Reduce in place, on every rank."""
    require_reduction(op, x)
    with topology.session("all_reduce", x.nbytes, x.dtype, op) as session:
        dtype = DTYPE_NAMES[x.dtype]
        topology.nic_queues.run(session, host_leaders.all_reduce, {"data": x}, dtype=dtype, op=op)


def reduce_scatter(topology: HostTopology, out: Tensor, x: Tensor, op: str) -> None:
    """Reduce the parts of each host's ranks on its leader, then scatter them."""
    require_reduction(op, x)
    if not x.numel():
        return
    with topology.session("reduce_scatter", x.nbytes, x.dtype, op) as session:
        buffers, dtype = {"out": out, "in": x}, DTYPE_NAMES[x.dtype]
        topology.nic_queues.run(session, host_leaders.reduce_scatter, buffers, dtype=dtype, op=op)
