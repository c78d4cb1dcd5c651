"""Collectives of several hosts that move elements: inside by shared memory, between by wire.

What must reach another host crosses once, however many ranks it has, and is shared there
chunk by chunk while the next ones are on the wire.
"""

import time
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from weft.errors import DisagreeError
from weft.torch.hosts.chunks import as_bytes, asked_before, chunks
from weft.torch.hosts.consensus import agreed_cut, end_together
from weft.torch.hosts.gloo_transport import Transfer
from weft.torch.hosts.host_topology import Place
from weft.torch.hosts.inter_host_session import LENGTH, Talk, wait_for


def broadcast(place: Place, x: Tensor, root: int) -> None:
    """Let chunks run along a chain of hosts, from the root's on."""
    hosts, leads, at = place.hosts, place.leads(root), place.leader_place(root)
    step = (place.host - hosts.of[root]) % hosts.num
    takes = leads and step > 0
    gives = leads and step < hosts.num - 1
    coming: dict[int, list[Transfer]] = {}
    begin = time.perf_counter()
    with place.talk("broadcast", x.nbytes, x.dtype, f"root {root}") as talk:
        cut = agreed_cut(place, talk, x.nbytes, root, partial(place.pace.cut, x.nbytes))
        blocks = chunks(as_bytes(x), cut.piece)

        def take(block: int) -> None:
            if takes:
                source = hosts.leader(place.sources[0], root)
                coming[block] = talk.recv(blocks[block], source)

        def give(block: int) -> None:
            wait_for(coming.pop(block, []))
            if gives:
                talk.send(blocks[block], hosts.leader(place.to[0], root))
            place.inside.broadcast(blocks[block], at)

        # Far ahead: a receive that is asked for while others come waits for Gloo's thread, which
        # holds what it needs as long as it reads.
        for block, asked in enumerate(asked_before(len(blocks), len(blocks))):
            for number in asked:
                take(number)
            give(block)
        end_together(place, talk, root, timed=cut.timed)
    if place.rank == root:
        place.pace.note((x.nbytes, "none"), cut, x.nbytes, time.perf_counter() - begin)


def all_gather(place: Place, out: Tensor, x: Tensor) -> None:
    """Join everyone's ``x`` in one tensor."""
    rooms = [place.parts_of(out, host) for host in range(place.hosts.num)]
    outs = list(torch.split(out.view(-1), x.numel())) if x.numel() else []
    with place.talk("all_gather", out.nbytes, x.dtype) as talk:
        if outs:
            _gather_everywhere(place, talk, outs, x, rooms)


def give_all(place: Place, outs: Sequence[Tensor], x: Tensor) -> None:
    """Fill a tensor for each rank with its ``x``; their sizes may differ."""
    rooms = [[outs[rank] for rank in ranks] for ranks in place.hosts.ranks]
    sizes = sum(out.nbytes for out in outs)
    with place.talk("all_gather of a list", sizes, x.dtype) as talk:
        _gather_everywhere(place, talk, outs, x, rooms)


def gather(place: Place, out: Tensor | None, x: Tensor, root: int) -> None:
    """Let the leaders' joined inputs go to the root."""
    hosts, at, given = place.hosts, place.leader_place(root), as_bytes(x)
    with place.talk("gather", x.nbytes, x.dtype, f"root {root}") as talk:
        if not x.numel():
            return
        rooms = {host: given.new_empty(len(hosts.ranks[host]), x.nbytes) for host in place.sources}
        coming = []
        for host in place.sources if out is not None else []:
            coming += talk.recv(rooms[host], hosts.leader(host))
        joined = given.new_empty(len(place.mates), x.nbytes) if place.leads(root) else None
        place.inside.gather(_flat(joined), given, at)
        if joined is not None and out is None:
            talk.send(joined, root)
        wait_for(coming)
    if out is not None and joined is not None:
        parts = as_bytes(out).view(len(hosts.of), -1)
        for host, room in {**rooms, place.host: joined}.items():
            parts[list(hosts.ranks[host])] = room


def scatter(place: Place, out: Tensor, x: Tensor | None, root: int) -> None:
    """Let the root give each leader what its host's ranks shall have."""
    hosts, at, taken = place.hosts, place.leader_place(root), as_bytes(out)
    with place.talk("scatter", out.nbytes, out.dtype, f"root {root}") as talk:
        if not out.numel():
            return
        mine = taken.new_empty(len(place.mates), out.nbytes) if place.leads(root) else None
        if x is not None:
            parts = as_bytes(x).view(len(hosts.of), -1)
            for host in place.to:
                talk.send(parts[list(hosts.ranks[host])], hosts.leader(host))
            mine = parts[list(place.mates)]
        elif mine is not None:
            wait_for(talk.recv(mine, root))
        place.inside.scatter(taken, _flat(mine), at)


def exchange(place: Place, outs: Sequence[Tensor], xs: Sequence[Tensor], *, even: bool) -> None:
    """Give a tensor to each rank and take one of each.

    No byte has two receivers, so leaders would save none: ranks send straight to each other.
    """
    nbytes = sum(x.nbytes for x in xs) if even else 0
    others = [rank for host in place.to for rank in place.hosts.ranks[host]]
    with place.talk("all_to_all", nbytes, xs[0].dtype) as talk:
        if not even:
            _compare_lengths(place, talk, outs, xs, others)
        for rank in others:
            talk.send(xs[rank], rank)
        coming = [transfer for rank in others for transfer in talk.recv(outs[rank], rank)]
        mates = place.mates
        if any(outs[rank].numel() + xs[rank].numel() for rank in mates) or not even:
            place.inside.exchange([outs[rank] for rank in mates], [xs[rank] for rank in mates])
        wait_for(coming)


def _gather_everywhere(
    place: Place, talk: Talk, outs: Sequence[Tensor], x: Tensor, rooms: Sequence[list[Tensor]]
) -> None:
    """Share inside a host, let leaders exchange what their hosts have, and share that."""
    alone, mates = place.inside.alone, place.mates
    if not alone:
        place.inside.exchange([outs[rank] for rank in mates], [x] * len(mates))
    given = [x] if alone else rooms[place.host]
    coming: list[tuple[Tensor, list[Transfer]]] = [
        (piece, talk.recv(piece, place.hosts.leader(host)) if place.leads() else [])
        for host in place.sources
        for piece in place.pieces(rooms[host], place.host)
    ]
    for host in place.to if place.leads() else []:
        for piece in place.pieces(given, host):
            talk.send(piece, place.hosts.leader(host))
    if alone and outs[place.rank].data_ptr() != x.data_ptr():
        as_bytes(outs[place.rank]).copy_(as_bytes(x))
    for piece, transfers in coming:
        wait_for(transfers)
        place.inside.broadcast(piece, 0)


def _compare_lengths(
    place: Place, talk: Talk, outs: Sequence[Tensor], xs: Sequence[Tensor], others: list[int]
) -> None:
    """Find out what does not fit: Gloo takes a short message for a long one, and says nothing."""
    lengths = {rank: torch.empty(1, dtype=torch.int64) for rank in others}
    coming = {rank: talk.recv(lengths[rank], rank, LENGTH) for rank in others}
    for rank in others:
        talk.send(torch.tensor([xs[rank].nbytes]), rank, LENGTH)
    for rank in others:
        wait_for(coming[rank])
        given = int(lengths[rank])
        if given != outs[rank].nbytes:
            raise DisagreeError(
                f"rank {rank} gives {given} bytes to rank {place.rank}, which takes "
                f"{outs[rank].nbytes}",
                "What one rank gives another must be as long as what that one takes.",
            )


def _flat(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.view(-1)
