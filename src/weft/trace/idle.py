"""Why a GPU had nothing to do.

A gap ends with a GPU event. If its launch came after the gap began, the host was late: what its
threads did meanwhile names the reason. From the launch to the start the runtime and the GPU are
at work. If the launch came before the gap, the event stood in the queue and the gap is what the
GPU takes from one to the next, or a wait for an event of another stream.
"""

import re

import numpy as np

from weft.trace.analysis import Part
from weft.trace.cover import Cover
from weft.trace.trace import Bools, Ints, Kind, Trace

SYNCHRONISES = re.compile(r"Synchronize|^(cuda|hip)Memcpy(2D|3D)?$|StreamWaitValue|EventQuery")
_LOADS = re.compile(r"DataLoader|dataloader|data_loader|_next_data|pin_memory", re.IGNORECASE)
_ALLOCATES = re.compile(r"^(cuda|hip)(Host|Ext)?(Malloc|Free|MemCreate|MemMap)|cuMem(Create|Map)")

SYNC, LOADING, ALLOCATING = "synchronising with the GPU", "loading data", "allocating memory"
LAUNCHING, OPERATORS, PYTHON = "launching kernels", "operators on the host", "Python, other host work"
LATENCY, QUEUED, UNKNOWN = "launch until start", "between queued kernels", "launched before the window"
HOST = (SYNC, LOADING, ALLOCATING, LAUNCHING, OPERATORS, PYTHON)


def idle_reasons(trace: Trace, busy: Cover) -> tuple[Part, ...]:
    """Divide all gaps of a GPU among their reasons, the longest first."""
    gaps = busy.gaps()
    if not len(gaps.start):
        return ()
    following = trace.gpu[np.searchsorted(trace.columns.start[trace.gpu], gaps.end)]
    launch = trace.launch[following]
    called = np.clip(trace.columns.start[launch], gaps.start, gaps.end)
    known = launch >= 0
    late = known & (called > gaps.start)
    parts = {
        LATENCY: (gaps.end - called)[late],
        QUEUED: (gaps.end - gaps.start)[known & ~late],
        UNKNOWN: (gaps.end - gaps.start)[~known],
    }
    found = [Part(what, float(each.sum()), len(each)) for what, each in parts.items()]
    found += _host_reasons(trace, Cover.of(gaps.start[late], called[late]))
    return tuple(sorted((p for p in found if p.seconds > 0), key=lambda p: -p.seconds))


def _host_reasons(trace: Trace, late: Cover) -> list[Part]:
    """Say what the host did while it was late; what stands inside other things goes first."""
    left, out = late, []
    for what, rows in host_rows(trace).items():
        spent = left & Cover.of(trace.columns.start[rows], trace.end[rows])
        out.append(Part(what, spent.seconds, len(spent.start)))
        left = left - spent
    out.append(Part(PYTHON, left.seconds, len(left.start)))
    return out


def host_rows(trace: Trace) -> dict[str, Ints]:
    """Give the host rows of each reason, for threads that launch GPU work."""
    threads = np.unique(trace.columns.thread[trace.launch[trace.gpu][trace.launch[trace.gpu] >= 0]])
    rows = trace.host[np.isin(trace.columns.thread[trace.host], threads)]
    kind = trace.columns.kind[rows]
    runtime = kind == Kind.RUNTIME

    def named(pattern: re.Pattern[str]) -> Bools:
        known = np.array([pattern.search(name) is not None for name in trace.names], bool)
        return known[trace.columns.name[rows]]

    return {
        SYNC: rows[runtime & named(SYNCHRONISES)],
        LOADING: rows[~runtime & named(_LOADS)],
        ALLOCATING: rows[runtime & named(_ALLOCATES)],
        LAUNCHING: rows[runtime],
        OPERATORS: rows[kind == Kind.OP],
    }
