"""The tensors of an update as bytes, cut into pieces of bounded size.

Sender and receivers name the same tensors in the same order; each cuts them alike, so that a
piece needs no description on the wire.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from weft._core import changes_room
from weft.compress.codec_registry import codec_of
from weft.compress.delta import word_bytes
from weft.compress.frame import FLOATS, Octets
from weft.errors import UsageError
from weft.torch.backend.channel import DTYPE_NAMES
from weft.torch.backend.contiguity import is_dense_contiguous
from weft.torch.hosts.chunks import as_bytes

# Bytes of weights in a piece: of weights of which 1 % changed, a message of 45 KB. Long enough that
# the calls of a message cost little (0.1 ms for 4 MiB, which take 0.5 ms to encode), short enough
# that full updates flow along a chain of hosts.
PIECE_BYTES = 4 << 20


class Segment(NamedTuple):
    """Bytes ``start`` to ``stop`` of a tensor, by its position in the layout."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """Names, dtypes, sizes and shapes of the tensors, and the pieces they are cut into."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    nbytes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def total_bytes(self) -> int:
        """The bytes of all tensors."""
        return sum(self.nbytes)

    @property
    def digest(self) -> int:
        """63 bits that are equal if the layouts are."""
        text = repr((self.names, self.dtypes, self.nbytes, self.shapes)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1

    def pieces(self) -> list[list[Segment]]:
        """Return the pieces: parts of long tensors, and several short tensors together."""
        found: list[list[Segment]] = []
        room = 0
        for tensor, nbytes in enumerate(self.nbytes):
            start = 0
            while start < nbytes:
                if room < min(nbytes - start, PIECE_BYTES):
                    found.append([])
                    room = PIECE_BYTES
                stop = min(nbytes, start + room)
                found[-1].append(Segment(tensor, start, stop))
                room -= stop - start
                start = stop
        return found

    def room(self, piece: list[Segment]) -> int:
        """Return the bytes that the frames of a piece may need."""
        return sum(self.segment_room(segment) for segment in piece)

    def segment_room(self, segment: Segment) -> int:
        """Return the bytes that the frame of a segment may need."""
        nbytes = segment.stop - segment.start
        codec = codec_of(whole_codec(self.dtypes[segment.tensor]), self.dtypes[segment.tensor])
        return max(changes_room(nbytes), codec.room(nbytes))

    def words(self) -> Iterator[int]:
        """Yield the bytes of a word of every tensor."""
        return map(word_bytes, self.dtypes)


def whole_codec(dtype: str) -> str:
    """Return the codec of values that are sent whole."""
    return "pack" if dtype in FLOATS else "none"


def layout_of(tensors: Mapping[str, Tensor]) -> tuple[WeightLayout, list[Octets]]:
    """Return the layout of named tensors and their memory; raise if a tensor cannot be used."""
    if not tensors:
        raise UsageError("tensors: expected at least one (got none).", "Pass model.state_dict().")
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu":
            raise UsageError(
                f"tensors: expected tensors in CPU memory (got {name!r}, {tensor.device}).",
                "Copy weights of other devices to pinned CPU memory first.",
            )
        if not is_dense_contiguous(tensor):
            strides = f"with strides {tensor.stride()}"
            how = "lazily conjugated or negated" if tensor.is_contiguous() else strides
            raise UsageError(
                f"tensors: expected contiguous tensors (got {name!r} {how}).",
                "Pass tensor.resolve_conj().contiguous(), and copy it back after a switch.",
            )
    memory = [
        as_bytes(tensor.detach()).numpy()
        if tensor.numel()
        else tensor.new_empty(0).view(-1).numpy().view("uint8")
        for tensor in tensors.values()
    ]
    layout = WeightLayout(
        tuple(tensors),
        tuple(DTYPE_NAMES[tensor.dtype] for tensor in tensors.values()),
        tuple(len(each) for each in memory),
        tuple(tuple(tensor.shape) for tensor in tensors.values()),
    )
    return layout, memory
