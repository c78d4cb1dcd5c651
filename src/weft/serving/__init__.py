"""A model that answers requests: what a forward pass takes, what a fetch takes, who waits."""

from weft.serving.batching import BatchLimits, Engine
from weft.serving.cache import KvCache, kv_cache
from weft.serving.disaggregated import DisaggregatedEngine, WorkerPool
from weft.serving.fetching import FETCHES, Fetcher
from weft.serving.forward import REDUCTIONS, Forward
from weft.serving.outcome import ServingOutcome
from weft.serving.question import Load, Question
from weft.serving.requests import Request, arriving
from weft.serving.servers import SERVERS, Server, find_server

__all__ = [
    "FETCHES",
    "REDUCTIONS",
    "SERVERS",
    "BatchLimits",
    "DisaggregatedEngine",
    "Engine",
    "Fetcher",
    "Forward",
    "KvCache",
    "Load",
    "Question",
    "Request",
    "Server",
    "ServingOutcome",
    "WorkerPool",
    "arriving",
    "find_server",
    "kv_cache",
]
