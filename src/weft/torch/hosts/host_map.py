"""Which ranks of a group stand on which host: those that can share memory."""

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
        """Number the hosts of ranks that say who their hosts are.

        >>> Hosts.told_apart(["a", "b", "a"])
        Hosts(of=(0, 1, 0), names=('a', 'b'))
        """
        numbers = {
            host_identity: number for number, host_identity in enumerate(dict.fromkeys(identities))
        }
        return HostMap(tuple(numbers[each] for each in identities), tuple(map(_shown, numbers)))

    @property
    def num(self) -> int:
        """Count the hosts."""
        return len(self.names)

    @cached_property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of every host, in their order."""
        return tuple(
            tuple(rank for rank, host in enumerate(self.of) if host == number)
            for number in range(self.num)
        )

    def leader(self, host: int, root: int | None = None) -> int:
        """Give the rank that speaks for a host: its first, or the root of a call."""
        if root is not None and self.of[root] == host:
            return root
        return self.ranks[host][0]

    def local_rank(self, rank: int) -> int:
        """Give a rank's number among those of its host."""
        return self.ranks[self.of[rank]].index(rank)

    def runs(self, host: int) -> list[tuple[int, int]]:
        """Give the host's ranks as ranges of neighbours: from, and up to but without.

        >>> Hosts.told_apart(["a", "a", "b", "a"]).runs(0)
        [(0, 2), (3, 4)]
        """
        found: list[tuple[int, int]] = []
        for rank in self.ranks[host]:
            if found and found[-1][1] == rank:
                found[-1] = found[-1][0], rank + 1
            else:
                found.append((rank, rank + 1))
        return found

    def describe(self, rank: int) -> str:
        """Name a rank and where it stands."""
        return f"rank {rank} on host {self.names[self.of[rank]]}"


def host_identity() -> str:
    """Say what must be equal for ranks to share memory: a boot, a mount, process numbers.

    A name in the environment can only tell hosts further apart, as network namespaces of one
    machine in a test: two machines never become one by it. The name shown comes first.
    """
    mount = SHARED_MEMORY.stat()
    processes = Path("/proc/self/ns/pid").readlink()
    boot = _BOOT.read_text(encoding="ascii").strip()
    name = os.environ.get(_HOST, "")
    return f"{name or os.uname().nodename}\n{name} {boot} {mount.st_dev} {processes}"


def _shown(host_identity: str) -> str:
    return host_identity.partition("\n")[0]
