"""The ranks of a process group find each other through the store of torch.distributed."""

import os
from datetime import timedelta

from weft.runtime import World
from weft.runtime.crew import launch
from weft.runtime.engines import engines_from
from weft.torch.c10d import PrefixStore, Store
from weft.torch.channel import Channel
from weft.torch.hosts import Hosts, identity
from weft.torch.spread import SpreadChannel

_SEGMENT, _HOST = "weft/segment", "weft/host"


def meet(store: Store, rank: int, num_ranks: int, timeout: timedelta) -> Channel:
    """Join the other ranks of a group; its store is private to the group."""
    store.set_timeout(timeout)
    store.set(f"{_HOST}/{rank}", identity())
    told = store.multi_get([f"{_HOST}/{other}" for other in range(num_ranks)])
    hosts = Hosts.told_apart([each.decode() for each in told])
    if hosts.num == 1:
        return Channel(_world(store, rank, num_ranks, timeout))
    host = hosts.of[rank]
    mine = PrefixStore(f"host/{host}", store)
    world = _world(mine, hosts.place(rank), len(hosts.ranks[host]), timeout)
    return SpreadChannel(world, store, hosts, rank)


def _world(store: Store, rank: int, num_ranks: int, timeout: timedelta) -> World:
    seconds, engines = timeout.total_seconds(), engines_from(os.environ)
    if rank > 0:
        return World(store.get(_SEGMENT).decode(), rank, timeout=seconds, engines=engines)
    launcher = launch(num_ranks)
    try:
        store.set(_SEGMENT, launcher.name)
        return World(launcher.name, rank, timeout=seconds, engines=engines)
    finally:
        launcher.close()
