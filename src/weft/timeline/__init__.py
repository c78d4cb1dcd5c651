"""Timelines: what ran where and when, as both interpreters report it."""

from weft.timeline.timeline import MOVES, Activity, Basis, Span, Timeline, queue_order

__all__ = ["MOVES", "Activity", "Basis", "Span", "Timeline", "queue_order"]
