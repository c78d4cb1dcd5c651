"""Agreement of all ranks of a broadcast: the chunk size, and the end of the last host."""

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
    """Return the root's choice for a long broadcast, on all ranks.

    ``choose`` is called on the root alone; for short broadcasts on every rank, with equal results.
    """
    if nbytes < LONG:
        return choose()
    sent = torch.zeros(2, dtype=torch.int64)
    if topology.rank == root:
        sent[:] = torch.tensor(choose())
        for host in topology.destinations:  # directly to all of them: one hop instead of a chain
            session.send(sent, topology.hosts.leader(host, root))
    elif topology.is_leader(root):
        wait_for(session.recv(sent, root))
    topology.intra_host.broadcast(sent, topology.leader_local_rank(root))
    piece, timed = sent.tolist()
    return ChunkChoice(piece, timed=bool(timed))


def wait_for_last_host(
    topology: HostTopology, session: InterHostSession, root: int, *, timed: bool
) -> None:
    """Make the root wait for the last host of the chain, if the broadcast is timed."""
    if not timed:
        return
    hosts, word = topology.hosts, torch.zeros(1, dtype=torch.int64)
    last = hosts.leader((hosts.of[root] - 1) % hosts.num, root)
    if topology.rank == last:
        session.send(word, root, SECOND)
    elif topology.rank == root:
        wait_for(session.recv(word, last, SECOND))
