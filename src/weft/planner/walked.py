"""The Timeline of a step that was walked through: spans of ops, of issuing, of waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.schedule import Kind
from weft.timeline import Timeline
from weft.workload import queues_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.hardware import Platform
    from weft.workload import Workload
    from weft.workload.walk import Walker

Span = tuple[int, str, Kind, str, float, float]  # class, queue, kind, name, start, end


def walked_timeline(workload: Workload, platform: Platform, walkers: list[Walker]) -> Timeline:
    """Put the times of all classes into one Timeline, queue by queue, in the order of time."""
    spans = [span for walker in walkers for span in _spans(walker)]
    queues = tuple(dict.fromkeys(span[1] for span in spans))
    names = tuple(dict.fromkeys(span[3] for span in spans))
    queue_number = {name: number for number, name in enumerate(queues)}
    name_number = {name: number for number, name in enumerate(names)}
    count, none = len(spans), np.full(len(spans), -1, np.int64)
    return Timeline(
        schedule=workload.name,
        platform=platform.name,
        basis="predicted",
        num_ranks=len(walkers),
        ranks=np.arange(len(walkers)),
        represents=np.array([len(step.ranks) for step in workload.steps], np.int64),
        queues=queues,
        names=names,
        rank=np.array([span[0] for span in spans], np.int32),
        queue=np.array([queue_number[span[1]] for span in spans], np.int32),
        lane=np.full(count, -1, np.int32),
        id=np.arange(count, dtype=np.int32),
        kind=np.array([span[2] for span in spans], np.uint8),
        name=np.array([name_number[span[3]] for span in spans], np.int32),
        start=np.array([span[4] for span in spans]),
        end=np.array([span[5] for span in spans]),
        nbytes=np.zeros(count, np.int64),
        joules=np.zeros(count),
        parent=none,
        flag=none,
        count=np.zeros(count, np.int64),
        target=none,
        fed=none.astype(np.int32),
    )


def _spans(walker: Walker) -> Iterator[Span]:
    """Give host first, then each stream; waiting for other ranks stands before what waited."""
    ops = walker.step.ops
    for number, (start, end) in walker.issues.items():
        yield walker.number, "host", Kind.KERNEL, f"issue {ops[number].name}", start, end
    for stream, queue in queues_of(walker.step).items():
        for number, op in enumerate(ops):
            if op.stream != stream or op.kind == "host":
                continue
            ready, start = walker.starts[number]
            if start > ready:
                yield walker.number, queue, Kind.WAIT, "Wait", ready, start
            kind = Kind.COPY if op.kind == "collective" else Kind.KERNEL
            yield walker.number, queue, kind, op.name, start, walker.ends[number]
