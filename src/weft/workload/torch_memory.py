"""What memory a step holds, counted as its storages come and go."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable

import torch

from weft.workload.step import Memory

SETUP, GATHERED = "setup", "gathered"


class Held:
    """Bytes that are held: by the phase in which they were asked for, now and at the most."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.total = self.most = 0
        self.at_most: Counter[str] = Counter()
        self.label = ""
        self.on_free: Callable[[int], object] = id  # told which storage is gone
        self._known: dict[int, tuple[int, str]] = {}

    def hold(self, tensors: list[torch.Tensor], phase: str) -> None:
        """Count the storages of new tensors until they are freed."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata  # noqa: SLF001 - its address, which views share
            if key not in self._known:
                self._set(key, storage.nbytes(), self.label or phase)
                weakref.finalize(storage, self._free, key).atexit = False
        self._look()

    def resized(self, key: int, nbytes: int) -> None:
        """See a storage grow or shrink in place, as FSDP lets gathered weights do."""
        if key in self._known:
            self._set(key, nbytes, GATHERED)
            self._look()

    def _set(self, key: int, nbytes: int, label: str) -> None:
        before, old = self._known.get(key, (0, label))
        self.now[old] -= before
        self.now[label] += nbytes
        self.total += nbytes - before
        self._known[key] = nbytes, label

    def _look(self) -> None:
        if self.total > self.most:
            self.start_again()

    def _free(self, key: int) -> None:
        nbytes, label = self._known.pop(key)
        self.now[label] -= nbytes
        self.total -= nbytes
        self.on_free(key)

    def start_again(self) -> None:
        """Take what is held now as the most."""
        self.most, self.at_most = self.total, self.now.copy()

    def memory(self) -> Memory:
        """Sort what was held at the most by what it is for: when it was asked for tells."""
        at = self.at_most
        return Memory(
            weights=at[SETUP],
            gradients=at["backward"],
            optimizer=max(at["optimizer"], self.now["optimizer"]),
            activations=at["forward"],
            other=at[GATHERED],
        )
