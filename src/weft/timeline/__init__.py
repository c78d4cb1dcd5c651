"""What ran where and when: the answer of both interpreters."""

from weft.timeline.timeline import MOVES, Activity, Basis, Span, Timeline, queue_order

__all__ = ["MOVES", "Activity", "Basis", "Span", "Timeline", "queue_order"]
