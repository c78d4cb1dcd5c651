"""What all ranks of a broadcast agree on: the length of pieces, and when the last one came."""

from collections.abc import Callable

import torch

from weft.torch.hosts.chunk_size import LONG, Cut
from weft.torch.hosts.host_topology import Place
from weft.torch.hosts.inter_host_session import SECOND, Talk, wait_for


def agreed_cut(place: Place, talk: Talk, nbytes: int, root: int, choose: Callable[[], Cut]) -> Cut:
    """Give how the root of a long broadcast cuts it; it tells the others.

    ``choose`` is called on the root alone, or on every rank where all choose alike.
    """
    if nbytes < LONG:
        return choose()
    told = torch.zeros(2, dtype=torch.int64)
    if place.rank == root:
        told[:] = torch.tensor(choose())
        for host in place.to:  # straight to all of them: one way is shorter than a chain
            talk.send(told, place.hosts.leader(host, root))
    elif place.leads(root):
        wait_for(talk.recv(told, root))
    place.inside.broadcast(told, place.leader_place(root))
    piece, timed = told.tolist()
    return Cut(piece, timed=bool(timed))


def end_together(place: Place, talk: Talk, root: int, *, timed: bool) -> None:
    """Let the root wait for the last host of the chain, where that is asked for."""
    if not timed:
        return
    hosts, word = place.hosts, torch.zeros(1, dtype=torch.int64)
    last = hosts.leader((hosts.of[root] - 1) % hosts.num, root)
    if place.rank == last:
        talk.send(word, root, SECOND)
    elif place.rank == root:
        wait_for(talk.recv(word, last, SECOND))
