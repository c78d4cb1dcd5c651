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
from weft.torch.hosts import inter_host_collectives
from weft.torch.hosts.chunk_size import LONG, ChunkChoice
from weft.torch.hosts.chunks import as_bytes
from weft.torch.hosts.consensus import agree_on_chunk_size, wait_for_last_host
from weft.torch.hosts.host_topology import HostTopology
from weft.torch.hosts.inter_host_session import InterHostSession
from weft.torch.hosts.piece_chain import PieceChain
from weft.torch.hosts.piece_coders import (
    BackgroundDecoder,
    DeltaEncoder,
    PieceEncoder,
    PlainEncoder,
    sampled_ratio,
)

# Receives that a host posts ahead: limited by memory; few for short tensors, so that a root whose
# piece cannot be decoded gets the error before it has sent them all. Of a long tensor the root
# waits for the end.
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
        inter_host_collectives.broadcast(topology, torch.from_numpy(note), root)

    delta = deltas.consensus(encoding.codec, DTYPE_NAMES[x.dtype], as_bytes(x).numpy(), root, plain)
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


class _EncodedBroadcast(PieceChain):
    """One rank's part of the broadcast of a tensor, whose pieces are frames."""

    def __init__(
        self,
        topology: HostTopology,
        session: InterHostSession,
        data: Octets,
        root: int,
        coder: PieceEncoder,
        encoding: BroadcastEncoding,
    ) -> None:
        self._coder = coder
        self._encoding = encoding
        self._data = data
        self.choose = agree_on_chunk_size(
            topology, session, len(data), root, lambda: self._chosen(topology)
        )
        self._piece = self.choose.nbytes
        count = -(-len(data) // self._piece)
        most = min(MOST_AHEAD, max(FEW_AHEAD, AHEAD_BYTES // self._piece))
        ahead = most if len(data) >= LONG else FEW_AHEAD
        room = coder.room(min(self._piece, len(data)))
        super().__init__(topology, session, root, count=count, room=room, ahead=ahead)
        self._decoder = BackgroundDecoder(coder.codec)

    def run(self) -> None:
        """Receive, forward, share and decode every piece."""
        try:
            super().run()
        finally:
            self._decoder.close()

    def encode(self, number: int, slot: Octets) -> int:
        """Write the frame of a piece."""
        return self._coder.encode(self._chunk(number), slot, number * self._piece)

    def take(self, number: int, piece: Octets) -> None:
        """Decode a piece; the root only if its data must be replaced by the decoded ones."""
        rounds = self._coder.rounds and not (self._encoding.keep_root or self._encoding.every_hop)
        if not self.is_root or rounds:
            self._decode(number, piece)

    def size_of(self, number: int, slot: Octets) -> int:
        """Return the length of a frame: Gloo does not report it."""
        size = frame_bytes(slot)
        if FRAME_HEAD <= size <= len(slot):
            return size
        raise self._chunk_error(
            number,
            CodecError(f"invalid frame length {size} (expected {FRAME_HEAD} to {len(slot)})"),
        )

    def wait_until_free(self, number: int) -> None:
        """Wait until a piece is decoded."""
        self._decoder.wait(number)

    def _process(self, number: int) -> None:
        if not self._encoding.every_hop or self.source is None:
            super()._process(number)
            return
        slot, size = self._received(number)
        self._decode(number, slot[:size])
        self._decoder.wait(number)
        if self.next is not None:
            size = self.encode(number, slot)
        self._forward_piece(number, slot[:size])
        self._share(number, slot, size)

    def _chosen(self, topology: HostTopology) -> ChunkChoice:
        """Return the chunk size, by the compression ratio of the data."""
        codec, nbytes = self._coder.codec, len(self._data)
        varies = is_lossless(codec.name) and nbytes >= LONG
        usual = expected_ratio(codec.name, codec.dtype)
        ratio = sampled_ratio(self._coder, self._data) if varies else usual
        return topology.chunk_sizes.choose(nbytes, ratio, self._coder.name)

    def _decode(self, number: int, frame: Octets) -> None:
        chunk = self._chunk(number)

        def act() -> None:
            try:
                self._coder.decode(frame, chunk, number * self._piece)
            except CodecError as error:
                raise self._chunk_error(number, error) from error

        self._decoder.do(number, act)

    def _chunk_error(self, number: int, error: CodecError) -> CodecError:
        where = f"rank {self._topology.rank} cannot decode chunk {number} of {self.count}"
        text = f"{where} of {self._session.call}: {str(error).rstrip('.')}"
        return CodecError(text, error.hint)

    def _chunk(self, number: int) -> Octets:
        return self._data[number * self._piece : (number + 1) * self._piece]
