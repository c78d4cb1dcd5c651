"""Traces of jobs that lose their time in one known way, in microseconds."""

from __future__ import annotations

from tests.trace.events import NCCL, all_reduce, event, kernel, launch, mark


def back(ts, dur, correlation, done):
    """A copy to pageable memory that the host waits for until ``done``."""
    about = {"correlation": correlation}
    name = "Memcpy DtoH (Device -> Pageable)"
    return [
        event("cudaMemcpyAsync", "cuda_runtime", ts, done + 2 - ts, 1, **about),
        event(name, "gpu_memcpy", done - dur, dur, 7, stream=7, device=0, **about),
    ]


def graph_steps(steps=5, kernels=40, busy=20.0, gap=36.0):
    """A CUDA graph a step: its kernels are all queued, and stand ``gap`` apart."""
    events, period = [], kernels * (busy + gap) + 60
    for step in range(steps):
        zero, number = step * period, 1000 * (step + 1)
        events.append(mark(step, zero, period - 1))
        call = event("cudaGraphLaunch", "cuda_runtime", zero + 5, 10, 1, correlation=number)
        events.append(call)
        for n in range(kernels):
            at = zero + 20 + n * (busy + gap)
            events.append(kernel(at, busy, f"k{n % 9}", correlation=number))
        events += back(zero + 20, 2, number + 1, zero + period - 10)
    return events


def preprocessing_steps(steps=4, prepare=8000.0, kernels=30, name="tokenize"):
    """A host that prepares the input of a step for long, and launches fast."""
    events, period = [], prepare + kernels * 60 + 40
    for step in range(steps):
        zero, number = step * period, 1000 * (step + 1)
        events += [mark(step, zero, period - 1), event(name, "cpu_op", zero + 1, prepare, 1)]
        for n in range(kernels):
            called = zero + prepare + 3 + n * 5
            at = zero + prepare + 10 + n * 60
            events += [launch(called, number + n), kernel(at, 59, f"gemm{n % 7}", 7, number + n)]
        end = zero + prepare + 10 + kernels * 60
        events += back(called + 5, 2, number + 900, end + 5)
    return events


def exposed_steps(steps=4, compute=300.0, communicate=600.0):
    """A kernel, an all-reduce that nothing overlaps, and a host that waits for both."""
    events, period = [], compute + communicate + 60
    for step in range(steps):
        zero, number = step * period, 10 * (step + 1)
        wait = event("cudaStreamWaitEvent", "cuda_runtime", zero + 6, 0, 1)
        events += [
            mark(step, zero, period - 1),
            launch(zero + 1, number),
            kernel(zero + 10, compute, correlation=number),
            wait,
            launch(zero + 7, number + 1),
            all_reduce(zero + 11 + compute, communicate, number + 1, 1 << 20),
            event("cudaStreamWaitEvent", "cuda_runtime", zero + 9, 0, 1),
            *back(zero + 12, 2, number + 2, zero + 20 + compute + communicate),
        ]
    return events


def busy_steps(steps=5, kernels=20, seconds=100.0):
    """A GPU that is never idle, behind a host that is far ahead."""
    events = []
    for step in range(steps):
        zero, number = step * 100.0, 1000 * (step + 1)
        events.append(mark(step, zero, 99))
        for n in range(kernels):
            name = "ampere_sgemm_128x64_nn" if n % 4 else "vectorized_elementwise_kernel"
            at = 5000 + (step * kernels + n) * (seconds + 0.5)
            events += [
                launch(zero + 4 * n + 1, number + n),
                kernel(at, seconds, name, 7, number + n),
            ]
    return events


def layered_steps(steps=6, layers=32, host=200.0):
    """Steps of an inference server without marks: equal layers between a head and a tail."""
    layer = [f"layer_{n}" for n in range(10)]
    names = ["embed", *layer * layers, "norm", "head", "sample"]
    events, now, number = [], 0.0, 0
    for _ in range(steps):
        for name in names:
            number += 1
            events += [launch(now, number, dur=2), kernel(now + 4, 9, name, correlation=number)]
            now += 10
        now += host
    return events


def straggling(rank, late, steps=4, move=100.0):
    """One of several ranks that meet in an all-reduce; ``late`` says when each of them arrives."""
    events, period = [], max(late) + move + 60
    for step in range(steps):
        zero, number = step * period, 10 * (step + 1)
        arrives = late[rank]
        events += [
            mark(step, zero, period - 1),
            launch(zero + 1, number),
            kernel(zero + 10, arrives - 20, correlation=number),
            event("cudaStreamWaitEvent", "cuda_runtime", zero + 6, 0, 1),
            launch(zero + 7, number + 1),
            all_reduce(zero + arrives, max(late) + move - arrives, number + 1, 1 << 18, len(late)),
            event("cudaStreamWaitEvent", "cuda_runtime", zero + 9, 0, 1),
            *back(zero + 12, 2, number + 2, zero + max(late) + move + 10),
        ]
    return events


def apart(rank, shifts, steps=4, compute=500.0, communicate=400.0):
    """Ranks whose clocks jump about: the k-th collective ends at another time on each of them."""
    events, period = [], compute + communicate + 100_000
    for step in range(steps):
        zero, number = step * period + shifts[rank][step], 10 * (step + 1)
        events += [
            mark(step, zero, compute + communicate + 50),
            launch(zero + 1, number),
            kernel(zero + 10, compute - 20, correlation=number),
            launch(zero + 7, number + 1),
            all_reduce(zero + compute, communicate, number + 1, 1 << 18),
        ]
    return events


def uneven_steps(steps=6, slow=12):
    """Steps that ask for the same; the host takes many times as long in every second one."""
    events, now = [], 0.0
    for step in range(steps):
        pause = 100 if step % 2 else 100 * slow
        events.append(mark(step, now, 11 * pause))
        for n in range(10):
            number = 100 * step + n
            events += [launch(now + 1, number), kernel(now + 5, 20, f"k{n}", 7, number)]
            now += pause
        events += [launch(now + 1, 100 * step + 10), all_reduce(now + 5, 20, 100 * step + 10)]
        now += pause + 1
    return events


__all__ = [
    "NCCL",
    "apart",
    "busy_steps",
    "exposed_steps",
    "graph_steps",
    "layered_steps",
    "preprocessing_steps",
    "straggling",
    "uneven_steps",
]
