"""A job played by a few lines of arithmetic and written down as a profiler would."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tests.trace.events import NCCL, event, mark, text
from weft.trace.formats.kineto import read_kineto

CALL, GAP, BACK = 2.0, 1.0, 3.0  # microseconds: a call, between kernels, until a copy is noticed


@dataclass
class Do:
    """One thing that the host asks for; ``after`` are numbers of earlier ones it waits for."""

    stream: int = 7
    seconds: float = 10.0  # microseconds here
    gap: float = 5.0
    after: tuple[int, ...] = ()
    back: bool = False  # a copy to the host's pageable memory, which the host waits for
    nccl: bool = False
    op: str = ""
    grid: int = 1


def play(steps, *, tail=10.0, offset=0.0):
    """Return the events of steps, each a list of what the host asks for, and where they begin."""
    host, events, begins, number = offset, [], [], 0
    front: dict[int, float] = {}
    for index, step in enumerate(steps):
        begins.append(host)
        ends: list[float] = []
        for place, do in enumerate(step):
            host += do.gap
            number += 1
            if do.after:
                events.append(event("cudaStreamWaitEvent", "cuda_runtime", host, 0.0, 1))
            called = host
            host += 0.0 if do.back else CALL
            start = max(front.get(do.stream, 0.0), host, *(ends[n] for n in do.after), 0.0) + GAP
            front[do.stream] = start + do.seconds
            ends.append(start + do.seconds)
            if do.back:
                host = max(host, ends[-1]) + BACK
            events += _written(do, place, number, (called, host), (start, do.seconds))
        host += tail
        events.append(mark(index, begins[-1], host - begins[-1]))
    return events, [*begins, host]


def _written(do, place, number, call, run):
    name = "cudaMemcpyAsync" if do.back else "cudaLaunchKernel"
    called = event(name, "cuda_runtime", call[0], call[1] - call[0], 1, correlation=number)
    op = event(do.op or f"op{place}", "cpu_op", call[0] - 0.25, call[1] - call[0] + 0.5, 1)
    about = {"stream": do.stream, "device": 0, "correlation": number}
    if do.back:
        done = event(
            "Memcpy DtoH (Device -> Pageable)", "gpu_memcpy", run[0], run[1], do.stream, **about
        )
    else:
        about |= {"grid": [do.grid, 1, 1], "block": [1024, 1, 1]}
        if do.nccl:
            about |= {"Collective name": "allreduce", "In msg nelems": 1 << 20, "dtype": "Float"}
            about |= {"Out msg nelems": 1 << 20, "Group size": 2, "Process Group Name": "0"}
        done = event(NCCL if do.nccl else f"k{place}", "kernel", run[0], run[1], do.stream, **about)
    return [op, called, done]


def recorded(folder, steps, *, name="t.json", rank=0, **more):
    """Return a played job as a Trace, and its measured periods in seconds."""
    events, begins = play(steps, **more)
    path = folder / name
    path.write_bytes(text(events, rank=rank))
    periods = [(b - a) * 1e-6 for a, b in pairwise(begins)]
    return read_kineto(path), periods
