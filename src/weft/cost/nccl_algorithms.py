"""Seconds of what NCCL does between nodes, and of messages: rails, rings, trees, channels.

Every GPU has a NIC of its own, and NCCL opens rings that leave a node over each of them in turn:

    node 0   g0 -> g1 -> g2 -> g3 ==rail 3==> node 1   g0 -> g1 -> ...
             g1 -> g2 -> g3 -> g0 ==rail 0==> ...      (one ring per rail, all at once)

Chunks are pipelined along a ring, so the phases inside and between nodes overlap and the slower
one decides: ``bus rate = min(GPUs per node x share x NIC, rate inside a node)``. What is not
hidden is the latency of every step. Small messages take another protocol (LL, LL128) with less
latency and less bandwidth, and an all-reduce a tree, whose depth grows with the logarithm of the
nodes, whether or not their number is a power of two. Send, receive and all-to-all open
``channels`` per peer; each moves ``connection`` bytes a second at most, and a NIC no more than its
rate. Inside a node a message gets more channels the larger it is. The coefficients are
fitted (``AlgorithmFit``); latencies of small messages, which no log has, are those of NCCL's own
tuning model (src/graph/tuning.cc of NCCL 2.2x).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.cost.bus import bus_factor

if TYPE_CHECKING:
    from collections.abc import Mapping

    Coefficients = Mapping[str, float]

RINGS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
MESSAGES = ("send", "recv", "all_to_all", "gather", "scatter")


class Protocol(NamedTuple):
    """What a protocol costs: seconds to enter, of a step over NVLink and over the network.

    ``rate`` is the share of the bus rate that it reaches, ``rate_alone`` that of nodes of one GPU
    where it differs. None: it is a coefficient.
    """

    entry: float | None
    inside: float
    between: float | None
    rate: float
    rate_alone: float | None = None


# Seconds and shares of NCCL's tuning model. LL sends a flag with every 4 bytes, LL128 with every
# 120; LL128 between GPUs that share no node loses more (0.7).
_RINGS = (
    Protocol(6.6e-6, 0.6e-6, 2.7e-6, 0.25),
    Protocol(14e-6, 1.9e-6, 4.0e-6, 0.92, rate_alone=0.7),
    Protocol(None, 3.4e-6, None, 1.0),
)
_TREES = (
    Protocol(6.8e-6, 0.6e-6, 5.0e-6, 0.24),
    Protocol(14e-6, 1.25e-6, 8.5e-6, 0.86),
    Protocol(8.4e-6, 4.0e-6, 14e-6, 0.92),
)
# A broadcast or a reduction to one rank goes along the ring as a chain: it ends when its first
# piece has passed every rank. Seconds of one rank, fitted to the ZeRO-1 steps of InternEvo on 16 to
# 1,024 A100, whose owners broadcast their weights (its train_performance.md, @c628a8c87411).
_CHAIN_STEP = 14e-6
# A tree is slower than its links at sizes that fill its pipeline badly: bytes, share of the rate.
_TREE_SIZES = np.log2([1 << 10, 1 << 16, 1 << 22, 1 << 26])
_TREE_SHARES = (1.0, 0.6, 0.6, 0.9)
_NET_CHANNELS = 2  # for a peer behind the network, of NCCL's src/graph/paths.cc
_CHANNELS_A_NIC = 2
_LOCAL_CHANNELS = 32  # of NCCL inside a node, for all peers together
_CHANNEL_BYTES = 16 << 20  # a message has a channel for so many: logs double the rate as they do


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """What a collective sees: ``gpus`` of each of ``nodes``, a NIC for each, and their rates.

    ``inside_rate`` is of all links of a rank inside a node, ``link_rate`` of those to one peer.
    """

    nodes: int
    gpus: int
    nic_rate: float
    inside_rate: float
    link_rate: float

    @property
    def ranks(self) -> int:
        """How many ranks take part."""
        return self.nodes * self.gpus


def algorithm_seconds(
    network: NodeNetwork, kind: str, nbytes: int, coefficients: Coefficients
) -> float:
    """Return the seconds of one collective; ``nbytes`` counts as nccl-tests does."""
    if kind in MESSAGES:
        return _messages(network, kind, nbytes, coefficients)
    bus = network.inside_rate
    if network.nodes > 1:
        rails = network.gpus * network.nic_rate * coefficients["share"]
        bus = rails if network.gpus == 1 else min(rails, bus)
    found = _ring(network, kind, nbytes, bus, coefficients)
    return min(found, _tree(network, nbytes, bus)) if kind == "all_reduce" else found


def _ring(
    network: NodeNetwork, kind: str, nbytes: int, bus: float, coefficients: Coefficients
) -> float:
    """Return the fastest protocol on rings: every rank forwards what it received."""
    rounds = 2 if kind == "all_reduce" else 1
    between = rounds * (network.nodes - 1)
    inside = rounds * (network.ranks - 1) - between
    crossing = nbytes * bus_factor(kind, network.ranks)
    if kind in ("broadcast", "reduce") and network.nodes > 1:
        return coefficients["entry"] + (network.ranks - 1) * _CHAIN_STEP + crossing / bus
    found = []
    for protocol in _RINGS:
        entry = coefficients["entry"] if protocol.entry is None else protocol.entry
        hop = coefficients["hop"] if protocol.between is None else protocol.between
        share = (protocol.rate_alone if network.gpus == 1 else None) or protocol.rate
        found.append(entry + inside * protocol.inside + between * hop + crossing / (bus * share))
    return min(found)


def _tree(network: NodeNetwork, nbytes: int, bus: float) -> float:
    """Return the fastest protocol on a tree of nodes: up and down, chains inside a node."""
    depth = ceil(log2(network.nodes))
    filled = float(np.interp(log2(max(nbytes, 1)), _TREE_SIZES, _TREE_SHARES))
    found = []
    for protocol in _TREES:
        assert protocol.entry is not None
        assert protocol.between is not None
        steps = 2 * ((network.gpus - 1) * protocol.inside + depth * protocol.between)
        found.append(protocol.entry + steps + 2 * nbytes / (bus * protocol.rate * filled))
    return min(found)


def _messages(network: NodeNetwork, kind: str, nbytes: int, coefficients: Coefficients) -> float:
    """Return what point-to-point messages take, all at once and limited by the NICs."""
    nodes, gpus, ranks = network.nodes, network.gpus, network.ranks
    if nodes == 1:
        return coefficients["local"] + nbytes / _local_rate(network, nbytes, coefficients)
    if kind in ("send", "recv"):
        return coefficients["message"] + nbytes / _port_rate(
            network, channels_to_a_peer(network), coefficients
        )
    apart = ranks - gpus
    remote = nbytes * apart / ranks
    if kind in ("gather", "scatter"):  # over all NICs of the root's node: NCCL forwards by NVLink
        rate = _port_rate(network, apart * channels_to_a_peer(network), coefficients) * gpus
        if gpus == 1:
            return coefficients["message"] + remote / rate
        # The root's links inside its node carry all but what its own NIC takes.
        inside = nbytes / ranks * (gpus - 1) + remote * (gpus - 1) / gpus
        return coefficients["message"] + max(remote / rate, inside / network.inside_rate)
    # Many nodes send to one NIC at a time, never quite in turn.
    crowd = 1 + coefficients["crowding"] * (nodes - 2) / nodes
    rate = _port_rate(network, apart * channels_to_a_peer(network), coefficients) / crowd
    inside = nbytes / ranks * (gpus - 1) / network.inside_rate if gpus > 1 else 0.0
    return coefficients["message"] + coefficients["turn"] * (nodes - 1) + max(remote / rate, inside)


def channels_to_a_peer(network: NodeNetwork) -> int:
    """Return the channels that NCCL opens to a peer on another node: fewer, the more ranks.

    It halves them while all ranks would put more than four operations on each of its channels.
    """
    channels, all_channels = _NET_CHANNELS, _CHANNELS_A_NIC * network.gpus
    while channels > 1 and channels * network.ranks > 4 * all_channels:
        channels //= 2
    return channels


def _local_rate(network: NodeNetwork, nbytes: int, coefficients: Coefficients) -> float:
    """Return the rate of a message inside a node: its channels are shared out, large ones get more.

    A channel is one block of threads, which copies at its own rate.
    """
    channels = max(_LOCAL_CHANNELS / network.gpus, nbytes / _CHANNEL_BYTES)
    return min(network.link_rate, min(channels, _LOCAL_CHANNELS) * coefficients["channel"])


def _port_rate(network: NodeNetwork, connections: float, coefficients: Coefficients) -> float:
    """Return the rate of a NIC over some connections; near its own rate both limits count."""
    port, opened = (
        network.nic_rate * coefficients["share"],
        connections * coefficients["connection"],
    )
    power = coefficients["sharpness"]
    return float((port**-power + opened**-power) ** (-1 / power))
