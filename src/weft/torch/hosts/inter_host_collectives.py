"""Collectives over several hosts: shared memory inside each host, Gloo between hosts.

Data are sent to another host once, however many ranks it has, and shared there chunk by chunk while
the next ones are in flight. Reductions run by the schedules of ``weft.collectives.host_leaders``.
"""

import time
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from weft.collectives import host_leaders
from weft.errors import DisagreeError
from weft.torch.backend.channel import DTYPE_NAMES
from weft.torch.hosts.chunks import as_bytes
from weft.torch.hosts.consensus import agree_on_chunk_size, wait_for_last_host
from weft.torch.hosts.gloo_transport import Transfer
from weft.torch.hosts.host_topology import HostTopology
from weft.torch.hosts.inter_host_session import LENGTH, InterHostSession, wait_for
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


def broadcast(topology: HostTopology, x: Tensor, root: int) -> None:
    """Broadcast chunks along a chain of hosts, starting at the root's."""
    begin = time.perf_counter()
    with topology.session("broadcast", x.nbytes, x.dtype, f"root {root}") as session:
        cut = agree_on_chunk_size(
            topology, session, x.nbytes, root, partial(topology.chunk_sizes.choose, x.nbytes)
        )
        topology.nic_queues.run(
            session, host_leaders.broadcast, {"data": x}, root=root, piece=cut.nbytes
        )
        wait_for_last_host(topology, session, root, timed=cut.timed)
    if topology.rank == root:
        topology.chunk_sizes.record((x.nbytes, "none"), cut, x.nbytes, time.perf_counter() - begin)


def all_gather(topology: HostTopology, out: Tensor, x: Tensor) -> None:
    """All-gather into one tensor."""
    with topology.session("all_gather", out.nbytes, x.dtype) as session:
        if x.numel():
            topology.nic_queues.run(session, host_leaders.all_gather, {"in": x, "out": out})


def all_gather_list(topology: HostTopology, outs: Sequence[Tensor], x: Tensor) -> None:
    """All-gather into a list of tensors, whose sizes may differ."""
    buffers = [[outs[rank] for rank in ranks] for ranks in topology.hosts.ranks]
    sizes = sum(out.nbytes for out in outs)
    with topology.session("all_gather of a list", sizes, x.dtype) as session:
        _gather_everywhere(topology, session, outs, x, buffers)


def gather(topology: HostTopology, out: Tensor | None, x: Tensor, root: int) -> None:
    """Gather on each leader, then on the root."""
    hosts, at, given = topology.hosts, topology.leader_local_rank(root), as_bytes(x)
    with topology.session("gather", x.nbytes, x.dtype, f"root {root}") as session:
        if not x.numel():
            return
        buffers = {
            host: given.new_empty(len(hosts.ranks[host]), x.nbytes) for host in topology.sources
        }
        incoming = []
        for host in topology.sources if out is not None else []:
            incoming += session.recv(buffers[host], hosts.leader(host))
        joined = (
            given.new_empty(len(topology.local_ranks), x.nbytes)
            if topology.is_leader(root)
            else None
        )
        topology.intra_host.gather(_flat(joined), given, at)
        if joined is not None and out is None:
            session.send(joined, root)
        wait_for(incoming)
    if out is not None and joined is not None:
        parts = as_bytes(out).view(len(hosts.of), -1)
        for host, buffer in {**buffers, topology.host: joined}.items():
            parts[list(hosts.ranks[host])] = buffer


def scatter(topology: HostTopology, out: Tensor, x: Tensor | None, root: int) -> None:
    """Send each leader the parts of its host's ranks; it scatters them."""
    hosts, at, taken = topology.hosts, topology.leader_local_rank(root), as_bytes(out)
    with topology.session("scatter", out.nbytes, out.dtype, f"root {root}") as session:
        if not out.numel():
            return
        mine = (
            taken.new_empty(len(topology.local_ranks), out.nbytes)
            if topology.is_leader(root)
            else None
        )
        if x is not None:
            parts = as_bytes(x).view(len(hosts.of), -1)
            for host in topology.destinations:
                session.send(parts[list(hosts.ranks[host])], hosts.leader(host))
            mine = parts[list(topology.local_ranks)]
        elif mine is not None:
            wait_for(session.recv(mine, root))
        topology.intra_host.scatter(taken, _flat(mine), at)


def exchange(
    topology: HostTopology, outs: Sequence[Tensor], xs: Sequence[Tensor], *, even: bool
) -> None:
    """Send a tensor to each rank and receive one from each.

    No byte has two receivers, so leaders would save nothing: ranks send directly to each other.
    """
    nbytes = sum(x.nbytes for x in xs) if even else 0
    others = [rank for host in topology.destinations for rank in topology.hosts.ranks[host]]
    with topology.session("all_to_all", nbytes, xs[0].dtype) as session:
        if not even:
            _compare_lengths(topology, session, outs, xs, others)
        for rank in others:
            session.send(xs[rank], rank)
        incoming = [transfer for rank in others for transfer in session.recv(outs[rank], rank)]
        local_ranks = topology.local_ranks
        if any(outs[rank].numel() + xs[rank].numel() for rank in local_ranks) or not even:
            topology.intra_host.exchange(
                [outs[rank] for rank in local_ranks], [xs[rank] for rank in local_ranks]
            )
        wait_for(incoming)


def _gather_everywhere(
    topology: HostTopology,
    session: InterHostSession,
    outs: Sequence[Tensor],
    x: Tensor,
    buffers: Sequence[list[Tensor]],
) -> None:
    """All-gather inside each host, exchange between leaders, then share inside each host."""
    alone, local_ranks = topology.intra_host.alone, topology.local_ranks
    if not alone:
        topology.intra_host.exchange([outs[rank] for rank in local_ranks], [x] * len(local_ranks))
    given = [x] if alone else buffers[topology.host]
    incoming: list[tuple[Tensor, list[Transfer]]] = [
        (piece, session.recv(piece, topology.hosts.leader(host)) if topology.is_leader() else [])
        for host in topology.sources
        for piece in topology.pieces(buffers[host], topology.host)
    ]
    for host in topology.destinations if topology.is_leader() else []:
        for piece in topology.pieces(given, host):
            session.send(piece, topology.hosts.leader(host))
    if alone and outs[topology.rank].data_ptr() != x.data_ptr():
        as_bytes(outs[topology.rank]).copy_(as_bytes(x))
    for piece, transfers in incoming:
        wait_for(transfers)
        topology.intra_host.broadcast(piece, 0)


def _compare_lengths(
    topology: HostTopology,
    session: InterHostSession,
    outs: Sequence[Tensor],
    xs: Sequence[Tensor],
    others: list[int],
) -> None:
    """Check the lengths first: Gloo accepts a short message for a long one without an error."""
    lengths = {rank: torch.empty(1, dtype=torch.int64) for rank in others}
    incoming = {rank: session.recv(lengths[rank], rank, LENGTH) for rank in others}
    for rank in others:
        session.send(torch.tensor([xs[rank].nbytes]), rank, LENGTH)
    for rank in others:
        wait_for(incoming[rank])
        given = int(lengths[rank])
        if given != outs[rank].nbytes:
            raise DisagreeError(
                f"rank {rank} sends {given} bytes to rank {topology.rank}, which receives "
                f"{outs[rank].nbytes}",
                "Pass matching splits on both ranks.",
            )


def _flat(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.view(-1)
