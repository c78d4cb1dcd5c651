"""Broadcasts along a chain of ranks that send encoded pieces.

In ``chain``, the root encodes each piece once and the others forward the encoded bytes. In ``p2p``,
every hop decodes what it received and encodes it again.
"""

from collections.abc import Callable
from dataclasses import dataclass

from weft.collectives.parts import (
    ITEM_BYTES,
    Items,
    in_pieces,
    in_place,
    launched,
    own,
    signal,
    wait,
)
from weft.compress import codec_of, expected_ratio, is_lossless
from weft.schedule import (
    SELF,
    Buffer,
    Copy,
    Decode,
    Encode,
    Group,
    Program,
    Rel,
    Schedule,
    Slice,
    shifted,
)
from weft.schedule.values import RankValue, Value

Body = Callable[[Value, int, Value], Items]

READY, SENT, ENCODED, DECODED = 0, 1, 2, 3
SLOT_HEAD = 8  # the actual length of the encoded data is stored in front of it
_PIECE = 256 << 10  # stays in the second-level cache from encoding to sending
_LEAST_PIECES = 16  # a short vector is cut into more pieces, so that the pipeline fills


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A vector in pieces, each with a slot for its encoded form."""

    nbytes: int
    piece: int
    codec: str
    dtype: str

    @property
    def slot(self) -> int:
        """The size of a slot in bytes, padded so that slots do not share cache lines."""
        room = codec_of(self.codec, self.dtype).room(self.piece)
        return -(-(SLOT_HEAD + room) // 64) * 64

    @property
    def count(self) -> int:
        """The number of pieces: at least one, which may be empty."""
        return max(1, -(-self.nbytes // self.piece))

    def each(self, body: Body) -> Items:
        """Return the commands of ``body`` for every piece in turn."""
        return in_pieces(self.nbytes, self.piece, body)[0]

    def slot_of(self, number: Value) -> Value:
        """Return the offset of the slot of a piece; pieces count from one."""
        if isinstance(number, int):
            return (number - 1) * self.slot
        return Rel(0, (self.slot,))

    def send(self, number: Value, to: RankValue, slots: str = "slots") -> Items:
        """Return commands that send the used bytes of a slot to the next rank."""
        place = self.slot_of(number)
        copy = Copy(own(slots, place, self.slot), Slice(to, "slots", place, self.slot))
        return (copy, signal(to, SENT))

    def encode(self, offset: Value, size: int, number: Value, slots: str = "slots") -> Encode:
        """Return the command that encodes a piece into its slot."""
        slot = own(slots, self.slot_of(number), self.slot)
        return Encode(own("data", offset, size), slot, self.codec, self.dtype)

    def decode(self, offset: Value, size: int, number: Value) -> Decode:
        """Return the command that decodes a slot into its piece."""
        slot = own("slots", self.slot_of(number), self.slot)
        return Decode(slot, own("data", offset, size), self.codec, self.dtype)


def chain(
    num_ranks: int,
    nbytes: int,
    *,
    codec: str,
    dtype: str = "float32",
    root: int = 0,
    piece: int | None = None,
    ratio: float | None = None,
    keep_root: bool = False,
) -> Schedule:
    """Build a chain in which the root encodes and the others forward and decode.

    The root encodes piece k while piece k-1 is sent. With a lossy codec the root also decodes, so
    that all ranks hold the same bytes, unless ``keep_root``. K pieces take (n - 2 + K) times the
    slowest of encoding, sending and decoding.
    """
    pieces = _cut(nbytes, piece, codec, dtype)
    after = shifted(Group(num_ranks), 1)
    rounds = not (keep_root or is_lossless(codec))

    def pass_on(flag: int) -> Items:
        sends = pieces.each(lambda _offset, _size, k: (wait(flag, k), *pieces.send(k, after)))
        return (wait(READY), *sends)

    made = pieces.each(lambda o, s, k: (pieces.encode(o, s, k), signal(SELF, ENCODED)))
    again = pieces.each(lambda o, s, k: (wait(ENCODED, k), pieces.decode(o, s, k)))
    taken = pieces.each(lambda o, s, k: (wait(SENT, k), pieces.decode(o, s, k)))
    hello = signal(shifted(Group(num_ranks), -1), READY)
    lanes = (
        (made, pass_on(ENCODED), *((again,) if rounds else ())),
        ((hello, *pass_on(SENT)), taken),
        ((hello, *taken),),
    )
    return _line(f"chain+{codec} broadcast", num_ranks, root, lanes, pieces, ratio, ("slots",))


def p2p(
    num_ranks: int,
    nbytes: int,
    *,
    codec: str,
    dtype: str = "float32",
    root: int = 0,
    piece: int | None = None,
    ratio: float | None = None,
) -> Schedule:
    """Build a chain of messages, each encoded by its sender and decoded by its receiver.

    A lossy codec is applied again on each hop, and the root keeps its input: ranks may differ.
    """
    pieces = _cut(nbytes, piece, codec, dtype)
    after = shifted(Group(num_ranks), 1)

    def send(offset: Value, size: int, number: Value) -> Items:
        encode = pieces.encode(offset, size, number, "sent")
        return (encode, *pieces.send(number, after, "sent"))

    taken = pieces.each(
        lambda o, s, k: (wait(SENT, k), pieces.decode(o, s, k), signal(SELF, DECODED))
    )
    forward = pieces.each(lambda o, s, k: (wait(DECODED, k), *send(o, s, k)))
    hello = signal(shifted(Group(num_ranks), -1), READY)
    lanes = (
        ((wait(READY), *pieces.each(send)),),
        ((hello, wait(READY), *forward), taken),
        ((hello, *pieces.each(lambda o, s, k: (wait(SENT, k), pieces.decode(o, s, k)))),),
    )
    names = ("slots", "sent")
    return _line(f"p2p+{codec} broadcast", num_ranks, root, lanes, pieces, ratio, names)


def _cut(nbytes: int, piece: int | None, codec: str, dtype: str) -> _Pieces:
    item = ITEM_BYTES.get(dtype, 1)
    whole = -(-nbytes // _LEAST_PIECES // 4096) * 4096  # codec blocks stay whole
    piece = piece or max(4096, min(_PIECE, whole))
    return _Pieces(nbytes, -(-piece // item) * item, codec, dtype)


def _line(
    name: str,
    num_ranks: int,
    root: int,
    lanes: tuple[tuple[Items, ...], ...],
    pieces: _Pieces,
    ratio: float | None,
    slots: tuple[str, ...],
) -> Schedule:
    """Build one program for the root, one for the middle ranks, one for the last rank."""
    line = [(root + index) % num_ranks for index in range(num_ranks)]
    parts = zip((line[:1], line[1:-1], line[-1:]), lanes, strict=True)
    programs = tuple(Program(tuple(ranks), (launched(*each),)) for ranks, each in parts if ranks)
    scratch = tuple(Buffer(slot, pieces.count * pieces.slot) for slot in slots)
    ratio = ratio or expected_ratio(pieces.codec, pieces.dtype)
    buffers = (in_place(pieces.nbytes), *scratch)
    return Schedule(name, num_ranks, programs, buffers, 4, ((pieces.codec, ratio),))
