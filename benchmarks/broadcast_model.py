"""Predicts a chain between hosts that share cores, calibrated by one run of the plain chain."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from weft.collectives import collective
from weft.hardware import platform
from weft.simulator import simulate

# A piece that comes wakes the thread of the transport and then the one that passes it on: two
# wake-ups of 50 us and two calls, measured between processes of a 2-core machine.
HOP = 250e-6
# Seconds of a core for a byte and for a message on one hop, both ends together: CPU time of plain
# chains of 16 MiB at 10 Gbit/s in 4 to 64 pieces, least squares, same machine.
BYTE, MESSAGE = 0.95e-9, 0.15e-3
# Waiting for each other and switching: time over work divided by cores, for the same chains.
SWITCHING = 1.25
_SHARP = 4  # links and cores hinder each other only where both are nearly always busy


class BroadcastSize(NamedTuple):
    """A broadcast: bytes before and after they are encoded, and the length of a piece before."""

    nbytes: int
    wire_bytes: int
    piece: int

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return max(1, -(-self.nbytes // self.piece))


def encodes_on_each_hop(algorithm: str) -> bool:
    """Return whether every hop decodes and encodes again; in a chain only the root encodes."""
    return algorithm.partition("+")[0] == "p2p"


class CodecTimes(NamedTuple):
    """The codec: its algorithm, and core seconds to encode and to decode all bytes."""

    algorithm: str  # chain+CODEC or p2p+CODEC
    dtype: str
    encode: float = 0.0
    decode: float = 0.0
    keep_root: bool = True


_PLAIN = CodecTimes("chain", "float32")


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts as a chain finds them: what links carry, what starting takes, the cores they share."""

    count: int
    cores: int
    rate: float
    start: float = 0.0
    switching: float = SWITCHING

    def calibrated(self, seconds: float, sent: BroadcastSize) -> "Hosts":
        """Return the model fitted to one plain chain: rate or switching, whichever limits."""
        filled = sent.wire_bytes + (self.count - 2) * sent.piece
        hops = (self.count - 1) * HOP
        links, cores = filled / self.rate + hops, self._cores(sent, _PLAIN)
        if cores > links:
            own = _remainder(seconds - self.start, links)
            return replace(self, switching=self.switching * own / cores)
        return replace(self, rate=filled / (_remainder(seconds - self.start, cores) - hops))

    def seconds(self, sent: BroadcastSize, coded: CodecTimes) -> float:
        """Return the predicted seconds of a broadcast."""
        return self.start + _combined(self._simulated(sent, coded), self._cores(sent, coded))

    def _cores(self, sent: BroadcastSize, coded: CodecTimes) -> float:
        """Return the seconds of the cores: an even share of all work, and what one does alone.

        While the first piece goes its way the other cores have little to do. Graham's bound for
        work in order: W / m + (1 - 1 / m) L, with L the work of the longest way.
        """
        hop = BYTE * sent.wire_bytes + MESSAGE * sent.pieces
        moving = (self.count - 1) * hop
        way = (moving + self._coded_way(coded)) / sent.pieces
        shared = (moving + self._coding(coded)) / self.cores
        return self.switching * (shared + (1 - 1 / self.cores) * way)

    def _coded_way(self, coded: CodecTimes) -> float:
        """Return the seconds of the passes of the codec from the root to the last host."""
        again = self.count - 1 if encodes_on_each_hop(coded.algorithm) else 1
        return again * (coded.encode + coded.decode)

    def _coding(self, coded: CodecTimes) -> float:
        """Return the seconds of one core for all passes of the codec on all hosts."""
        hops = self.count - 1
        if encodes_on_each_hop(coded.algorithm):
            return hops * (coded.encode + coded.decode)
        return coded.encode + (hops if coded.keep_root else self.count) * coded.decode

    def _simulated(self, sent: BroadcastSize, coded: CodecTimes) -> float:
        """Simulate it where every host has a core for each thing that it does."""
        each_hop = encodes_on_each_hop(coded.algorithm)
        kept = {} if each_hop else {"keep_root": coded.keep_root}
        made = collective(
            "broadcast",
            coded.algorithm,
            num_ranks=self.count,
            nbytes=sent.nbytes,
            piece=sent.piece,
            ratio=sent.nbytes / sent.wire_bytes,
            dtype=coded.dtype,
            **kept,
        )
        where = f"switch({self.count})@{self.rate / 1e6:.6f}MB/s,{HOP * 1e6:.3f}us"
        return simulate(made, platform(where)).makespan


def _combined(links: float, cores: float) -> float:
    """Return the duration limited by links and cores: the larger, plus a little where close."""
    return float((links**_SHARP + cores**_SHARP) ** (1 / _SHARP))


def _remainder(both: float, other: float) -> float:
    """Invert ``_combined``: return the limit that, with ``other``, gives ``both`` seconds."""
    return float(max(both**_SHARP - other**_SHARP, (0.5 * both) ** _SHARP) ** (1 / _SHARP))
