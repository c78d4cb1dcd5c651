"""Disaggregated serving: a pool of prefill workers, a pool of decode workers, a network between.

    client -> queue -> prefill workers -> keys and values over the network -> decode workers

A prefill worker takes as many whole prompts from the queue as fit into the tokens of a pass. A
decode worker starts a pass when the previous one has ended, with all requests it has received, or
as many as a batch has room for; the others wait.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weft.models.transformer import Piece
from weft.serving.batching import BatchLimits, answers_of
from weft.serving.outcome import ServingOutcome, repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weft.serving.forward import Forward
    from weft.serving.requests import Request


@dataclass(frozen=True)
class WorkerPool:
    """Equal workers: their number, the cost of their passes, and the limits of a batch."""

    count: int
    forward: Forward
    limits: BatchLimits

    def launch(self, requests: int) -> float:
        """Return the host time of a pass over so many requests, in seconds."""
        own = self.limits.overhead + requests * self.limits.request_overhead
        return self.forward.platform.require_device().host_launch + own


@dataclass(frozen=True)
class DisaggregatedEngine:
    """Simulates requests on two pools of workers.

    ``transfer`` is the time to move the keys and values of one token between workers, in seconds.
    """

    prefill: WorkerPool
    decode: WorkerPool
    transfer: float = 0.0

    def serve(self, requests: Sequence[Request]) -> ServingOutcome:
        """Simulate all requests; return their latencies and the throughput."""
        return _DisaggregatedRun(self, list(requests)).outcome()


@dataclass
class _DecodeWorker:
    """A decode worker: its running requests, and those that join at the next pass."""

    ends: list[tuple[int, int]] = field(default_factory=list)  # pass of the last token, request
    joining: list[tuple[int, float]] = field(default_factory=list)  # request, when it came
    passes: int = 0
    context: int = 0  # tokens that all of its requests see together
    running: bool = False

    @property
    def load(self) -> int:
        return len(self.ends) + len(self.joining)


class _DisaggregatedRun:
    """One simulation: a heap of events, processed in order of time."""

    def __init__(self, engine: DisaggregatedEngine, requests: list[Request]) -> None:
        self.engine, self.requests = engine, requests
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbered = 0
        self.now = self.tokenizer = 0.0
        self.queue: deque[int] = deque()
        self.idle = engine.prefill.count
        self.workers = [_DecodeWorker() for _ in range(engine.decode.count)]
        self.arrival = np.zeros(len(requests))
        self.first = np.zeros(len(requests))
        self.gaps: list[tuple[float, int]] = []
        self.computing, self.passes = 0.0, 0
        self.next = engine.prefill.limits.concurrency or len(requests)

    def outcome(self) -> ServingOutcome:
        for number, request in enumerate(self.requests[: self.next]):
            self._at(request.arrival, partial(self._come, number))
        while self.events:
            self.now, _, happen = heapq.heappop(self.events)
            happen()
        return ServingOutcome(
            self.first,
            repeated(self.gaps),
            np.zeros(len(self.requests)),
            self.now - self.requests[0].arrival,
            sum(each.output for each in self.requests),
            self.computing,
            0.0,
            self.passes,
        )

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        self.numbered += 1
        heapq.heappush(self.events, (time, self.numbered, happen))

    def _come(self, number: int) -> None:
        """Tokenize a prompt, after those that came before, then queue it for prefill."""
        limits, prompt = self.engine.prefill.limits, self.requests[number].prompt
        self.arrival[number] = self.now
        self.tokenizer = max(self.tokenizer, self.now) + limits.tokenizing * prompt
        self._at(self.tokenizer + limits.admission, lambda: self._wait(number))

    def _wait(self, number: int) -> None:
        self.queue.append(number)
        self._compute_prompts()

    def _compute_prompts(self) -> None:
        pool = self.engine.prefill
        while self.idle and self.queue:
            taken = [self.queue.popleft()]
            left = pool.limits.tokens - self._prompt(taken[0])
            most = pool.limits.batch
            while self.queue and len(taken) < most and self._prompt(self.queue[0]) <= left:
                taken.append(self.queue.popleft())
                left -= self._prompt(taken[-1])
            prompts = [self._prompt(n) for n in taken]
            mean = round(sum(prompts) / len(prompts))
            took = pool.forward.seconds((Piece(len(prompts), mean, mean),))
            self._count(took)
            took = max(took, pool.limits.eager) + pool.launch(len(taken))
            self.idle -= 1
            self._at(self.now + took, partial(self._computed, taken))

    def _prompt(self, number: int) -> int:
        return self.requests[number].prompt

    def _count(self, seconds: float) -> None:
        self.computing += seconds
        self.passes += 1

    def _computed(self, taken: list[int]) -> None:
        self.idle += 1
        for number in taken:
            moved = self.engine.transfer * self.requests[number].prompt
            self._at(self.now + moved, partial(self._moved, number))
        self._compute_prompts()

    def _moved(self, number: int) -> None:
        """Send a request to the worker with the fewest, which sends its first token."""
        self.first[number] = self.now - self.arrival[number]
        if self.requests[number].output == 1:
            self._finished()
            return
        worker = min(self.workers, key=lambda each: each.load)
        worker.joining.append((number, self.now))
        if not worker.running:
            self._answer(worker, self.now)

    def _answer(self, worker: _DecodeWorker, before: float) -> None:
        """Start a decode pass over all requests of a worker; ``before`` is the last end."""
        pool = self.engine.decode
        went_on = len(worker.ends)
        free = pool.limits.batch - went_on
        joined, worker.joining = worker.joining[:free], worker.joining[free:]
        for number, _ in joined:
            request = self.requests[number]
            heapq.heappush(worker.ends, (worker.passes + request.output - 1, number))
            worker.context += request.prompt + 1
        worker.running = True
        count = len(worker.ends)
        took = pool.forward.seconds((answers_of(count, worker.context / count),))
        self._count(took)
        end = self.now + took + pool.launch(count)
        self.gaps += [(end - came, 1) for _, came in joined]
        if went_on:
            self.gaps.append((end - before, went_on))
        self._at(end, lambda: self._answered(worker))

    def _answered(self, worker: _DecodeWorker) -> None:
        worker.passes += 1
        worker.context += len(worker.ends)
        while worker.ends and worker.ends[0][0] <= worker.passes:
            _, number = heapq.heappop(worker.ends)
            worker.context -= self.requests[number].tokens
            self._finished()
        worker.running = False
        if worker.load:
            self._answer(worker, self.now)

    def _finished(self) -> None:
        """Add the next request of a client with a fixed number in flight."""
        if self.next < len(self.requests):
            number, self.next = self.next, self.next + 1
            self._at(self.now, lambda: self._come(number))
