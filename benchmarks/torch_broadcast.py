"""Trained weights sent from rank 0 to all, as a rank of the benchmark does it."""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

import weft.torch
from benchmarks.torch_weights import trained_weights
from weft.compress import Codec, codec_of
from weft.compress.delta import is_delta
from weft.torch.backend.c10d import ProcessGroup
from weft.torch.backend.group_functions import weft_group
from weft.torch.hosts.multi_host_channel import MultiHostChannel

CHANGED = 0.05  # share of the values that an update changes
KEPT = 0.1  # share of the values that sparse weights have
_CHAIN, _HOPS = "chain+", "p2p+"


@dataclass
class SentWeights:
    """A broadcast of ``nbytes`` by an algorithm: chain, chain+CODEC or p2p+CODEC.

    ``data`` is what is sent: weights, zeros, sparse (most of them zero), or updates, which
    change some values every time. ``keep_root``: the root stays exact, as it does p2p. ``warm``
    is how often it is sent before anything is measured: on fast links a root tries some lengths.
    """

    algorithm: str
    nbytes: int
    data: str = "weights"
    dtype: str = "float32"
    keep_root: bool = False
    warm: int = 0
    group: ProcessGroup | None = None
    x: Tensor = field(init=False)

    def __post_init__(self) -> None:
        dtype: torch.dtype = getattr(torch, self.dtype)
        values = values_of(self.data, self.nbytes // dtype.itemsize)
        self._sources = [torch.from_numpy(each).to(dtype) for each in values]
        self._number = 0
        self.x = self._sources[0].clone()
        self._name = self.algorithm.removeprefix(_CHAIN)
        self.free = lambda: weft.torch.compress(self.group, broadcast=None)
        for _ in range(self.warm):
            self.ready()
            self.act()

    def ready(self) -> None:
        """Return the root what it sends; say how."""
        codec = None if self._name == "chain" else self._name
        weft.torch.compress(self.group, broadcast=codec, keep_root=self.keep_root)
        self._number += 1
        if dist.get_rank() == 0:
            self.x.copy_(self._source)

    def act(self) -> None:
        """Send it."""
        dist.broadcast(self.x, 0, group=self.group)

    def answer(self) -> dict[str, Any]:
        """Broadcast over overwritten data; return the error relative to the root, and a digest.

        The root also says in how long pieces it was sent, and what encoding and decoding take.
        """
        self.ready()
        if dist.get_rank():
            self.x.zero_()
        self.act()
        want, have = self._source.double(), self.x.double()
        size = float(want.norm())
        error = float((have - want).norm()) / size if size else float(have.norm())
        raw = self.x.view(torch.uint8).numpy()
        held = {"error": error, "sum": int(np.add.reduce(raw.view(np.uint32), dtype=np.uint64))}
        return held | (self._costs() if dist.get_rank() == 0 else {})

    def _costs(self) -> dict[str, Any]:
        """Measure the codec alone: the other hosts are idle."""
        channel, name = weft_group(self.group).channel, self._name.removeprefix(_HOPS)
        piece = channel.chunk_sizes.last if isinstance(channel, MultiHostChannel) else 0
        if name == "chain" or is_delta(name) or not piece:
            return {"piece": piece, "encode": 0.0, "decode": 0.0}
        data = self._source.view(torch.uint8).numpy()
        encode, decode = coding_seconds(codec_of(name, self.dtype), data, piece)
        return {"piece": piece, "encode": encode, "decode": decode}

    @property
    def _source(self) -> Tensor:
        return self._sources[self._number % len(self._sources)]


def coding_seconds(codec: Codec, data: NDArray[np.uint8], piece: int) -> tuple[float, float]:
    """Return the seconds to encode and to decode it piece by piece; the better of two times."""
    frame, back = np.zeros(codec.room(piece), np.uint8), np.zeros_like(data)
    times = []
    for _ in range(2):
        encode = decode = 0.0
        for at in range(0, len(data), piece):
            begin = time.perf_counter()
            size = codec.encode(data[at : at + piece], frame)
            middle = time.perf_counter()
            codec.decode(frame[:size], back[at : at + piece])
            encode, decode = encode + middle - begin, decode + time.perf_counter() - middle
        times.append((encode, decode))
    return min(each[0] for each in times), min(each[1] for each in times)


def values_of(data: str, count: int) -> list[NDArray[np.float32]]:
    """Return what is sent one time after another: trained weights, repeated as often as needed."""
    weights = np.resize(trained_weights(), count)
    rng = np.random.default_rng(0)
    if data == "zeros":
        return [np.zeros_like(weights)]
    if data == "sparse":
        return [np.where(rng.random(count) < KEPT, weights, np.float32(0))]
    if data == "updates":
        changed = rng.random(count) < CHANGED
        return [weights, np.where(changed, weights * np.float32(1.01), weights)]
    return [weights]
