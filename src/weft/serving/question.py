"""One question about serving: a model, a machine, a load; answered for each way to fetch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from weft.cost.ranges import range_term
from weft.errors import NoPlanError, UsageError
from weft.serving.batching import BatchLimits, Engine
from weft.serving.cache import kv_cache
from weft.serving.disaggregated import DisaggregatedEngine, WorkerPool
from weft.serving.fetching import BASELINE, Fetcher
from weft.serving.forward import Forward
from weft.serving.requests import arriving

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weft.hardware import Platform
    from weft.models.transformer import Transformer
    from weft.serving.cache import KvCache
    from weft.serving.outcome import ServingOutcome
    from weft.serving.requests import Request
    from weft.serving.servers import Server


@dataclass(frozen=True, slots=True)
class Load:
    """So many requests, ``rate`` a second, and how much of a prompt is cached.

    Their lengths are the given ones, or ``shortest`` times these and more.
    """

    count: int
    prompt: int
    output: int
    hit: float
    rate: float
    shortest: float = 1.0
    seed: int = 0

    def requests(self) -> list[Request]:
        """Make them."""
        return arriving(
            self.count,
            prompt=self.prompt,
            output=self.output,
            hit=self.hit,
            rate=self.rate,
            shortest=self.shortest,
            seed=self.seed,
        )


@lru_cache(maxsize=16)
def _forward(
    model: Transformer, platform: Platform, reduction: str, library: str, experts: float
) -> Forward:
    """Return one object for all questions about a model on a machine: it keeps known passes."""
    return Forward(model, platform, reduction, library, experts)


@dataclass(frozen=True)
class Question:
    """What is served, where, how much of it, and how sums and fetches are made."""

    name: str
    model: Transformer
    platform: Platform
    load: Load
    limits: BatchLimits = field(default_factory=BatchLimits)
    reduction: str = "library"
    block_bytes: int | None = None
    engines: int = 1
    server: Server | None = None

    def rows(self, fetches: Sequence[str]) -> list[dict[str, Any]]:
        """Serve the load in each way, and one request alone; gains are over a call a block."""
        found = {name: self._row(name) for name in dict.fromkeys((BASELINE, *fetches))}
        base = found[BASELINE]
        for row in found.values():
            row["ttft_alone_gain"] = base["ttft_alone"] / row["ttft_alone"]
            row["ttft_gain"] = base["ttft"] / row["ttft"]
            row["throughput_gain"] = row["throughput"] / base["throughput"]
        return [found[name] for name in fetches]

    def served(self, fetch: str, requests: Sequence[Request]) -> ServingOutcome:
        """Serve requests in one way."""
        return Engine(self.forward, self.cache, self._fetcher(fetch), self.limits).serve(requests)

    def disaggregated_row(self, decode: Question, workers: tuple[int, int]) -> dict[str, Any]:
        """Serve the load with prompts on workers of this question, answers on those of another."""
        pools = zip(workers, (self, decode), strict=True)
        prefill, answer = (WorkerPool(n, each.forward, each.limits) for n, each in pools)
        together = -(-(self.limits.concurrency or self.load.count) // workers[1])
        together = min(together, decode.limits.batch)
        needed = together * (self.load.prompt + self.load.output)
        if needed > decode.cache.room:
            raise NoPlanError(
                f"{together} requests need {needed} tokens of a decode worker's cache, which has "
                f"room for {decode.cache.room}.",
                "Try: more decode workers, more ranks for each, or a smaller --concurrency.",
            )
        machine = self.platform
        network = machine.nic or (machine.levels[-1] if machine.num_nodes > 1 else None)
        if network is None:
            raise UsageError(
                f"{machine.name} has no NIC to move keys and values by",
                "Use a machine with one: weft platforms lists them.",
            )
        # Every rank of a prefill worker sends its share by its own NIC.
        engine = DisaggregatedEngine(prefill, answer, self.cache.token_bytes / network.rate)
        alone = engine.serve(replace(self.load, count=1).requests())
        return {
            **self._described("recompute"),
            "tp": decode.model.tp,
            "prefill": f"{workers[0]}x{self.model.tp}",
            "decode": f"{workers[1]}x{decode.model.tp}",
            "copies": 0,
            "fetch_alone": 0.0,
            "ttft_alone": float(alone.first[0]),
            **engine.serve(self.load.requests()).row(),
            "basis": "predicted",
        }

    def _row(self, fetch: str) -> dict[str, Any]:
        load = self.load
        outcome = self.served(fetch, load.requests())
        alone = self.served(fetch, replace(load, count=1).requests())
        cached = load.requests()[0].cached
        fetched = self._fetcher(fetch).fetches and cached > 0
        return {
            **self._described(fetch),
            "copies": self.cache.blocks(cached) if fetched else 0,
            "fetch_alone": float(alone.fetching[0]),
            "ttft_alone": float(alone.first[0]),
            **outcome.row(),
            **self._ranges(outcome.row()),
            "basis": "predicted",
        }

    def _described(self, fetch: str) -> dict[str, Any]:
        load = self.load
        return {
            "model": self.name,
            "tp": self.model.tp,
            "server": self.server.name if self.server else None,
            "concurrency": self.limits.concurrency or None,
            "fetch": fetch,
            "block": self.cache.block_bytes,
            "hit": load.hit,
            "prompt": load.prompt,
            "generate": load.output,
            "rate": load.rate,
            "requests": load.count,
            "reduce": self.reduction,
            "ahead": self.limits.ahead,
        }

    def _ranges(self, row: Mapping[str, Any]) -> dict[str, float | None]:
        """Return the ends of the ranges that measured servers give; None without a server."""
        found: dict[str, float | None] = {}
        for key in ("ttft", "itl"):
            low = high = None
            if self.server is not None and row[key] is not None:
                factors = range_term("serving", f"{self.server.name}-{key}").factors
                low, high = (row[key] * each for each in factors)
            found |= {f"{key}_low": low, f"{key}_high": high}
        return found

    @property
    def num_ranks(self) -> int:
        """Ranks of a server: experts lie on ranks of their own, or on those that share the rest."""
        return max(self.model.tp, self.model.expert_tp * self.model.ep)

    @cached_property
    def forward(self) -> Forward:
        """What passes of the model take."""
        model = self.model
        if model.pp > 1 or model.zero_stage == 3:
            raise UsageError(
                "weights of a server lie whole in each stage: pp and fsdp are not served",
                "Use --set tp=8, and --set ep=.. for experts.",
            )
        library, experts = (self.server.name, self.server.experts) if self.server else ("", 1.0)
        platform = self.platform.resized(self.num_ranks)
        return _forward(model, platform, self.reduction, library, experts)

    @cached_property
    def cache(self) -> KvCache:
        """What a rank keeps of each token."""
        return kv_cache(self.model, self.platform.require_device(), self.block_bytes)

    def _fetcher(self, name: str) -> Fetcher:
        known = self._fetchers
        if name not in known:
            known[name] = Fetcher(self.platform, name, self.cache.block_bytes, self.engines)
        return known[name]

    @cached_property
    def _fetchers(self) -> dict[str, Fetcher]:
        return {}
