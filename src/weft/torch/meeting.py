"""The ranks of a process group find their world through the store of torch.distributed."""

import os
from datetime import timedelta
from pathlib import Path

from weft.errors import RunError
from weft.runtime import World
from weft.runtime.crew import launch
from weft.runtime.engines import engines_from
from weft.runtime.leftovers import SHARED_MEMORY
from weft.torch.c10d import Store

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SEGMENT, _HOST = "weft/segment", "weft/host"


def meet(store: Store, rank: int, num_ranks: int, timeout: timedelta) -> World:
    """Join the other ranks of a group; its store is private to the group."""
    store.set_timeout(timeout)
    _require_one_host(store, rank, num_ranks)
    seconds, engines = timeout.total_seconds(), engines_from(os.environ)
    if rank > 0:
        return World(store.get(_SEGMENT).decode(), rank, timeout=seconds, engines=engines)
    launcher = launch(num_ranks)
    try:
        store.set(_SEGMENT, launcher.name)
        return World(launcher.name, rank, timeout=seconds, engines=engines)
    finally:
        launcher.close()


def _require_one_host(store: Store, rank: int, num_ranks: int) -> None:
    store.set(f"{_HOST}/{rank}", _host())
    hosts = store.multi_get([f"{_HOST}/{other}" for other in range(num_ranks)])
    elsewhere = [other for other in range(num_ranks) if hosts[other] != hosts[0]]
    if elsewhere:
        raise RunError(
            f"rank {elsewhere[0]} stands on another host than rank 0.",
            "A weft group shares memory, so it lives on one host: make groups of the ranks of a "
            "host (torch.distributed.new_subgroups), or use another backend between hosts.",
        )


def _host() -> str:
    """Name what must be equal for ranks to share memory: a boot, a mount, process numbers."""
    mount = SHARED_MEMORY.stat()
    processes = Path("/proc/self/ns/pid").readlink()
    return f"{_BOOT.read_text(encoding='ascii').strip()} {mount.st_dev} {processes}"
