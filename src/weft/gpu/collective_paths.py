"""Proof of path: how collectives really ran, read from NCCL's log.

Copy-engine collectives fall back to kernels without a word: a buffer that is not registered, ranks
on two nodes or an older driver are enough. The log (``NCCL_DEBUG=INFO``,
``NCCL_DEBUG_SUBSYS=TUNING``) has one line for each collective of rank 0, with the bytes of one
rank's part.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Names of functions in the log, as weft names collectives.
_FUNCTIONS = {
    "AllGather": "all_gather",
    "AllReduce": "all_reduce",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "all_to_all",
    "AllToAll": "all_to_all",
    "Gather": "gather",
    "Scatter": "scatter",
    "SendRecv": "send_recv",
}
# Functions whose count is one rank's part: the collective has that many times the ranks.
_BY_PART = {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}
_NAMES = "|".join(_FUNCTIONS)
# enqueue.cc, ce_coll.cc and symmetric_sched.cc of NCCL 2.27 to 2.31; rccl has the same lines.
_COPY_ENGINE = re.compile(rf"({_NAMES}) \[(?:Copy Engine|Hierarchical CE)\]: (\d+) Bytes -> ")
_SYMMETRIC = re.compile(
    rf"({_NAMES}) \[Symmetric\]: (\d+) Bytes -> Kernel (\S+) nchannels (\d+) nthreads (\d+)"
)
_ALGORITHM = re.compile(
    rf"({_NAMES}): (\d+) Bytes -> Algo (\w+) proto (\w+) "
    r"channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}"
)
# A rank of a communicator says how many ranks it has when it starts.
_INIT = re.compile(r"nranks (\d+) .*- Init COMPLETE")
_ALGORITHMS = {"RING": "ring", "TREE": "tree", "NVLS": "nvls", "NVLS_TREE": "nvls", "PAT": "pat"}
_VERSION = re.compile(r"(?:NCCL|RCCL) version (\d+\.\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class CollectivePath:
    """How one collective ran: ``copy-engine``, ``symmetric``, ``nvls``, ``ring``, ``tree`` ...

    ``ctas`` is 0 for copy engines. ``detail`` is a kernel or a protocol.
    """

    collective: str
    nbytes: int  # of one rank's part for all_gather, reduce_scatter and all_to_all; 0: unknown
    path: str
    ctas: int
    detail: str = ""

    def total(self, num_ranks: int) -> int:
        """Return the bytes of the collective as nccl-tests counts them."""
        return self.nbytes * (num_ranks if self.collective in _BY_PART else 1)

    def __str__(self) -> str:
        return f"{self.path}, {self.ctas} CTAs{f' ({self.detail})' if self.detail else ''}"


@dataclass(frozen=True, slots=True)
class PathLog:
    """What a log says: the library's version, sizes of communicators, a path per collective."""

    version: str
    num_ranks: tuple[int, ...]
    paths: Counter[CollectivePath]


def read_nccl_log(lines: Iterable[str]) -> PathLog:
    """Read the log of NCCL or RCCL; lines of anything else are passed over."""
    version, sizes, paths = "", set[int](), Counter[CollectivePath]()
    for line in lines:
        if found := _path_in(line):
            paths[found] += 1
        elif match := _INIT.search(line):
            sizes.add(int(match[1]))
        elif not version and (named := _VERSION.search(line)):
            version = named[1]
    return PathLog(version, tuple(sorted(sizes)), paths)


def _path_in(line: str) -> CollectivePath | None:
    if " Bytes -> " not in line:
        return None
    if found := _COPY_ENGINE.search(line):
        return CollectivePath(_FUNCTIONS[found[1]], int(found[2]), "copy-engine", 0)
    if found := _SYMMETRIC.search(line):
        kind, nbytes, kernel, ctas = found[1], int(found[2]), found[3], int(found[4])
        return CollectivePath(_FUNCTIONS[kind], nbytes, "symmetric", ctas, kernel)
    if found := _ALGORITHM.search(line):
        kind, nbytes, name, protocol = found[1], int(found[2]), found[3], found[4]
        ctas = int(found[6]) - int(found[5]) + 1
        path = _ALGORITHMS.get(name, name.lower())
        return CollectivePath(_FUNCTIONS[kind], nbytes, path, ctas, protocol)
    return None


@dataclass(frozen=True, slots=True)
class PathVerdict:
    """Whether a planned path was taken. ``taken`` is empty where nothing was seen of it."""

    planned: str
    taken: tuple[str, ...]

    @property
    def proven(self) -> bool:
        """Whether every execution that was seen took the planned path."""
        return bool(self.taken) and all(each.startswith(self.planned) for each in self.taken)

    @property
    def fell_back(self) -> bool:
        """Whether an execution took another path than the planned one."""
        return any(not each.startswith(self.planned) for each in self.taken)

    def __str__(self) -> str:
        if not self.taken:
            return f"{self.planned} planned, not seen in the log"
        return f"{self.planned} planned, took {', '.join(self.taken)}"


def judge(
    planned: str, collective: str, nbytes: int, num_ranks: int, paths: Iterable[CollectivePath]
) -> PathVerdict:
    """Compare the planned path of a collective with those of a log."""
    taken = dict.fromkeys(  # distinct, in the order of the log
        str(each)
        for each in paths
        if each.collective == collective
        # Shards are padded, so sizes agree within a few percent only.
        and abs(each.total(num_ranks) - nbytes) <= 0.02 * nbytes
    )
    return PathVerdict(planned, tuple(taken))
