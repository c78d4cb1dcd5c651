"""A model that answers requests: what a forward pass takes, what a fetch takes, who waits."""

from weft.serving.cache import KvCache, kv_cache
from weft.serving.engine import Engine, Limits
from weft.serving.fetching import FETCHES, Fetcher
from weft.serving.forward import REDUCTIONS, Forward
from weft.serving.outcome import Outcome
from weft.serving.question import Load, Question
from weft.serving.requests import Request, arriving

__all__ = [
    "FETCHES",
    "REDUCTIONS",
    "Engine",
    "Fetcher",
    "Forward",
    "KvCache",
    "Limits",
    "Load",
    "Outcome",
    "Question",
    "Request",
    "arriving",
    "kv_cache",
]
