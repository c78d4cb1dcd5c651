"""The device that a check runs on: a GPU, or CPU tensors that stand in for one.

Not yet run on hardware: what stands here for CUDA and HIP devices is written against torch's
documentation; the same checks run on the stand-in in the tests.
"""

from __future__ import annotations

import os
import platform
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from weft.gpu.detected_stack import detected_stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class CheckDevice(Protocol):
    """What a check asks of a device."""

    @property
    def device(self) -> torch.device:
        """The device of tensors."""

    @property
    def is_gpu(self) -> bool:
        """Whether figures are those of a GPU."""

    def facts(self) -> dict[str, Any]:
        """Return what the device and its driver say about themselves."""

    def synchronize(self) -> None:
        """Wait for everything that was issued."""

    def seconds(self, work: Callable[[], object], repeats: int) -> float:
        """Return the median time of ``work`` on the device, after one run to warm up."""

    def stream(self) -> Any:
        """Return a context in which work is issued to a side stream."""

    def delay(self, seconds: float) -> None:
        """Delay what is issued next."""

    def state(self) -> dict[str, float]:
        """Return the clock in MHz and the power in watts, as far as they are told."""


class StandIn:
    """CPU tensors in the place of a GPU: every part that needs none runs the same code."""

    device = torch.device("cpu")
    is_gpu = False

    def facts(self) -> dict[str, Any]:
        """Return the processor."""
        return {"name": platform.processor() or platform.machine(), "units": os.cpu_count() or 1}

    def synchronize(self) -> None:
        """Do nothing: work is done when it is issued."""

    def seconds(self, work: Callable[[], object], repeats: int) -> float:
        """Return the median by the clock of the host."""
        work()
        found = []
        for _ in range(repeats):
            began = time.perf_counter()
            work()
            found.append(time.perf_counter() - began)
        return median(found)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Yield: there is one stream."""
        yield

    def delay(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def state(self) -> dict[str, float]:
        """Return nothing: a CPU has no such counter."""
        return {}


class CudaDevice:
    """One CUDA or HIP device; on ROCm, torch gives HIP devices the same names."""

    is_gpu = True

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        self._side: Any = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def facts(self) -> dict[str, Any]:
        """Return properties of the device, and which others it can copy to directly."""
        found = torch.cuda.get_device_properties(self.device)
        mine = self.device.index
        others = [n for n in range(torch.cuda.device_count()) if n != mine]
        return {
            "name": found.name,
            "units": found.multi_processor_count,
            "memory": found.total_memory,
            "architecture": getattr(found, "gcnArchName", f"sm_{found.major}{found.minor}"),
            "peers": [n for n in others if torch.cuda.can_device_access_peer(mine, n)],
            "not_peers": [n for n in others if not torch.cuda.can_device_access_peer(mine, n)],
            **self.state(),
        }

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], repeats: int) -> float:
        """Return the median between events on the current stream."""
        work()
        pairs = []
        for _ in range(repeats):
            begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            begin.record()
            work()
            end.record()
            pairs.append((begin, end))
        self.synchronize()
        return median(float(begin.elapsed_time(end)) for begin, end in pairs) / 1e3

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Issue to a side stream that begins behind the current one and is waited for."""
        current: Any = torch.cuda.current_stream(self.device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            yield
        current.wait_stream(self._side)

    def delay(self, seconds: float) -> None:
        """Spin on the stream for about that long, at a clock of some 1.5 GHz."""
        torch.cuda._sleep(int(seconds * 1.5e9))  # type: ignore[no-untyped-call] # noqa: SLF001

    def state(self) -> dict[str, float]:
        """Return clock and power; drivers without management libraries tell neither."""
        found = {}
        for name, read in (("mhz", torch.cuda.clock_rate), ("watts", torch.cuda.power_draw)):
            try:
                found[name] = float(read(self.device))
            except (ImportError, RuntimeError, OSError, AttributeError):
                continue
        if "watts" in found:
            found["watts"] /= 1e3  # torch tells milliwatts
        return found


@dataclass(frozen=True, slots=True)
class CheckJob:
    """The ranks of a check, and how thorough it is: ``scale`` 1 takes minutes on 8 GPUs."""

    device: CheckDevice
    rank: int
    num_ranks: int
    scale: float = 1.0

    def gather(self, value: object) -> list[Any]:
        """Return what every rank passes."""
        found: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(found, value)
        return found

    def slowest(self, seconds: float) -> float:
        """Return the longest of all ranks: what a collective takes."""
        return float(max(self.gather(seconds)))


def facts(job: CheckJob) -> list[dict[str, Any]]:
    """Return what each rank says of itself: device, software, settings of the environment."""
    software = dict(detected_stack().versions)
    for package in ("triton", "weft"):
        try:
            software[package] = version(package)
        except PackageNotFoundError:
            continue
    prefixes = ("NCCL_", "RCCL_", "HSA_", "TORCH_NCCL_", "CUDA_DEVICE", "HIP_VISIBLE")
    settings = {key: value for key, value in os.environ.items() if key.startswith(prefixes)}
    mine = {
        "rank": job.rank,
        "host": platform.node(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": job.device.facts(),
        "software": software,
        "settings": settings,
    }
    return job.gather(mine)


def disagreements(found: list[dict[str, Any]]) -> list[str]:
    """Return what must be equal on all ranks and is not, naming the ranks."""
    problems = []
    names = sorted({name for each in found for name in each["software"]})
    for name in names:
        by_version: dict[str, list[int]] = {}
        for each in found:
            by_version.setdefault(each["software"].get(name, "none"), []).append(each["rank"])
        if len(by_version) > 1:
            parts = [f"{which} on ranks {ranks}" for which, ranks in sorted(by_version.items())]
            problems.append(f"{name}: {', '.join(parts)}")
    devices = {each["device"]["name"] for each in found}
    if len(devices) > 1:
        problems.append(f"devices differ: {', '.join(sorted(devices))}")
    problems += [
        f"rank {each['rank']} has no peer access to devices {each['device']['not_peers']}"
        for each in found
        if each["device"].get("not_peers")
    ]
    return problems
