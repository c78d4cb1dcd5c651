"""Traces made up to be measured: as PyTorch's profiler would write them, of any size.

A step is 500 operators. Each has the five events of a launch: the operator with its shapes, the
call of the runtime, an arrow's two ends, and the kernel; every fiftieth kernel is an all-reduce on
a stream of its own, half of it behind computation.
"""

import gzip
import itertools
from collections.abc import Iterator
from pathlib import Path

EVENTS_OF_A_STEP = 2501
_OPS = 500
_KERNELS = 20  # names
_LONG = "std::array<char*, 3ul>, at::native::memory::LoadWithoutCast, " * 2
_HEAD = (
    '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", '
    '"totalGlobalMem": 85198045184, "computeMajor": 8, "computeMinor": 0, "numSms": 108}], '
    '"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8}, "traceEvents": [\n'
)
_SHAPES = '"Input Dims": [[{0}, 1024], [1024, {0}], []], "Input type": ["float", "float", "Scalar"]'
_NCCL = (
    '"Collective name": "allreduce", "In msg nelems": 262144, "Out msg nelems": 262144, '
    '"Group size": 8, "dtype": "Float", "Process Group Name": "0"'
)


def write_events(path: Path, num_events: int) -> Path:
    """Write about that many events, packed: whole steps."""
    with gzip.open(path, "wt", compresslevel=6, encoding="ascii") as file:
        file.write(_HEAD)
        for step in range(round(num_events / EVENTS_OF_A_STEP)):
            file.write("".join(_step(step)))
        file.write('{"ph": "i", "name": "end", "ts": 0}]}\n')
    return path


def write_bytes(path: Path, nbytes: int) -> Path:
    """Write a plain file of at least that many bytes."""
    written = 0
    with path.open("w", encoding="ascii") as file:
        written += file.write(_HEAD)
        for step in itertools.count():
            written += file.write("".join(_step(step)))
            if written >= nbytes:
                break
        file.write('{"ph": "i", "name": "end", "ts": 0}]}\n')
    return path


def _step(step: int) -> Iterator[str]:
    """Yield the lines of one step of 10 ms."""
    zero = 1_700_000_000_000_000 + 10_000 * step
    yield _event(
        "user_annotation", f"ProfilerStep#{step}", 77, zero, 9_990, f'"External id": {step}'
    )
    for op in range(_OPS):
        ident, at = step * _OPS + op + 1, zero + 19 * op
        is_comm = op % 50 == 49
        name = "nccl:all_reduce" if is_comm else f"aten::op{op % _KERNELS}"
        shape = _SHAPES.format(64 << (op % 5))
        yield _event(
            "cpu_op", name, 77, at, 15, f'"External id": {ident}, "Ev Idx": {ident}, {shape}'
        )
        call = f'"External id": {ident}, "cbid": 211, "correlation": {ident}'
        yield _event("cuda_runtime", "cudaLaunchKernel", 77, at + 4, 6, call)
        for phase, time in (("s", at + 4), ("f", at + 12)):
            yield (
                f'{{"ph": "{phase}", "id": {ident}, "pid": 77, "tid": 77, "ts": {time}, '
                f'"cat": "ac2g", "name": "ac2g", "bp": "e"}},\n'
            )
        yield _kernel(ident, op, at + 12, is_comm=is_comm)


def _kernel(ident: int, op: int, at: int, *, is_comm: bool) -> str:
    stream = 20 if is_comm else 7
    name = (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        if is_comm
        else f"void at::native::elementwise_kernel<128, {op % _KERNELS}, {_LONG}float>(int, float)"
    )
    more = f", {_NCCL}" if is_comm else ""
    args = (
        f'"External id": {ident}, "queued": 0, "device": 0, "context": 1, "stream": {stream}, '
        f'"correlation": {ident}, "registers per thread": 32, "shared memory": 0, '
        f'"blocks per SM": 4.7407, "warps per SM": 75.85, "grid": [{64 << (op % 5)}, 1, 1], '
        f'"block": [128, 1, 1], "est. achieved occupancy %": 100{more}'
    )
    return _event("kernel", name, stream, at, 30 if is_comm else 14, args, pid=0)


def _event(cat: str, name: str, tid: int, ts: int, dur: int, args: str, pid: int = 77) -> str:
    return (
        f'{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid}, '
        f'"ts": {ts}.{ts % 1000:03d}, "dur": {dur}.250, "args": {{{args}}}}},\n'
    )
