"""Measurements of a check: products, collectives, overlaps, copies, CTA caps, carve-outs, launches.

Times are those of the slowest rank. What a stack lacks is left out and said, never guessed.
"""

from __future__ import annotations

import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from weft.calibration.gpu_check.torch_collective_checks import all_gather, reduce_scatter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from weft.calibration.gpu_check.check_cases import CheckCase
    from weft.calibration.gpu_check.torch_check_device import CheckJob

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "tf32": torch.float32,
    "fp32": torch.float32,
}
CAPS = (2, 4, 8, 16, 32)  # CTAs of a communicator
CARVE_OUTS = (0, 8, 16, 32)  # compute units that products leave free
POLICIES = {"default": 0, "efficiency": 1, "zero": 2}  # NCCL_CTA_POLICY of NCCL 2.27 and 2.28
SUSTAINED = 3.0  # seconds


def product_of(job: CheckJob, case: CheckCase) -> Callable[[], object]:
    """Return the product of a case, ready to run."""
    assert case.product is not None
    m, n, k = case.product
    dtype = DTYPES[case.dtype]
    torch.backends.cuda.matmul.allow_tf32 = case.dtype == "tf32"
    a = torch.randn(m, k, device=job.device.device).to(dtype)
    b = torch.randn(n, k, device=job.device.device).to(dtype).t()
    out = torch.empty(m, n, device=job.device.device, dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


def collective_of(
    job: CheckJob, kind: str, nbytes: int, *, group: Any = None, later: bool = False
) -> Callable[[], Any]:
    """Return a collective of so many bytes as nccl-tests counts them, ready to run.

    With ``later`` it returns a handle to wait for, and runs on the stream of the group.
    """
    count = max(nbytes // 4 // job.num_ranks, 1)
    whole = torch.ones(count * job.num_ranks, device=job.device.device)
    part = torch.ones(count, device=job.device.device)
    out = torch.empty_like(whole)
    how = {"group": group, "async_op": later}
    calls: dict[str, Callable[[], Any]] = {
        "all_gather": lambda: all_gather(whole, part, **how),
        "reduce_scatter": lambda: reduce_scatter(part, whole, **how),
        "all_reduce": lambda: dist.all_reduce(whole, **how),
        "all_to_all": lambda: dist.all_to_all_single(out, whole, **how),
    }
    return calls[kind]


def measure_case(job: CheckJob, case: CheckCase, repeats: int) -> float:
    """Return the seconds of a case on the slowest rank."""
    if not case.collective:
        return job.slowest(job.device.seconds(product_of(job, case), repeats))
    alone = case.product is None
    exchange = collective_of(job, case.collective, case.nbytes, later=not alone)
    dist.barrier()
    if alone:
        return job.slowest(job.device.seconds(exchange, repeats))
    compute = product_of(job, case)

    def overlapped() -> None:
        if case.order == "communication":
            work = exchange()
            compute()
        else:
            compute()
            work = exchange()
        work.wait()

    return job.slowest(job.device.seconds(overlapped, repeats))


def sustained(job: CheckJob, case: CheckCase, short: float) -> dict[str, Any]:
    """Run a product for seconds; return its rate over the short one's, with clock and power."""
    work = product_of(job, case)
    limit = SUSTAINED * min(job.scale, 1.0)
    batch = max(1, round(0.05 / max(short, 1e-6)))
    states, times, began = [], list[float](), time.monotonic()
    while time.monotonic() - began < limit:
        times.append(job.device.seconds(work, batch))
        states.append(job.device.state())
    found: dict[str, Any] = {"case": case.name, "short": short, "sustained": median(times[-5:])}
    for name in ("mhz", "watts"):
        seen = [state[name] for state in states if name in state]
        if seen:
            found[name] = median(seen)
    return found


def launches(job: CheckJob) -> dict[str, float]:
    """Return the host's time for one launch, and the device's from launch to launch."""
    x = torch.zeros(1, device=job.device.device)
    count = 200

    def issue() -> None:
        for _ in range(count):
            x.add_(1)

    issue()
    job.device.synchronize()
    began = time.perf_counter()
    issue()
    issued = time.perf_counter() - began
    job.device.synchronize()
    return {
        "host": job.slowest(issued / count),
        "device": job.slowest(job.device.seconds(issue, 5) / count),
    }


def copies(job: CheckJob) -> Iterator[dict[str, Any]]:
    """Yield copies by copy engines: to the host, and to peers one by one, batched, at once."""
    device = job.device.device
    nbytes = 64 << 20 if job.device.is_gpu else 1 << 20
    mine = torch.ones(nbytes, dtype=torch.uint8, device=device)
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=job.device.is_gpu)
    for name, dst, src in (("to host", host, mine), ("from host", mine, host)):
        took = job.device.seconds(partial(dst.copy_, src, non_blocking=True), 10)
        yield {"case": f"copy {name}", "nbytes": nbytes, "seconds": job.slowest(took)}
    if not job.device.is_gpu or job.num_ranks == 1:
        yield {"case": "copies between devices", "skipped": "needs several GPUs"}
        return
    from torch.distributed import _symmetric_memory as memory

    buffer = memory.empty(nbytes, dtype=torch.uint8, device=device)
    everyone = dist.group.WORLD
    assert everyone is not None
    handle = memory.rendezvous(buffer, everyone)
    others = [rank for rank in range(job.num_ranks) if rank != job.rank]
    views = {rank: handle.get_buffer(rank, (nbytes,), torch.uint8) for rank in others}
    part = nbytes // len(others)
    next_one = (job.rank + 1) % job.num_ranks
    yield {
        "case": "copy to one peer",
        "nbytes": nbytes,
        "seconds": job.slowest(job.device.seconds(lambda: views[next_one].copy_(mine), 10)),
    }
    targets = [views[rank][:part] for rank in others]
    sources = [mine[:part] for _ in others]
    batched = job.device.seconds(lambda: torch._foreach_copy_(targets, sources), 10)
    yield {
        "case": "copies to all peers, batched",
        "nbytes": nbytes,
        "seconds": job.slowest(batched),
    }
    streams: list[Any] = [torch.cuda.Stream(device) for _ in others]  # type: ignore[no-untyped-call]

    def at_once() -> None:
        current: Any = torch.cuda.current_stream(device)
        for stream, target, source in zip(streams, targets, sources, strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                target.copy_(source, non_blocking=True)
            current.wait_stream(stream)

    took = job.slowest(job.device.seconds(at_once, 10))
    yield {"case": "copies to all peers, a stream each", "nbytes": nbytes, "seconds": took}
    small = [view[:64] for view in targets]
    calls = job.device.seconds(lambda: [t.copy_(mine[:64]) for t in small], 20) / len(small)
    yield {"case": "one small copy", "nbytes": 64, "seconds": job.slowest(calls)}


def communicators(job: CheckJob, kinds: Sequence[str], nbytes: int) -> Iterator[dict[str, Any]]:
    """Yield collectives of communicators with other caps on CTAs, and other CTA policies."""
    nccl = getattr(dist, "ProcessGroupNCCL", None)
    if not job.device.is_gpu or nccl is None or job.num_ranks == 1:
        yield {"case": "CTA caps and policies", "skipped": "needs several GPUs with NCCL or RCCL"}
        return
    settings = [{"max_ctas": cap} for cap in CAPS]
    settings += [{"cta_policy": number} for number in POLICIES.values()]
    for setting in settings:
        options = nccl.Options()
        lacking = [name for name in setting if not hasattr(options.config, name)]
        label = " ".join(f"{name}={value}" for name, value in setting.items())
        if lacking:
            yield {"case": label, "skipped": f"this torch has no config.{lacking[0]}"}
            continue
        for name, value in setting.items():
            setattr(options.config, name, value)
        group = dist.new_group(pg_options=options)
        for kind in kinds:
            work = collective_of(job, kind, nbytes, group=group)
            took = job.slowest(job.device.seconds(work, 10))
            yield {"case": f"{kind} {nbytes} {label}", "nbytes": nbytes, "seconds": took, **setting}
        dist.destroy_process_group(group)


def carve_outs(job: CheckJob, case: CheckCase) -> Iterator[dict[str, Any]]:
    """Yield a product that leaves compute units free, as partitions do."""
    carve = getattr(torch._C, "_set_sm_carveout_experimental", None)  # noqa: SLF001
    if not job.device.is_gpu or carve is None:
        yield {"case": "carve-outs", "skipped": "needs a GPU and torch's carve-out"}
        return
    for units in CARVE_OUTS:
        carve(units or None)
        took = job.slowest(job.device.seconds(product_of(job, case), 10))
        yield {"case": f"{case.name}, {units} units free", "units": units, "seconds": took}
    carve(None)
