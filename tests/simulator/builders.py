"""Every builder of weft.collectives on every kind of network."""

from __future__ import annotations

from collections.abc import Iterable

from weft.collectives import KINDS, algorithms, collective
from weft.hardware import Platform, platform
from weft.schedule import Schedule

BUILDERS = [(kind, algorithm) for kind in KINDS for algorithm in algorithms(kind)]
NETWORKS = (
    *(f"switch({n})@50GiB/s,500ns" for n in (2, 3, 16)),
    *(f"{kind}({n})@50GiB/s,500ns" for kind in ("ring", "mesh") for n in (4, 9)),
    "switch(4)@400GiB/s,936ns/switch(3)@50GiB/s,2us",
    "switch(2)@400GiB/s,936ns/switch(2)@100GiB/s,1us/switch(4)@50GiB/s,2us",
    "ring(4)@400GiB/s,100ns/switch(4)@50GiB/s,2us",
    "mesh(4)@400GiB/s,100ns/ring(2)@50GiB/s,2us",
    "ring(3)@10GiB/s,1us/mesh(4)@30GiB/s,2us",
    "mi300x-8",
    "mi250x-8",
    "h100-8",
    "l40s-8-nop2p",
    "mi300x-8x2",
)
LARGE = (
    ("all_to_all", "direct", "switch(64)@50GiB/s,500ns"),
    ("all_reduce", "ring", "ring(64)@50GiB/s,500ns"),
    ("all_reduce", "direct", "mesh(64)@50GiB/s,500ns"),
    ("all_reduce", "halving-doubling", "switch(64)@50GiB/s,500ns"),
    ("all_reduce", "hierarchical", "h100-8x8"),
    ("all_gather", "hierarchical", "ring(8)@400GiB/s,100ns/switch(8)@50GiB/s,2us"),
)


def applies(kind: str, algorithm: str, network: Platform) -> bool:
    """Whether the collective can be built for all ranks of ``network``."""
    if algorithm.startswith("dma"):
        return network.device is not None and network.num_nodes == 1
    if algorithm == "hierarchical":
        return len(network.levels) > 1
    if algorithm == "halving-doubling":
        return kind == "all_reduce" or network.num_ranks.bit_count() == 1
    return True


def build(kind: str, algorithm: str, network: Platform, nbytes: int) -> Schedule:
    """The collective for all ranks of ``network``, ``nbytes`` of each."""
    return collective(
        kind,
        algorithm,
        num_ranks=network.num_ranks,
        nbytes=nbytes * network.num_ranks,
        node_size=network.levels[0].size if algorithm == "hierarchical" else None,
    )


def cases(networks: Iterable[str]) -> list[tuple[str, str, str]]:
    """Each (kind, algorithm, network) that goes together."""
    return [
        (*builder, network)
        for network in networks
        for builder in BUILDERS
        if applies(*builder, platform(network))
    ]
