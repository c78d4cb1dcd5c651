"""What the simulator says of a chain between hosts, after one look at the plain one."""

from dataclasses import dataclass

from weft.collectives import collective
from weft.hardware import platform
from weft.simulator import simulate

# A piece that comes wakes the thread of the transport and then the one that passes it on: two
# wake-ups of 50 us and two calls, measured between processes of a 2-core machine.
HOP = 250e-6


@dataclass(frozen=True, slots=True)
class Link:
    """Links between hosts as a chain finds them: what they carry, and a hop's latency."""

    rate: float
    hop: float = HOP

    @classmethod
    def from_plain(cls, seconds: float, num_hosts: int, nbytes: int, piece: int) -> "Link":
        """Calibrate by a chain that was measured without a codec."""
        hops = num_hosts - 2
        moving = seconds - (hops + 1) * HOP
        return cls((nbytes + hops * piece) / moving)

    def seconds(
        self,
        codec: str,
        num_hosts: int,
        nbytes: int,
        piece: int,
        ratio: float,
        *,
        keep_root: bool = False,
    ) -> float:
        """Simulate a chain of hosts, a rank on each."""
        made = collective(
            "broadcast",
            f"chain+{codec}",
            num_ranks=num_hosts,
            nbytes=nbytes,
            piece=piece,
            ratio=ratio,
            dtype="float32",
            keep_root=keep_root,
        )
        where = platform(f"switch({num_hosts})@{self.rate / 1e6:.6f}MB/s,{self.hop * 1e6:.3f}us")
        return simulate(made, where).makespan
