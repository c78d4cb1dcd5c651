"""Memory for a collective, ordinary, strided or in the heap: bytes around it must stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.soak.values import SMALL, Array
from weft.runtime import RawMemory, World

GUARD = 64
_MARK = 0xA5
ARENA = 24 << 20


class Room:
    """Some bytes in one piece, and a guard on both sides."""

    def __init__(self, whole: Array, nbytes: int) -> None:
        self._whole = whole
        whole[:] = _MARK
        self.bytes = whole[GUARD : GUARD + nbytes]

    def fill(self, given: Array) -> None:
        self.bytes[:] = given

    def holds(self, wanted: Array) -> bool:
        before, after = self._whole[:GUARD], self._whole[GUARD + self.bytes.size :]
        intact = (before == _MARK).all() and (after == _MARK).all()
        return bool(intact and np.array_equal(self.bytes, wanted))

    def memory(self, dtype: str) -> Any:
        """As a World takes it: an array, or an address where numpy has no such dtype."""
        if dtype in SMALL:
            return RawMemory(self.bytes.ctypes.data, self.bytes.nbytes, dtype)
        return self.bytes.view(dtype)

    def tensor(self, dtype: str) -> torch.Tensor:
        return torch.from_numpy(self.bytes).view(getattr(torch, dtype))


class Comb:
    """Every second element of a tensor; those between are the guard."""

    def __init__(self, nbytes: int, dtype: str) -> None:
        item = getattr(torch, dtype).itemsize
        self._whole = torch.full((nbytes // item, 2, item), _MARK, dtype=torch.uint8)
        self._tensor = self._whole.view(getattr(torch, dtype))[:, 0, 0]

    def fill(self, given: Array) -> None:
        self._whole[:, 0] = torch.from_numpy(given).view(self._whole[:, 0].shape)

    def holds(self, wanted: Array) -> bool:
        have = self._whole[:, 0].reshape(-1).numpy()
        return bool((self._whole[:, 1] == _MARK).all() and np.array_equal(have, wanted))

    def tensor(self, dtype: str) -> torch.Tensor:
        assert str(self._tensor.dtype) == f"torch.{dtype}"
        return self._tensor


class Rooms:
    """Gives room after room of one arena in the heap, from the start again when it is full."""

    def __init__(self, world: World, nbytes: int = ARENA) -> None:
        self._world = world
        self._arena = world.empty(nbytes, "uint8")
        self._at = 0

    def has(self, nbytes: int) -> bool:
        """Whether so much fits before the arena starts again, which needs all of it back."""
        return self._at + nbytes + 64 * GUARD <= self._arena.size

    def restart(self) -> None:
        self._at = 0

    def renew(self) -> None:
        """Free the arena and allocate another. Collective."""
        nbytes = self._arena.size
        self._world.free(self._arena)
        self._arena = self._world.empty(nbytes, "uint8")
        self._at = 0

    def take(self, nbytes: int, *, in_heap: bool) -> Room:
        size = nbytes + 2 * GUARD
        if not in_heap:
            return Room(np.empty(size, np.uint8), nbytes)
        start = self._at
        self._at += -(-size // GUARD) * GUARD
        return Room(self._arena[start : start + size], nbytes)
