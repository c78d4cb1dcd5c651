"""Reductions over several hosts: shared memory inside, Gloo between one leader of each host.

Data are sent to another host once, however many ranks it has. Long tensors are split: while some
chunks are in flight, the ranks of a host reduce those before and after. Hosts are reduced in their
order, so results are bitwise equal on every rank and in every run.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from weft.collectives import host_leaders
from weft.collectives.host_leaders import chunk_bytes, pipelined
from weft.torch.backend.channel import DTYPE_NAMES
from weft.torch.hosts.chunks import chunks
from weft.torch.hosts.gloo_transport import Transfer
from weft.torch.hosts.host_topology import HostTopology
from weft.torch.hosts.inter_host_session import FIRST, InterHostSession, wait_for
from weft.torch.hosts.intra_host import ReductionSteps, divide_by, reduce_local, reduction_steps

Incoming = tuple[list[Tensor], list[Transfer]]  # what to reduce, and what to wait for first


def reduce(topology: HostTopology, x: Tensor, root: int, op: str) -> None:
    """Reduce inside every host, then on the root."""
    steps = reduction_steps(op, x)
    is_leader = topology.is_leader(root)
    at = topology.leader_local_rank(root)
    mine = x.view(-1) if topology.rank == root or not is_leader else x.view(-1).clone()
    blocks = chunks(mine, chunk_bytes(x.nbytes))
    incoming: dict[int, Incoming] = {}
    with topology.session("reduce", x.nbytes, x.dtype, op, f"root {root}") as session:

        def send(block: int) -> None:
            topology.intra_host.reduce(blocks[block], at, steps.intra_host)
            if topology.rank == root:
                incoming[block] = _from_all(topology, session, blocks[block])
            elif is_leader:
                session.send(blocks[block], root)

        def add(block: int) -> None:
            if topology.rank == root:
                _reduce_incoming(topology, blocks[block], incoming.pop(block), steps)

        pipelined(len(blocks), (send, add))


def all_reduce(topology: HostTopology, x: Tensor, op: str) -> None:
    """Reduce in place, on every rank."""
    reduction_steps(op, x)
    with topology.session("all_reduce", x.nbytes, x.dtype, op) as session:
        topology.nic_queues.run(
            session, host_leaders.all_reduce, {"data": x}, dtype=DTYPE_NAMES[x.dtype], op=op
        )


def reduce_scatter(topology: HostTopology, out: Tensor, x: Tensor, op: str) -> None:
    """Reduce the parts of each host's ranks on its leader, then scatter them."""
    steps, is_leader = reduction_steps(op, x), topology.is_leader()
    result = (
        torch.empty(len(topology.local_ranks) * out.numel(), dtype=x.dtype) if is_leader else None
    )
    if not x.numel():
        return
    with topology.session("reduce_scatter", x.nbytes, x.dtype, op) as session:
        parts = [] if result is None else torch.split(result, out.numel())
        own = [chunk for part in parts for chunk in chunks(part, chunk_bytes(out.nbytes))]
        incoming = [_from_all(topology, session, chunk) for chunk in own]
        for host in topology.destinations:
            for part in _partials(topology, x, host, steps.intra_host):
                if is_leader:
                    session.send(part, topology.hosts.leader(host))
        for number, part in enumerate(_partials(topology, x, topology.host, steps.intra_host)):
            if is_leader:
                own[number].copy_(part)
                _reduce_incoming(topology, own[number], incoming[number], steps)
    topology.intra_host.scatter(out.view(-1), result, 0)


def _from_all(topology: HostTopology, session: InterHostSession, mine: Tensor) -> Incoming:
    """Receive a tensor like ``mine`` from every other leader; return all in the order of hosts."""
    parts, transfers = [], []
    for host in range(topology.hosts.num):
        if host == topology.host:
            parts.append(mine)
            continue
        parts.append(torch.empty_like(mine))
        transfers += session.recv(parts[-1], topology.hosts.leader(host), FIRST)
    return parts, transfers


def _reduce_incoming(
    topology: HostTopology, out: Tensor, incoming: Incoming, steps: ReductionSteps
) -> None:
    parts, transfers = incoming
    wait_for(transfers)
    reduce_local(out, parts, steps.inter_host)
    if steps.averages:
        divide_by(out, len(topology.hosts.of))


def _partials(topology: HostTopology, x: Tensor, host: int, op: str) -> Iterator[Tensor]:
    """Reduce this host's parts for the ranks of a host, chunk by chunk, on the leader."""
    each = x.numel() // len(topology.hosts.of)
    sends_own = topology.intra_host.alone and not op.startswith("premul:")
    for rank in topology.hosts.ranks[host]:
        part = x.view(-1)[rank * each : (rank + 1) * each]
        for chunk in chunks(part, chunk_bytes(part.nbytes)):
            buffer = chunk.clone() if topology.is_leader() and not sends_own else chunk
            topology.intra_host.reduce(buffer, 0, op)
            yield buffer
