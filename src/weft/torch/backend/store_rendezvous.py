"""Rendezvous of the ranks of a process group through the store of torch.distributed."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from weft.errors import RunTimeoutError
from weft.runtime import World
from weft.runtime.communicator import create_segment
from weft.runtime.engine_threads import engines_from
from weft.torch.backend.bounded_store import (
    BoundedStore,
    KeysMissingError,
    StoreUnreachableError,
)
from weft.torch.backend.c10d import PrefixStore, Store
from weft.torch.backend.channel import Channel
from weft.torch.hosts.host_map import HostMap, host_identity
from weft.torch.hosts.multi_host_channel import MultiHostChannel

_SEGMENT, _HOST = "weft/segment", "weft/host"


def rendezvous(store: Store, rank: int, num_ranks: int, timeout: timedelta) -> Channel:
    """Connect to the other ranks of a group, by the group's own store."""
    store.set_timeout(timeout)
    keys = [f"{_HOST}/{other}" for other in range(num_ranks)]
    with _naming_the_missing(rank, keys, timeout):
        bounded = BoundedStore(store, timeout)
        bounded.set(keys[rank], host_identity())
        identities = bounded.wait_for(keys)
    hosts = HostMap.from_identities([each.decode() for each in identities])
    if hosts.num == 1:
        return Channel(_world(store, rank, num_ranks, timeout))
    host = hosts.of[rank]
    mine = PrefixStore(f"host/{host}", store)
    world = _world(mine, hosts.local_rank(rank), len(hosts.ranks[host]), timeout)
    return MultiHostChannel(world, store, hosts, rank)


def store_barrier(
    store: Store, rank: int, ranks: Sequence[int], name: str, timeout: timedelta
) -> None:
    """Wait for ranks by a store; torch's own barrier asks it without a deadline."""
    keys = {other: f"weft/barrier/{name}/{other}" for other in ranks}
    with _naming_the_missing(rank, list(keys.values()), timeout, ranks):
        bounded = BoundedStore(store, timeout)
        bounded.set(keys[rank], "")
        bounded.wait_for(list(keys.values()))


@contextmanager
def _naming_the_missing(
    rank: int, keys: Sequence[str], timeout: timedelta, ranks: Sequence[int] | None = None
) -> Iterator[None]:
    """Convert a timeout of a store into an error that names the missing ranks.

    ``keys[r]`` is written by rank r of the group, or by ``ranks[r]``.
    """
    start = f"rank {rank}: timeout after {timeout.total_seconds():g} s at the start of its process"
    try:
        yield
    except StoreUnreachableError as error:
        raise RunTimeoutError(
            f"rank {rank} cannot start its process group: {error.message}",
            "Continue or restart that process.",
        ) from error
    except KeysMissingError as error:
        numbers = ranks or range(len(keys))
        late = ", ".join(str(numbers[keys.index(key)]) for key in error.keys)
        raise RunTimeoutError(
            f"{start} group; rank {late} did not come.",
            "Start every rank; if the others are only slow, pass a longer timeout.",
        ) from error


def _world(store: Store, rank: int, num_ranks: int, timeout: timedelta) -> World:
    seconds, engines = timeout.total_seconds(), engines_from(os.environ)
    bounded = BoundedStore(store, timeout)
    if rank > 0:
        with _naming_the_missing(rank, [_SEGMENT], timeout):
            name = bounded.wait_for([_SEGMENT])[0].decode()
        return World(name, rank, timeout=seconds, engines=engines)
    launcher = create_segment(num_ranks)
    try:
        with _naming_the_missing(rank, [_SEGMENT], timeout):
            bounded.set(_SEGMENT, launcher.name)
        return World(launcher.name, rank, timeout=seconds, engines=engines)
    finally:
        launcher.close()
