"""Small traces as PyTorch's profiler would write them."""

import gzip
import json
import math


def event(name="k", cat="kernel", ts=0.0, dur=1.0, tid=7, **args):
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def kernel(ts, dur, name="gemm", stream=7, correlation=None, **args):
    known = {} if correlation is None else {"correlation": correlation}
    return event(name, "kernel", ts, dur, stream, stream=stream, device=0, **known, **args)


def launch(ts, correlation, dur=1.0):
    return event("cudaLaunchKernel", "cuda_runtime", ts, dur, 1, correlation=correlation)


def mark(number, ts, dur):
    return event(f"ProfilerStep#{number}", "user_annotation", ts, dur, 1)


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def all_reduce(ts, dur, correlation=None, nelems=1024, ranks=2, **args):
    about = {
        "Collective name": "allreduce",
        "In msg nelems": nelems,
        "Out msg nelems": nelems,
        "dtype": "Float",
        "Group size": ranks,
        "Process Group Name": "0",
    }
    return kernel(ts, dur, NCCL, 20, correlation, **about, **args)


def text(events, rank=0, world_size=2, **more):
    about = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size}}
    devices = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108}]
    whole = {"schemaVersion": 1, "deviceProperties": devices} | about | more
    return json.dumps({**whole, "traceEvents": events}).encode()


def written(path, events, **more):
    """Write a trace, packed if the name says so."""
    raw = text(events, **more)
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def job(folder, starts, *, clocks=(0.0, 0.0), steps=3):
    """Write the files of ranks that meet in one all-reduce a step; ``starts`` say who is late."""
    ends = [1000.0 * (step + 1) for step in range(steps)]
    paths = []
    for rank, start in enumerate(starts):
        events = []
        for step, end in enumerate(ends):
            zero = 1000.0 * step + clocks[rank]
            events += [
                mark(step, zero, 990.0),
                launch(zero + 1, 2 * step),
                kernel(zero + 10, start - 20, correlation=2 * step),
                launch(zero + 2, 2 * step + 1),
                all_reduce(zero + start, end - 1000 * step - 100 - start, correlation=2 * step + 1),
            ]
        paths.append(
            written(folder / f"rank{rank}.json", events, rank=rank, world_size=len(starts))
        )
    return paths


def one_step(**more):
    """A step of 100 us: 30 of compute, 40 of communication, 10 of both, 30 idle in between."""
    return [
        mark(1, 0, 100),
        launch(1, 1),
        kernel(10, 30, correlation=1),
        launch(2, 2),
        all_reduce(30, 40, correlation=2, **more),
    ]


def nans(value):
    """Find the numbers of a row that are none."""
    if isinstance(value, dict):
        return [n for inner in value.values() for n in nans(inner)]
    if isinstance(value, list | tuple):
        return [n for inner in value for n in nans(inner)]
    return [value] if isinstance(value, float) and not math.isfinite(value) else []
