"""Encoded broadcasts along a chain of hosts.

The root encodes piece k while piece k-1 is in flight. Leaders forward a piece before they decode
it: one copy reaches every host, whose ranks share it in memory and decode it each for itself.
"""

import time
from typing import NamedTuple

import torch
from torch import Tensor

from weft._core import FRAME_HEAD, FRAME_VERSION
from weft.compress import Deltas, codec_of, expected_ratio, is_lossless
from weft.compress.frame import Octets, frame_bytes
from weft.errors import CodecError
from weft.torch.backend.channel import DTYPE_NAMES
from weft.torch.hosts import inter_host_movement
from weft.torch.hosts.chunk_size import LONG, ChunkChoice
from weft.torch.hosts.chunks import as_bytes, receive_windows
from weft.torch.hosts.consensus import agree_on_chunk_size, wait_for_last_host
from weft.torch.hosts.gloo_transport import Transfer
from weft.torch.hosts.host_topology import HostTopology
from weft.torch.hosts.inter_host_session import InterHostSession, wait_for
from weft.torch.hosts.piece_coders import (
    BackgroundDecoder,
    DeltaEncoder,
    PieceEncoder,
    PlainEncoder,
    sampled_ratio,
)

# Receives that a host posts ahead: Gloo delays data that arrive while a receive is being posted.
# Limited by memory; few for short tensors, so that a root whose piece cannot be decoded gets the
# error before it has sent them all. Of a long tensor the root waits for the end.
FEW_AHEAD, MOST_AHEAD, AHEAD_BYTES = 16, 64, 32 << 20


class BroadcastEncoding(NamedTuple):
    """The codec of a broadcast, whether every hop encodes again, and ``keep_root``."""

    codec: str
    every_hop: bool = False
    keep_root: bool = False


def broadcast(topology: HostTopology, x: Tensor, root: int, encoding: BroadcastEncoding) -> None:
    """Broadcast the root's ``x`` encoded; all ranks get the decoded values."""
    _broadcast(
        topology, x, root, encoding, PlainEncoder(codec_of(encoding.codec, DTYPE_NAMES[x.dtype]))
    )


def broadcast_delta(
    deltas: Deltas, topology: HostTopology, x: Tensor, root: int, encoding: BroadcastEncoding
) -> None:
    """Send what changed since the last broadcast of the root's tensor."""

    def plain(note: Octets) -> None:
        inter_host_movement.broadcast(topology, torch.from_numpy(note), root)

    delta = deltas.agreed(encoding.codec, DTYPE_NAMES[x.dtype], as_bytes(x).numpy(), root, plain)
    _broadcast(topology, x, root, encoding, DeltaEncoder(delta))


def _broadcast(
    topology: HostTopology, x: Tensor, root: int, encoding: BroadcastEncoding, coder: PieceEncoder
) -> None:
    about = (x.dtype, f"root {root}", coder.name, f"frames {FRAME_VERSION}", *encoding[1:])
    begin = time.perf_counter()
    with topology.session("broadcast", x.nbytes, *about) as session:
        if x.numel():
            chain = _EncodedBroadcast(topology, session, as_bytes(x).numpy(), root, coder, encoding)
            chain.run()
            wait_for_last_host(
                topology, session, root, timed=chain.choose.timed or x.nbytes >= LONG
            )
    if topology.rank == root and x.numel():
        seconds = time.perf_counter() - begin
        topology.chunk_sizes.record((x.nbytes, coder.name), chain.choose, chain.wire_bytes, seconds)


class _EncodedBroadcast:
    """One rank's part of a broadcast, piece by piece."""

    def __init__(
        self,
        topology: HostTopology,
        session: InterHostSession,
        data: Octets,
        root: int,
        coder: PieceEncoder,
        encoding: BroadcastEncoding,
    ) -> None:
        self._topology = topology
        self._session = session
        self._coder = coder
        self._encoding = encoding
        self._data, self._root = data, root
        hosts, step = topology.hosts, (topology.host - topology.hosts.of[root]) % topology.hosts.num
        is_leader = topology.is_leader(root)
        self._is_root = topology.rank == root
        self._source = hosts.leader(topology.sources[0], root) if is_leader and step else None
        self._next = (
            hosts.leader(topology.destinations[0], root)
            if is_leader and step < hosts.num - 1
            else None
        )
        self.choose = agree_on_chunk_size(topology, session, len(data), root, self._chosen)
        self._piece = self.choose.nbytes
        self.count = -(-len(data) // self._piece)
        most = min(MOST_AHEAD, max(FEW_AHEAD, AHEAD_BYTES // self._piece))
        self._ahead = min(most if len(data) >= LONG else FEW_AHEAD, self.count)
        self._ring = min(2 * self._ahead, self.count)  # received ones, and those being forwarded
        self._slots = topology.slots(self._ring, coder.codec.room(min(self._piece, len(data))))
        self._sent: dict[int, list[Transfer]] = {}
        self._incoming: dict[int, list[Transfer]] = {}
        self._decoder = BackgroundDecoder(coder.codec)
        self.wire_bytes = 0

    def run(self) -> None:
        """Receive, forward, share and decode every piece."""
        try:
            for number, asked in enumerate(receive_windows(self.count, self._ahead)):
                for each in asked:
                    self._post_receive(each)
                self._process(number)
        finally:
            self._decoder.close()

    def _chosen(self) -> ChunkChoice:
        """Return the chunk size, by the compression ratio of the data."""
        codec, nbytes = self._coder.codec, len(self._data)
        varies = is_lossless(codec.name) and nbytes >= LONG
        usual = expected_ratio(codec.name, codec.dtype)
        ratio = sampled_ratio(self._coder, self._data) if varies else usual
        return self._topology.chunk_sizes.choose(nbytes, ratio, self._coder.name)

    def _post_receive(self, number: int) -> None:
        """Post the receive of a piece into a free slot."""
        self._decoder.wait(number - self._ring)
        wait_for(self._sent.pop(number - self._ring, []))
        if self._source is not None:
            slot = torch.from_numpy(self._slots[number % self._ring])
            self._incoming[number] = self._session.recv(slot, self._source)

    def _process(self, number: int) -> None:
        slot = self._slots[number % self._ring]
        size = 0
        if self._is_root:
            size = self._encode(number, slot)
        elif self._source is not None:
            wait_for(self._incoming.pop(number))
            # Gloo does not report the length of a message: the frame has its own.
            size = self._checked(frame_bytes(slot), slot, number)
        if self._encoding.every_hop and self._source is not None:
            self._decode(number, slot[:size])
            self._decoder.wait(number)
            if self._next is not None:
                size = self._encode(number, slot)
            self._forward_piece(number, slot[:size])
            self._share(number, slot, size)
            return
        self._forward_piece(number, slot[:size])
        size = self._share(number, slot, size)
        if not self._is_root or self._rounds:
            self._decode(number, slot[:size])

    @property
    def _rounds(self) -> bool:
        """Whether the root must replace its data by the decoded ones."""
        return self._coder.rounds and not (self._encoding.keep_root or self._encoding.every_hop)

    def _forward_piece(self, number: int, frame: Octets) -> None:
        self.wire_bytes += len(frame)
        if self._next is not None:
            self._sent[number] = self._session.send(torch.from_numpy(frame), self._next)

    def _share(self, number: int, slot: Octets, size: int) -> int:
        """Broadcast the frame to all ranks of this host; its length first."""
        topology = self._topology
        if topology.intra_host.alone:
            return size
        length = torch.tensor([size])
        at = topology.leader_local_rank(self._root)
        topology.intra_host.broadcast(length, at)
        size = int(length)
        topology.intra_host.broadcast_any_length(
            torch.from_numpy(slot[: self._checked(size, slot, number)]), at
        )
        return size

    def _encode(self, number: int, slot: Octets) -> int:
        return self._coder.encode(self._chunk(number), slot, number * self._piece)

    def _decode(self, number: int, frame: Octets) -> None:
        chunk = self._chunk(number)

        def act() -> None:
            try:
                self._coder.decode(frame, chunk, number * self._piece)
            except CodecError as error:
                raise self._chunk_error(number, error) from error

        self._decoder.do(number, act)

    def _checked(self, size: int, slot: Octets, number: int) -> int:
        if FRAME_HEAD <= size <= len(slot):
            return size
        raise self._chunk_error(
            number,
            CodecError(f"invalid frame length {size} (expected {FRAME_HEAD} to {len(slot)})"),
        )

    def _chunk_error(self, number: int, error: CodecError) -> CodecError:
        where = f"rank {self._topology.rank} cannot decode chunk {number} of {self.count}"
        text = f"{where} of {self._session.call}: {str(error).rstrip('.')}"
        return CodecError(text, error.hint)

    def _chunk(self, number: int) -> Octets:
        return self._data[number * self._piece : (number + 1) * self._piece]
