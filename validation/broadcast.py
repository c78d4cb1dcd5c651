"""Broadcasts with compression inside: published maxima, and where weft's model reaches them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from validation.target import Target
from weft.collectives import collective
from weft.hardware import Platform, platform
from weft.simulator import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "broadcast"
QUESTION = "Where does compression inside a chunked chain gain what was published for it?"
SOURCE = "HiPC 2022, broadcast with collective-level online compression: maxima"

# A device a node, joined by InfiniBand: EDR 100, HDR 200 Gbit/s; latency as in the catalogue.
CLUSTERS = {"V100, EDR": ("v100-8", "12.5GB/s"), "A100, HDR": ("a100-8", "25GB/s")}
LATENCY = "1.25us"
NODES = (4, 16)
SIZES = (4 << 20, 64 << 20, 512 << 20)
RATIOS = (2.0, 4.0, 8.0, 16.0)
_CODEC = "zfp:16"  # of a fixed rate, on the GPU; its ratio is what is varied
_NUM_PIECES = (8, 32, 128)  # the best of them is taken, by every algorithm
_LOWER = {"MPI broadcast": 80.9, "point-to-point compression": 55.1}  # percent of latency
_SHORTER = {"the plain chain": 15.0, "point-to-point compression": 6.4}  # percent of training


@dataclass(frozen=True, slots=True)
class Cell:
    """One broadcast by every way, in seconds."""

    nodes: int
    nbytes: int
    ratio: float
    chain: float
    hops: float
    plain: float
    binomial: float

    def lower(self, peer: str) -> float:
        """Return by how much percent the chain with a codec is quicker than another way."""
        ways = {"MPI broadcast": self.binomial, "the plain chain": self.plain}
        return 100 * (1 - self.chain / ways.get(peer, self.hops))

    def __str__(self) -> str:
        return f"ratio {self.ratio:g}, {self.nbytes >> 20} MiB, {self.nodes} nodes"


def targets() -> Iterator[Target]:
    """Return the largest gains, and the smallest case in which what was published is reached."""
    for name, (device, rate) in CLUSTERS.items():
        cells = [
            cell
            for nodes in NODES
            for nbytes in SIZES
            for cell in cells_of(_cluster(device, rate, nodes), nbytes)
        ]
        for peer, percent in _LOWER.items():
            yield _latency(name, peer, percent, cells)
        for peer, percent in _SHORTER.items():
            yield _training(name, peer, percent, cells)


def _latency(name: str, peer: str, percent: float, cells: list[Cell]) -> Target:
    best = max(cells, key=lambda cell: cell.lower(peer))
    enough = [cell for cell in cells if cell.lower(peer) >= percent]
    first = min(enough, key=lambda cell: (cell.ratio, cell.nodes, cell.nbytes), default="nowhere")
    what = f"{name}: latency lower than {peer} by up to"
    note = f"most at {best}; {percent} % first at {first}"
    return Target(NAME, what, percent, "%", SOURCE, best.lower(peer), note=note)


def _training(name: str, peer: str, percent: float, cells: list[Cell]) -> Target:
    """Return a step shrinks by what its broadcasts shrink: so large must their share have been."""
    best = max(cells, key=lambda cell: cell.lower(peer))
    share = 100 * percent / best.lower(peer)
    what = f"{name}: share of a step that broadcasts have where it is {percent} % shorter"
    note = f"than with {peer}; at {best}, where broadcasts are {best.lower(peer):.0f} % quicker"
    return Target(NAME, what, None, "%", SOURCE, share, note=note)


def cells_of(where: Platform, nbytes: int) -> Iterator[Cell]:
    """Price one size on one cluster by every way and ratio."""
    binomial = _seconds(where, "binomial", nbytes)
    plain = _best(where, "chain+none", nbytes, 1.0)
    for ratio in RATIOS:
        chain, hops = (_best(where, f"{way}+{_CODEC}", nbytes, ratio) for way in ("chain", "p2p"))
        yield Cell(where.num_ranks, nbytes, ratio, chain, hops, plain, binomial)


def _cluster(device: str, rate: str, nodes: int) -> Platform:
    network = platform(f"switch({nodes})@{rate},{LATENCY}")
    return replace(network, device=platform(device).device)


def _best(where: Platform, algorithm: str, nbytes: int, ratio: float) -> float:
    pieces = [max(nbytes // count, 4096) for count in _NUM_PIECES]
    return min(_seconds(where, algorithm, nbytes, piece=piece, ratio=ratio) for piece in pieces)


def _seconds(where: Platform, algorithm: str, nbytes: int, **options: Any) -> float:
    made = collective("broadcast", algorithm, num_ranks=where.num_ranks, nbytes=nbytes, **options)
    return simulate(made, where).makespan
