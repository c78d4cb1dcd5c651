"""The peak memory of a captured step, by the lifetimes of its storages."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable

import torch

from weft.step.step_graph import Memory

SETUP, GATHERED, OPTIMIZER, BACKWARD = "setup", "gathered", "optimizer", "backward"


class HeldMemory:
    """Bytes that are held: by the phase in which they were asked for, now and at the most.

    A first step makes the state of its optimizer when forward and backward pass are over; from
    the second step on it is there all the time. So the most that a step holds is the larger of
    two: what its optimizer holds while it works, and the most without the optimizer, plus the
    state that it leaves.
    """

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.total = 0
        self.label = ""
        self.on_free: Callable[[int], object] = id  # told which storage is gone
        self._state = 0  # what optimizers hold when they are done
        self._peak = self._working_peak = 0  # without the optimizer, and while it works
        self._at_peak: Counter[str] = Counter()
        self._at_working_peak: Counter[str] = Counter()
        self.keeps_gradients = False  # zero_grad(set_to_none=False): from one step to the next
        self._kept = 0  # of gradients, at the end of a step
        self._rest_peak = 0  # without the optimizer and gradients
        self._at_rest_peak: Counter[str] = Counter()
        self._known: dict[int, tuple[int, str]] = {}

    def hold(self, tensors: list[torch.Tensor], phase: str) -> None:
        """Count the storages of new tensors until they are freed."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata  # noqa: SLF001 - its address, which views share
            if key not in self._known:
                label = phase if phase == OPTIMIZER else self.label or phase
                self._set(key, storage.nbytes(), label)
                weakref.finalize(storage, self._free, key).atexit = False
        self._look(working=phase == OPTIMIZER)

    def resized(self, key: int, nbytes: int) -> None:
        """Record that a storage grows or shrinks in place, as FSDP's gathered weights do."""
        if key in self._known:
            self._set(key, nbytes, GATHERED)
            self._look()

    def _set(self, key: int, nbytes: int, label: str) -> None:
        before, old = self._known.get(key, (0, label))
        self.now[old] -= before
        self.now[label] += nbytes
        self.total += nbytes - before
        self._known[key] = nbytes, label

    def _look(self, *, working: bool = False) -> None:
        if working:
            if self.total > self._working_peak:
                self._working_peak, self._at_working_peak = self.total, self.now.copy()
            return
        rest = self.total - self.now[OPTIMIZER]
        if rest > self._peak:
            self._peak, self._at_peak = rest, self.now.copy()
        if rest - self.now[BACKWARD] > self._rest_peak:
            self._rest_peak, self._at_rest_peak = rest - self.now[BACKWARD], self.now.copy()

    def _free(self, key: int) -> None:
        nbytes, label = self._known.pop(key)
        self.now[label] -= nbytes
        self.total -= nbytes
        self.on_free(key)

    def optimizer_done(self) -> None:
        """Record what optimizers hold now as their state."""
        self._state = max(self._state, self.now[OPTIMIZER])

    def step_done(self) -> None:
        """Record the current gradients as those that the next step begins with."""
        self._kept = self.now[BACKWARD] if self.keeps_gradients else 0

    def start_again(self) -> None:
        """Reset the peak: the step begins now."""
        self._peak = self._working_peak = self._rest_peak = 0
        self._look()

    def memory(self) -> Memory:
        """Sort what was held at the most by what it is for: when it was asked for tells."""
        gradients = self._kept
        if self._rest_peak + gradients > max(self._peak, self._working_peak - self._state):
            at, optimizer = self._at_rest_peak, self._state
            at[BACKWARD] = gradients
        elif self._working_peak > self._peak + self._state:
            at, optimizer = self._at_working_peak, self._at_working_peak[OPTIMIZER]
        else:
            at, optimizer = self._at_peak, self._state
        return Memory(
            weights=at[SETUP],
            gradients=at[BACKWARD],
            optimizer=optimizer,
            activations=at["forward"],
            other=at[GATHERED],
        )
