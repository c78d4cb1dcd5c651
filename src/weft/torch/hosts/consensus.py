"""What all ranks of a broadcast agree on: the length of pieces, and when the last one came."""

from collections.abc import Callable

import torch

from weft.torch.hosts.chunk_size import LONG, ChunkChoice
from weft.torch.hosts.host_topology import HostTopology
from weft.torch.hosts.inter_host_session import SECOND, InterHostSession, wait_for


def agree_on_chunk_size(
    topology: HostTopology,
    session: InterHostSession,
    nbytes: int,
    root: int,
    choose: Callable[[], ChunkChoice],
) -> ChunkChoice:
    """Give how the root of a long broadcast cuts it; it tells the others.

    ``choose`` is called on the root alone, or on every rank where all choose alike.
    """
    if nbytes < LONG:
        return choose()
    told = torch.zeros(2, dtype=torch.int64)
    if topology.rank == root:
        told[:] = torch.tensor(choose())
        for (
            host
        ) in topology.destinations:  # straight to all of them: one way is shorter than a chain
            session.send(told, topology.hosts.leader(host, root))
    elif topology.is_leader(root):
        wait_for(session.recv(told, root))
    topology.intra_host.broadcast(told, topology.leader_local_rank(root))
    piece, timed = told.tolist()
    return ChunkChoice(piece, timed=bool(timed))


def wait_for_last_host(
    topology: HostTopology, session: InterHostSession, root: int, *, timed: bool
) -> None:
    """Let the root wait for the last host of the chain, where that is asked for."""
    if not timed:
        return
    hosts, word = topology.hosts, torch.zeros(1, dtype=torch.int64)
    last = hosts.leader((hosts.of[root] - 1) % hosts.num, root)
    if topology.rank == last:
        session.send(word, root, SECOND)
    elif topology.rank == root:
        wait_for(session.recv(word, last, SECOND))
