"""Traces: timelines in the formats of others, and theirs in ours."""

from weft.trace.analysis import Advice, Analysis, RankAnalysis, Step, Straggler, Use
from weft.trace.analyzing import analyze, analyze_traces
from weft.trace.collectives import Collective, collectives, communication
from weft.trace.perfetto import perfetto_json, write_perfetto
from weft.trace.reading import read
from weft.trace.trace import Columns, Kind, Mark, Trace

__all__ = [
    "Advice",
    "Analysis",
    "Collective",
    "Columns",
    "Kind",
    "Mark",
    "RankAnalysis",
    "Step",
    "Straggler",
    "Trace",
    "Use",
    "analyze",
    "analyze_traces",
    "collectives",
    "communication",
    "perfetto_json",
    "read",
    "write_perfetto",
]
