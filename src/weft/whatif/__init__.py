"""A trace replayed, and replayed with something changed."""

from weft.whatif.advised import analyze
from weft.whatif.answer import Answer, Outcome, errors_of, what_if, what_if_job, what_if_jobs
from weft.whatif.change import NAMES
from weft.whatif.replay import Replay, replay
from weft.whatif.retarget import predict_trace

__all__ = [
    "NAMES",
    "Answer",
    "Outcome",
    "Replay",
    "analyze",
    "errors_of",
    "predict_trace",
    "replay",
    "what_if",
    "what_if_job",
    "what_if_jobs",
]
