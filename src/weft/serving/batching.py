"""Continuous batching: requests join and leave between passes, their blocks come meanwhile.

A host thread drives its device. Between passes it lets requests in, hands out the copies that
bring their cached blocks, and launches the next pass over all that are ready: a token for each
that answers, and as much of waiting prompts as the budget of a pass has left. While it hands out
copies it launches nothing: a call for each block keeps the device waiting. With ``ahead`` it
does so while the pass before still runs.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from weft.errors import NoPlanError, UsageError
from weft.models.transformer import Piece
from weft.serving.outcome import ServingOutcome, repeated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.serving.cache import KvCache
    from weft.serving.fetching import Fetcher
    from weft.serving.forward import Forward
    from weft.serving.requests import Request

_CONTEXT = 128  # tokens by which the mean context of answering requests is rounded up
# Tokens of a pass are rounded up to so many, as graphs are captured for such sizes; from 256 on to
# 16 and more, so that numbers have so many leading bits.
_LOTS, _LEADING_BITS = 8, 5


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Requests at once, tokens of a pass, and whether copies are handed out ahead of time.

    ``overhead`` is what the host does for every pass besides launching it: choosing, and reading
    what was answered; ``request_overhead`` is added for each request of the pass. Processes in
    front of the engine take ``admission`` seconds for a request, and cut its prompt into tokens,
    ``tokenizing`` seconds for each, one request after the other;
    ``stream`` is what they do for every answered token, while passes go on: turning it into text
    and sending it. A ``pipelined`` server chooses what a pass computes while the one before runs,
    so a request waits for the rest of a pass and for a whole one. A pass with prompts is no graph
    that is replayed: it takes as long as its launches, ``eager``, at least. A server that is not
    ``mixed``
    computes waiting prompts in passes of their own, in which nobody gets a token; one that is not
    ``chunked`` computes prompts whole. While others answer, prompts wait for ``held_passes`` at
    most, until a pass with them has ``held_tokens``. With ``concurrency`` a client keeps so many
    requests in flight: the next comes when one is answered and ``client`` seconds have passed, in
    the mean of a random time. That keeps requests of equal length from staying in step.
    """

    batch: int = 256
    tokens: int = 8192
    ahead: bool = False
    overhead: float = 0.0
    request_overhead: float = 0.0
    admission: float = 0.0
    tokenizing: float = 0.0
    stream: float = 0.0
    pipelined: bool = False
    eager: float = 0.0
    chunked: bool = True
    mixed: bool = True
    held_passes: int = 0
    held_tokens: float = 0.0
    concurrency: int = 0
    client: float = 0.0

    def __post_init__(self) -> None:
        if self.batch < 1 or self.tokens < self.batch:
            raise UsageError(
                f"passes of {self.tokens} tokens cannot serve {self.batch} requests at once",
                "Use a token or more for each: --tokens 8192 --batch 256.",
            )


@dataclass
class _Active:
    """A request that was let in: what is still to compute, and when its last token came."""

    request: Request
    number: int
    left: int  # tokens of its prompt that were not computed yet
    ready: float
    answered: int = 0
    last: float = 0.0

    @property
    def context(self) -> int:
        return self.request.prompt - self.left + self.answered


@dataclass
class Engine:
    """Serves requests with one model on one platform, fetching in one way."""

    forward: Forward
    cache: KvCache
    fetcher: Fetcher
    limits: BatchLimits = field(default_factory=BatchLimits)

    def serve(self, requests: Sequence[Request]) -> ServingOutcome:
        """Answer all requests and give the times."""
        for request in requests:
            self._check(request)
        return _Run(self, deque(sorted(requests, key=lambda each: each.arrival))).outcome()

    def _check(self, request: Request) -> None:
        if request.tokens > self.cache.room:
            raise NoPlanError(
                f"a request of {request.tokens} tokens needs more than the {self.cache.room} that "
                "a rank has room for.",
                "Try: --set tp=8, a shorter --prompt, or a smaller model.",
            )


class _Run:
    """One run of an engine: clocks of the host, of the device and of what copies."""

    def __init__(self, engine: Engine, waiting: deque[Request]) -> None:
        self.engine, self.waiting = engine, waiting
        device = engine.forward.platform.require_device()
        self.launch = device.host_launch + engine.limits.overhead
        self.seen = device.dma.sync if device.dma is not None else 0.0
        self.host = self.device = self.copier = self.front = 0.0
        self.active: list[_Active] = []
        self.decided = 0.0  # when it was chosen what the next pass computes
        self.tokenizer = 0.0  # when prompts that came so far are cut into tokens
        self.held = 0  # tokens that have their place
        self.waited = 0  # passes for which prompts were held back
        count = len(waiting)
        self.first, self.fetching = np.zeros(count), np.zeros(count)
        self.arrival = np.array([each.arrival for each in waiting])
        self.pauses = engine.limits.client * np.random.default_rng(0).exponential(1.0, count)
        if engine.limits.concurrency:
            self.arrival[engine.limits.concurrency :] = np.inf
        self.gaps: list[tuple[float, int]] = []  # seconds between tokens, and how often
        self.computing = self.issuing = 0.0
        self.passes = self.tokens = self.number = 0

    def outcome(self) -> ServingOutcome:
        """Go on until nothing is left to answer."""
        began = self.waiting[0].arrival
        while self.waiting or self.active:
            self._let_in()
            chosen = self._chosen()
            if chosen:
                self._pass(chosen)
            elif self.decided < self.host:
                self.decided = self.host  # no pass runs, so nothing is chosen ahead of it
            else:
                self.host = self.decided = self._next_event()
        return ServingOutcome(
            self.first,
            repeated(self.gaps),
            self.fetching,
            self.front - began,
            self.tokens,
            self.computing,
            self.issuing,
            self.passes,
        )

    def _next_event(self) -> float:
        """When a request comes or the blocks of one are there; both lie ahead."""
        times = [each.ready for each in self.active]
        times += self.arrival[self.number :].tolist()
        return min(each for each in times if each > self.host)

    def _let_in(self) -> None:
        limits, room = self.engine.limits, self.engine.cache.room
        while self.waiting and self.arrival[self.number] <= self.host:
            request = self.waiting[0]
            if len(self.active) >= limits.batch or self.held + request.tokens > room:
                return
            self.waiting.popleft()
            self.held += request.tokens
            self.active.append(self._started(request))
            self.number += 1

    def _started(self, request: Request) -> _Active:
        """Admit a request; the copies of its blocks are handed out at once, one by one."""
        fetcher, cache = self.engine.fetcher, self.engine.cache
        limits, arrival = self.engine.limits, self.arrival[self.number]
        self.tokenizer = max(self.tokenizer, arrival) + limits.tokenizing * request.prompt
        admitted = max(self.host, self.tokenizer + limits.admission)
        if not fetcher.fetches or not request.cached:
            return _Active(request, self.number, request.prompt, admitted)
        price = fetcher.price(cache.blocks(request.cached))
        begin = max(self.host, self.copier)
        self.copier = begin + price.seconds
        self.host += price.host
        self.issuing += price.host
        self.fetching[self.number] = self.copier - self.arrival[self.number]
        return _Active(request, self.number, request.prompt - request.cached, self.copier)

    def _chosen(self) -> list[tuple[_Active, int]]:
        """Choose what the next pass computes: answers first, then prompts in their order."""
        budget = self.engine.limits.tokens
        until = self.decided if self.engine.limits.pipelined else self.host
        ready = [each for each in self.active if each.ready <= until]
        chosen = [(each, 1) for each in ready if not each.left]
        if not self.engine.limits.mixed and any(each.left for each in ready):
            chosen = []
        budget -= len(chosen)
        answers = len(chosen)
        for each in ready:
            if each.left and budget > 0:
                part = min(each.left, budget)
                if not self.engine.limits.chunked:
                    if part < each.left and len(chosen) > answers:
                        break
                    part = each.left  # limits are set for one prompt at least
                chosen.append((each, part))
                budget -= part
        return self._held_back(chosen, answers)

    def _held_back(
        self, chosen: list[tuple[_Active, int]], answers: int
    ) -> list[tuple[_Active, int]]:
        """Leave prompts out of a pass that could have more of them, but not for too long."""
        limits = self.engine.limits
        few = sum(part for _, part in chosen) < limits.held_tokens
        if answers and len(chosen) > answers and few and self.waited < limits.held_passes:
            self.waited += 1
            return chosen[:answers]
        if len(chosen) > answers:
            self.waited = 0
        return chosen

    def _pass(self, chosen: list[tuple[_Active, int]]) -> None:
        forward = self.engine.forward
        pieces = pieces_of(chosen)
        seconds = forward.seconds(pieces)
        if any(each.left for each, _ in chosen):
            seconds = max(seconds, self.engine.limits.eager)
        launch = self.launch + self.engine.limits.request_overhead * len(chosen)
        start = max(self.host + launch, self.device)
        fetcher, slowdown = self.engine.fetcher, 1.0
        if self.copier > start:
            slowdown = forward.slowdown(pieces, fetcher.units, fetcher.rate)
        took = overlapped_seconds(seconds, slowdown, self.copier - start)
        alike = self._alike(chosen, start, took + launch)
        self.device = start + took
        answers = sum(part >= each.left for each, part in chosen)
        streaming = self.engine.limits.stream * answers
        self.front = seen_first = max(self.front, self.device) + streaming
        self.computing += alike * took
        self.passes += alike
        # The host sees the end when the device's signal reaches it; ahead, it is one pass early.
        ahead = self.engine.limits.ahead
        for _ in range(alike - 1):
            start = max((start if ahead else self.device + self.seen) + launch, self.device)
            self.device = start + took
            self.front = max(self.front, self.device) + streaming
        self.host = start if ahead else self.device + self.seen
        self.decided = start
        answering = 0
        for each, part in chosen:
            if each.left:
                self._prompted(each, part)
            else:
                answering += 1
                self.gaps.append((seen_first - each.last, 1))
                each.answered += alike
                each.last = self.front
        if answering and alike > 1:
            self.gaps.append(((self.front - seen_first) / (alike - 1), answering * (alike - 1)))
        self.tokens += answering * alike
        for each, _ in chosen:
            if each.answered == each.request.output:
                self._finished(each)
        self.active = [each for each in self.active if each.answered < each.request.output]

    def _alike(self, chosen: list[tuple[_Active, int]], start: float, pace: float) -> int:
        """Return how many passes follow that compute as much: all answer, and nobody comes."""
        later = [each.ready for each in self.active if each.ready > self.host]
        if len(chosen) + len(later) < len(self.active) or any(each.left for each, _ in chosen):
            return 1
        left = min(each.request.output - each.answered for each, _ in chosen)
        mean = sum(each.context for each, _ in chosen) / len(chosen)
        until = _rounded(math.ceil(mean) + 1, _CONTEXT) - math.ceil(mean)
        coming = self.arrival[self.number :]
        room = len(self.active) < self.engine.limits.batch
        if room and len(coming) and np.isfinite(coming[0]):
            later.append(coming[0])
        if later:
            until = min(until, int((min(later) - start) / pace))
        return max(1, min(left, until))

    def _prompted(self, each: _Active, part: int) -> None:
        """Take a part off a prompt; a pass with the last of it gives the first token."""
        each.left -= part
        if not each.left:
            self.first[each.number] = self.front - self.arrival[each.number]
            each.answered, each.last = 1, self.front
            self.tokens += 1

    def _finished(self, each: _Active) -> None:
        """Free its place; the client sends the next request."""
        self.held -= each.request.tokens
        later = np.flatnonzero(np.isinf(self.arrival))[:1]
        if len(later):
            self.arrival[later] = self.front + self.pauses[later]
            self.arrival[self.number :].sort()


def pieces_of(chosen: list[tuple[_Active, int]]) -> tuple[Piece, ...]:
    """Gather what a pass computes: answers of a mean context, prompts of nearly equal parts.

    Parts, and the keys they see, that lie between the same powers of two count as their mean.
    """
    answering = [each.context for each, _ in chosen if not each.left]
    found = []
    if answering:
        found.append(answers_of(len(answering), sum(answering) / len(answering)))
    alike: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for each, part in chosen:
        if each.left:
            shape = part, each.context + part
            alike.setdefault((shape[0].bit_length(), shape[1].bit_length()), []).append(shape)
    for shapes in alike.values():
        sides = zip(*shapes, strict=True)
        queries, keys = (_near(round(sum(side) / len(shapes))) for side in sides)
        found.append(Piece(len(shapes), queries, max(queries, keys)))
    return tuple(found)


def answers_of(count: int, context: float) -> Piece:
    """Return single tokens of so many requests with this mean context, as graphs hold them."""
    lots = max(_LOTS, 1 << max(0, count.bit_length() - _LEADING_BITS))
    return Piece(_rounded(count, lots), 1, _rounded(math.ceil(context) + 1, _CONTEXT))


def _near(tokens: int) -> int:
    """Round long prompts by 3 % at most, so that few passes differ.

    >>> [_near(n) for n in (100, 1020, 1928, 4001)]
    [100, 1024, 1920, 3968]
    """
    step = 1 << max(0, tokens.bit_length() - 5)
    return tokens if tokens < _CONTEXT else round(tokens / step) * step


def overlapped_seconds(seconds: float, slowdown: float, copying: float) -> float:
    """Return what a pass takes that runs next to a copy kernel for ``copying`` seconds.

    The pass advances at ``1 / slowdown`` of its speed until the copy ends, then at full speed.

    >>> [overlapped_seconds(1.0, 1.5, copying) for copying in (0.0, 9.0, 0.3)]
    [1.0, 1.5, 1.1]
    """
    over = min(max(copying, 0.0), seconds * slowdown)
    return seconds + over - over / slowdown


def _rounded(number: int, step: int) -> int:
    """Round up to a multiple; below it to a power of two.

    >>> [_rounded(n, 8) for n in (1, 3, 8, 9, 17)]
    [1, 4, 8, 16, 24]
    """
    if number < step:
        return 1 << (number - 1).bit_length()
    return -(-number // step) * step
