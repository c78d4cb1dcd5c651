"""The hosts of a group's ranks: ranks on one host can share memory."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from weft.runtime.stale_segments import SHARED_MEMORY

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_HOST = "WEFT_HOST"


@dataclass(frozen=True)
class HostMap:
    """The hosts of a group, numbered by their first ranks; ``of[rank]`` is a rank's host."""

    of: tuple[int, ...]
    names: tuple[str, ...]

    @staticmethod
    def from_identities(identities: Sequence[str]) -> "HostMap":
        """Return the map of ranks with these host identities.

        >>> HostMap.from_identities(["a", "b", "a"])
        HostMap(of=(0, 1, 0), names=('a', 'b'))
        """
        numbers = {each: number for number, each in enumerate(dict.fromkeys(identities))}
        names = tuple(each.partition("\n")[0] for each in numbers)
        return HostMap(tuple(numbers[each] for each in identities), names)

    @property
    def num(self) -> int:
        """The number of hosts."""
        return len(self.names)

    @cached_property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of every host, in their order."""
        return tuple(
            tuple(rank for rank, host in enumerate(self.of) if host == number)
            for number in range(self.num)
        )

    def leader(self, host: int, root: int | None = None) -> int:
        """Return the leader of a host: its first rank, or the root of a call."""
        if root is not None and self.of[root] == host:
            return root
        return self.ranks[host][0]

    def local_rank(self, rank: int) -> int:
        """Return a rank's number among those of its host."""
        return self.ranks[self.of[rank]].index(rank)

    def describe(self, rank: int) -> str:
        """Return a rank and its host as text."""
        return f"rank {rank} on host {self.names[self.of[rank]]}"


def host_identity() -> str:
    """Return what must be equal for ranks to share memory: boot id, mount and pid namespace.

    WEFT_HOST in the environment can only split a machine further, as network namespaces in a test;
    it never merges two machines. The name that errors show comes first.
    """
    mount = SHARED_MEMORY.stat()
    processes = Path("/proc/self/ns/pid").readlink()
    boot = _BOOT.read_text(encoding="ascii").strip()
    name = os.environ.get(_HOST, "")
    return f"{name or os.uname().nodename}\n{name} {boot} {mount.st_dev} {processes}"
