"""Traces: readers of profiler formats, analysis, and timelines written for Perfetto."""

from weft.trace.analysis.analysis_result import (
    Analysis,
    CollectiveUse,
    RankAnalysis,
    StepAdvice,
    StepAnalysis,
    Straggler,
)
from weft.trace.analysis.analyzing import analyze, analyze_traces
from weft.trace.formats.reading import read
from weft.trace.perfetto import perfetto_json, write_perfetto
from weft.trace.trace import EventKind, StepMark, Trace, TraceColumns
from weft.trace.trace_collectives import TracedCollective, collectives, communication

__all__ = [
    "Analysis",
    "CollectiveUse",
    "EventKind",
    "RankAnalysis",
    "StepAdvice",
    "StepAnalysis",
    "StepMark",
    "Straggler",
    "Trace",
    "TraceColumns",
    "TracedCollective",
    "analyze",
    "analyze_traces",
    "collectives",
    "communication",
    "perfetto_json",
    "read",
    "write_perfetto",
]
