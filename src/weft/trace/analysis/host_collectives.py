"""Traces of CPU ranks: operators and collectives of the host, seen as those of a device.

A profile of a job on CPUs has no GPU events. Its outermost operators compute, and the ranges that a
backend writes around its collectives (``gloo:all_reduce``, on threads of their own) communicate. As
kernels of two streams they are analysed like those of a GPU.
"""

from dataclasses import fields, replace

import numpy as np

from weft.trace.trace import EventKind, Ints, Trace, TraceColumns
from weft.trace.trace_collectives import kind_of

_BACKENDS = ("gloo:", "weft:", "mpi:", "ucc:")
_COMPUTES, _COMMUNICATES = 0, 1  # streams


def with_host_collectives(trace: Trace) -> Trace:
    """Return a trace without GPU events with its host's work as kernels; others unchanged."""
    if len(trace.gpu):
        return trace
    columns = trace.columns
    rows = np.arange(len(trace))
    moves = trace.named(rows, lambda name: name.startswith(_BACKENDS) and bool(kind_of(name)))
    if not len(rows) or not moves.any():
        return trace
    is_op = (columns.kind == EventKind.OP) & ~trace.named(
        rows, lambda name: name.startswith("c10d")
    )
    outermost = is_op & ~_inside(trace, is_op)
    chosen = np.concatenate((np.flatnonzero(outermost), np.flatnonzero(moves)))
    added = {field.name: getattr(columns, field.name)[chosen] for field in fields(TraceColumns)}
    communicates = np.arange(len(chosen)) >= int(outermost.sum())
    added["kind"] = np.full(len(chosen), EventKind.KERNEL, np.int8)
    added["stream"] = np.where(communicates, _COMMUNICATES, _COMPUTES).astype(np.int32)
    added["device"] = np.zeros(len(chosen), np.int32)
    names = [
        f"nccl:{name.partition(':')[2]}" if name.startswith(_BACKENDS) else name
        for name in trace.names
    ]
    out = replace(
        trace,
        columns=TraceColumns(
            **{
                key: np.concatenate((getattr(columns, key), values))
                for key, values in added.items()
            }
        ),
        names=tuple(names),
        losses=(*trace.losses, "no GPU events: operators of the host are shown as kernels"),
    )
    launch = np.full(len(out), -1, np.int32)
    launch[len(trace) :] = chosen  # each began by itself
    out.__dict__["launch"] = launch
    return out


def _inside(trace: Trace, is_op: np.ndarray) -> np.ndarray:
    """Return whether each row has an operator around it."""
    at: Ints = trace.parent.astype(np.int64)
    out = np.zeros(len(trace), bool)
    while (open_ := np.flatnonzero((at >= 0) & ~out)).size:
        out[open_] = is_op[at[open_]]
        at[open_] = trace.parent[at[open_]]
    return out
