"""A simulated step written as PyTorch's profiler would write it, with all that it can record."""

from __future__ import annotations

import json

from tests.trace.events import event, mark

_NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
}
_DTYPES = {"bf16": ("c10::BFloat16", "BFloat16", 2)}


def write_kineto(path, run, device, *, steps=4):
    """Write a run of one class of ranks as a profile of equal steps; the host waits for each."""
    engine = run.engine
    ops = engine.graph.steps[0].ops
    streams = {name: 7 + k for k, name in enumerate(dict.fromkeys(op.stream for op in ops))}
    events, number, now = [], 1, 0.0
    for step in range(steps):
        records: dict[int, int] = {}
        for n, op in enumerate(ops):
            stream, issue = streams[op.stream], engine.layout.issue_row[0, n]
            host, called = (now + 1e6 * t[issue] for t in (run.row_start, run.row_end))
            for earlier in op.after:
                other = streams[ops[earlier].stream]
                if other != stream:
                    wait = {"stream": stream, "correlation": number, "wait_on_stream": other}
                    wait["wait_on_cuda_event_record_corr_id"] = records[earlier]
                    events += [
                        _call("cudaStreamWaitEvent", (host, 0.0), number),
                        event("Stream Wait Event", "cuda_sync", host, 0, stream, **wait),
                    ]
                    number += 1
            took, end = 1e6 * run.length((0, n)), now + 1e6 * run.span((0, n))[1]
            events += _launched(op, number, (host, called - host), (end - took, took), stream)
            records[n] = number + 1
            events.append(_call("cudaEventRecord", (called, 0.0), number + 1))
            number, host = number + 2, called
        done = now + 1e6 * run.makespan
        events.append(event("cudaDeviceSynchronize", "cuda_runtime", host, done - host, 1))
        events.append(mark(step, now, done - now))
        now = done
    about = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8}}
    devices = [{"id": 0, "name": device, "numSms": engine.device.units}]
    whole = {"schemaVersion": 1, "deviceProperties": devices, "traceEvents": events, **about}
    path.write_text(json.dumps(whole))
    return path


def _call(name, span, number):
    start, duration = span
    return event(name, "cuda_runtime", start, duration, 1, correlation=number)


def _launched(op, number, call, run, stream):
    called = _call("cudaLaunchKernel", call, number)
    start, duration = run
    about = {"stream": stream, "device": 0, "correlation": number}
    if op.collective is None:
        name, shapes = _operator(op.cost)
        types = [_DTYPES[op.cost.dtype][0]] * len(shapes)
        around = event(
            name, "cpu_op", call[0], call[1], 1, **{"Input Dims": shapes, "Input type": types}
        )
        kernel = "gemm" if op.cost.family == "gemm" else "vectorized_elementwise_kernel"
        return [around, called, event(kernel, "kernel", start, duration, stream, **about)]
    what = op.collective
    _, dtype, item = _DTYPES[what.dtype]
    whole, ranks = what.nbytes // item, 8
    sizes = {"all_gather": (whole // ranks, whole), "reduce_scatter": (whole, whole // ranks)}
    inside, outside = sizes.get(what.kind, (whole, whole))
    about |= {"Collective name": _NAMES[what.kind], "In msg nelems": inside, "dtype": dtype}
    about |= {"Out msg nelems": outside, "Group size": ranks, "Process Group Name": "0"}
    name = f"ncclDevKernel_{_NAMES[what.kind]}(ncclDevKernelArgsStorage<4096ul>)"
    return [called, event(name, "kernel", start, duration, stream, **about)]


def _operator(cost):
    """Return an operator and the shapes of its inputs that make a kernel of this cost."""
    if cost.family == "gemm":
        m, n, k = cost.shape
        return "aten::mm", [[m, k], [k, n]]
    items = cost.nbytes // 2 // _DTYPES[cost.dtype][2]
    return "aten::copy_", [[items], [items]]
