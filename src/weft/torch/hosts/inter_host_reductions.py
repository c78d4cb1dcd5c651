"""Reductions over several hosts: shared memory inside, Gloo between one leader of each host.

Data are sent to another host once, however many ranks it has. Long tensors are split: while some
chunks are in flight, the ranks of a host reduce those before and after. Hosts are reduced in their
order, so results are bitwise equal on every rank and in every run.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from weft.torch.hosts.chunks import chunk_bytes, chunks, pipelined
from weft.torch.hosts.gloo_transport import Transfer
from weft.torch.hosts.host_topology import HostTopology
from weft.torch.hosts.inter_host_session import FIRST, SECOND, InterHostSession, wait_for
from weft.torch.hosts.intra_host import ReductionSteps, divide_by, reduce_local, reduction_steps

SMALL = 64 << 10  # bytes up to which every leader sends everything to all others: one step, not two

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
    steps = reduction_steps(op, x)
    with topology.session("all_reduce", x.nbytes, x.dtype, op) as session:
        if x.nbytes <= SMALL:
            _all_reduce_at_once(topology, session, x.view(-1), steps)
        else:
            _all_reduce_in_parts(topology, session, x.view(-1), steps)


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


def _all_reduce_at_once(
    topology: HostTopology, session: InterHostSession, x: Tensor, steps: ReductionSteps
) -> None:
    topology.intra_host.reduce(x, 0, steps.intra_host)
    if topology.is_leader() and x.numel():
        given = x.clone()
        for host in topology.destinations:
            session.send(given, topology.hosts.leader(host))
        _reduce_incoming(topology, x, _from_all(topology, session, x), steps)
    topology.intra_host.broadcast(x, 0)


def _all_reduce_in_parts(
    topology: HostTopology, session: InterHostSession, x: Tensor, steps: ReductionSteps
) -> None:
    """Reduce-scatter every block between the leaders, then all-gather it."""
    num, is_leader = topology.hosts.num, topology.is_leader()
    blocks = chunks(x, chunk_bytes(x.nbytes // num) * num)
    incoming: dict[int, Incoming] = {}

    def scatter_parts(block: int) -> None:
        topology.intra_host.reduce(blocks[block], 0, steps.intra_host)
        if is_leader:
            incoming[block] = _exchange_parts(topology, session, blocks[block])

    def add(block: int) -> None:
        if is_leader:
            _reduce_incoming(
                topology, blocks[block].tensor_split(num)[topology.host], incoming.pop(block), steps
            )
            incoming[block] = [], _all_gather_parts(topology, session, blocks[block])

    def share(block: int) -> None:
        if is_leader:
            wait_for(incoming.pop(block)[1])
        topology.intra_host.broadcast(blocks[block], 0)

    pipelined(len(blocks), (scatter_parts, add, share))


def _exchange_parts(topology: HostTopology, session: InterHostSession, block: Tensor) -> Incoming:
    """Send every leader its part of a block, and receive their data of this one's part."""
    parts = block.tensor_split(topology.hosts.num)
    for host in topology.destinations:
        session.send(parts[host], topology.hosts.leader(host))
    return _from_all(topology, session, parts[topology.host])


def _all_gather_parts(
    topology: HostTopology, session: InterHostSession, block: Tensor
) -> list[Transfer]:
    """Send every leader the part that was reduced here, and receive theirs.

    A leader sends a part back only after it received this one's, so that send is complete.
    """
    parts = block.tensor_split(topology.hosts.num)
    for host in topology.destinations:
        session.send(parts[topology.host], topology.hosts.leader(host), SECOND)
    return [
        transfer
        for host in topology.sources
        for transfer in session.recv(parts[host], topology.hosts.leader(host), SECOND)
    ]


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
