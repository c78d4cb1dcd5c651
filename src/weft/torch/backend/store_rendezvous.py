"""Rendezvous of the ranks of a process group through the store of torch.distributed."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from weft.errors import RunTimeoutError
from weft.runtime import World
from weft.runtime.communicator import create_segment
from weft.runtime.engine_threads import engines_from
from weft.torch.backend.c10d import PrefixStore, Store
from weft.torch.backend.channel import Channel
from weft.torch.hosts.host_map import HostMap, host_identity
from weft.torch.hosts.multi_host_channel import MultiHostChannel

_SEGMENT, _HOST = "weft/segment", "weft/host"


def rendezvous(store: Store, rank: int, num_ranks: int, timeout: timedelta) -> Channel:
    """Connect to the other ranks of a group, by the group's own store."""
    store.set_timeout(timeout)
    store.set(f"{_HOST}/{rank}", host_identity())
    keys = [f"{_HOST}/{other}" for other in range(num_ranks)]
    with _naming_the_missing(store, rank, keys, timeout):
        identities = store.multi_get(keys)
    hosts = HostMap.from_identities([each.decode() for each in identities])
    if hosts.num == 1:
        return Channel(_world(store, rank, num_ranks, timeout))
    host = hosts.of[rank]
    mine = PrefixStore(f"host/{host}", store)
    world = _world(mine, hosts.local_rank(rank), len(hosts.ranks[host]), timeout)
    return MultiHostChannel(world, store, hosts, rank)


@contextmanager
def _naming_the_missing(
    store: Store, rank: int, keys: Sequence[str], timeout: timedelta
) -> Iterator[None]:
    """Convert a timeout of a store into an error that names the missing ranks.

    Rank r of the group writes ``keys[r]``. Stores have no error type for timeouts.
    """
    try:
        yield
    except RuntimeError as error:
        if "timeout" not in str(error).lower() and "timed out" not in str(error).lower():
            raise
        late = [str(other) for other, key in enumerate(keys) if not store.check([key])]
        missing = f"; rank {', '.join(late)} did not come" if late else ""
        raise RunTimeoutError(
            f"rank {rank} timed out after {timeout.total_seconds():g} s at the start of its "
            f"process group{missing}.",
            "Start every rank; if the others are only slow, pass a longer timeout.",
        ) from error


def _world(store: Store, rank: int, num_ranks: int, timeout: timedelta) -> World:
    seconds, engines = timeout.total_seconds(), engines_from(os.environ)
    if rank > 0:
        with _naming_the_missing(store, rank, [_SEGMENT], timeout):
            name = store.get(_SEGMENT).decode()
        return World(name, rank, timeout=seconds, engines=engines)
    launcher = create_segment(num_ranks)
    try:
        store.set(_SEGMENT, launcher.name)
        return World(launcher.name, rank, timeout=seconds, engines=engines)
    finally:
        launcher.close()
