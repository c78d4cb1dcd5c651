"""Reductions over several hosts: shared memory inside, one leader of each host at the wire.

What must reach another host crosses once, however many ranks it has. Long tensors are cut:
while some chunks are on the wire, the ranks of a host join those before and after. Hosts
are joined in their order, so a result is the same bits on every rank and in every run.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from weft.torch.hosts.chunks import chunk_bytes, chunks, pipelined
from weft.torch.hosts.gloo_transport import Transfer
from weft.torch.hosts.host_topology import Place
from weft.torch.hosts.inter_host_session import FIRST, SECOND, Talk, wait_for
from weft.torch.hosts.intra_host import Steps, divide, join, steps_of

SMALL = 64 << 10  # bytes that every leader sends whole to all others: one step, not two

Coming = tuple[list[Tensor], list[Transfer]]  # what to join, and what to wait for first


def reduce(place: Place, x: Tensor, root: int, op: str) -> None:
    """Let every host's result go to the root, which joins them."""
    steps, leads, at = steps_of(op, x), place.leads(root), place.leader_place(root)
    mine = x.view(-1) if place.rank == root or not leads else x.view(-1).clone()
    blocks = chunks(mine, chunk_bytes(x.nbytes))
    coming: dict[int, Coming] = {}
    with place.talk("reduce", x.nbytes, x.dtype, op, f"root {root}") as talk:

        def send(block: int) -> None:
            place.inside.reduce(blocks[block], at, steps.inside)
            if place.rank == root:
                coming[block] = _from_all(place, talk, blocks[block])
            elif leads:
                talk.send(blocks[block], root)

        def add(block: int) -> None:
            if place.rank == root:
                _add(place, blocks[block], coming.pop(block), steps)

        pipelined(len(blocks), (send, add))


def all_reduce(place: Place, x: Tensor, op: str) -> None:
    """Reduce in place, on every rank."""
    steps = steps_of(op, x)
    with place.talk("all_reduce", x.nbytes, x.dtype, op) as talk:
        if x.nbytes <= SMALL:
            _all_reduce_at_once(place, talk, x.view(-1), steps)
        else:
            _all_reduce_in_parts(place, talk, x.view(-1), steps)


def reduce_scatter(place: Place, out: Tensor, x: Tensor, op: str) -> None:
    """Let each leader join what all hosts have for its own ranks."""
    steps, leads = steps_of(op, x), place.leads()
    result = torch.empty(len(place.mates) * out.numel(), dtype=x.dtype) if leads else None
    if not x.numel():
        return
    with place.talk("reduce_scatter", x.nbytes, x.dtype, op) as talk:
        parts = [] if result is None else torch.split(result, out.numel())
        own = [chunk for part in parts for chunk in chunks(part, chunk_bytes(out.nbytes))]
        coming = [_from_all(place, talk, chunk) for chunk in own]
        for host in place.to:
            for part in _partials(place, x, host, steps.inside):
                if leads:
                    talk.send(part, place.hosts.leader(host))
        for number, part in enumerate(_partials(place, x, place.host, steps.inside)):
            if leads:
                own[number].copy_(part)
                _add(place, own[number], coming[number], steps)
    place.inside.scatter(out.view(-1), result, 0)


def _all_reduce_at_once(place: Place, talk: Talk, x: Tensor, steps: Steps) -> None:
    place.inside.reduce(x, 0, steps.inside)
    if place.leads() and x.numel():
        given = x.clone()
        for host in place.to:
            talk.send(given, place.hosts.leader(host))
        _add(place, x, _from_all(place, talk, x), steps)
    place.inside.broadcast(x, 0)


def _all_reduce_in_parts(place: Place, talk: Talk, x: Tensor, steps: Steps) -> None:
    """Let each leader join one part of every block, and give it to all."""
    num, leads = place.hosts.num, place.leads()
    blocks = chunks(x, chunk_bytes(x.nbytes // num) * num)
    coming: dict[int, Coming] = {}

    def spread(block: int) -> None:
        place.inside.reduce(blocks[block], 0, steps.inside)
        if leads:
            coming[block] = _spread(place, talk, blocks[block])

    def add(block: int) -> None:
        if leads:
            _add(place, blocks[block].tensor_split(num)[place.host], coming.pop(block), steps)
            coming[block] = [], _give(place, talk, blocks[block])

    def share(block: int) -> None:
        if leads:
            wait_for(coming.pop(block)[1])
        place.inside.broadcast(blocks[block], 0)

    pipelined(len(blocks), (spread, add, share))


def _spread(place: Place, talk: Talk, block: Tensor) -> Coming:
    """Give every leader its part of a block, and take what they have for this one's."""
    parts = block.tensor_split(place.hosts.num)
    for host in place.to:
        talk.send(parts[host], place.hosts.leader(host))
    return _from_all(place, talk, parts[place.host])


def _give(place: Place, talk: Talk, block: Tensor) -> list[Transfer]:
    """Give every leader the part that was joined here, and take theirs.

    Nobody sends a part back before it has what this one sent of it, so that is gone.
    """
    parts = block.tensor_split(place.hosts.num)
    for host in place.to:
        talk.send(parts[place.host], place.hosts.leader(host), SECOND)
    return [
        transfer
        for host in place.sources
        for transfer in talk.recv(parts[host], place.hosts.leader(host), SECOND)
    ]


def _from_all(place: Place, talk: Talk, mine: Tensor) -> Coming:
    """Take something as long as ``mine`` from every other leader; all in the order of hosts."""
    parts, transfers = [], []
    for host in range(place.hosts.num):
        if host == place.host:
            parts.append(mine)
            continue
        parts.append(torch.empty_like(mine))
        transfers += talk.recv(parts[-1], place.hosts.leader(host), FIRST)
    return parts, transfers


def _add(place: Place, out: Tensor, coming: Coming, steps: Steps) -> None:
    parts, transfers = coming
    wait_for(transfers)
    join(out, parts, steps.between)
    if steps.averages:
        divide(out, len(place.hosts.of))


def _partials(place: Place, x: Tensor, host: int, op: str) -> Iterator[Tensor]:
    """Join this host's parts for the ranks of a host, chunk by chunk; the leader gets them."""
    each = x.numel() // len(place.hosts.of)
    sends_own = place.inside.alone and not op.startswith("premul:")
    for rank in place.hosts.ranks[host]:
        part = x.view(-1)[rank * each : (rank + 1) * each]
        for chunk in chunks(part, chunk_bytes(part.nbytes)):
            room = chunk.clone() if place.leads() and not sends_own else chunk
            place.inside.reduce(room, 0, op)
            yield room
