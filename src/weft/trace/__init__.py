"""Traces: timelines in the formats of others, and theirs in ours."""

from weft.trace.perfetto import perfetto_json, write_perfetto

__all__ = ["perfetto_json", "write_perfetto"]
