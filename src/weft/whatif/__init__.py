"""A trace replayed, and replayed with something changed."""

from weft.whatif.advised import analyze
from weft.whatif.answer import Answer, Outcome, errors_of, what_if
from weft.whatif.change import NAMES
from weft.whatif.foretold import predict_trace
from weft.whatif.job_answer import what_if_job, what_if_jobs
from weft.whatif.replay import Replay, replay

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
