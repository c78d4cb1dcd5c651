"""The length of pieces that all ranks of a broadcast agree on."""

from collections.abc import Callable

import torch

from weft.torch.pace import LONG
from weft.torch.place import Place
from weft.torch.talk import Talk, wait_for


def agreed_piece(
    place: Place, talk: Talk, nbytes: int, root: int, choose: Callable[[], int]
) -> int:
    """Give the length of a piece that the root of a long broadcast chooses; it tells the others.

    ``choose`` is called on the root alone, or on every rank where all choose alike.
    """
    if nbytes < LONG:
        return choose()
    told = torch.zeros(1, dtype=torch.int64)
    if place.rank == root:
        told[0] = choose()
        for host in place.to:  # straight to all of them: one way is shorter than a chain
            talk.send(told, place.hosts.leader(host, root))
    elif place.leads(root):
        wait_for(talk.recv(told, root))
    place.inside.broadcast(told, place.leader_place(root))
    return int(told)
