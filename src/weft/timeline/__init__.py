"""What ran where and when: the answer of both interpreters."""

from weft.timeline.timeline import Activity, Basis, Span, Timeline, queue_order

__all__ = ["Activity", "Basis", "Span", "Timeline", "queue_order"]
