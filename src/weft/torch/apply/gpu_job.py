"""What executing a plan needs of a job on GPUs, as one interface, and its form on CUDA and HIP.

Not yet run on hardware: tests carry plans out on CPU tensors with a stand-in of this interface, and
check every name that ``CudaJob`` uses against torch's own files.
"""

# ruff: noqa: SLF001 - options of NCCL and carve-outs have no public names

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory as symm_mem

from weft.gpu.detected_stack import detected_stack, missing_knobs
from weft.gpu.knobs import ZERO_CTA

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weft.gpu.knobs import Knob
    from weft.hardware.software_stack import SoftwareStack
    from weft.torch.backend.c10d import ProcessGroup


class GpuJob(Protocol):
    """A running job: its software, communicators, symmetric memory, clocks and carve-outs."""

    def stack(self) -> SoftwareStack:
        """Return the versions of this rank."""

    def missing(self, knobs: Iterable[Knob]) -> list[str]:
        """Return the knobs that this torch lacks."""

    def refusal(self) -> str:
        """Return why this process cannot execute plans for GPUs, "" if it can."""

    def no_peer_access(self) -> str:
        """Return the pair of local devices without peer access, "" if all have it."""

    def communicator(self, ranks: Sequence[int], options: Sequence[Knob]) -> ProcessGroup:
        """Create a communicator of some ranks with options. Collective over those ranks."""

    def symmetric(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Any:
        """Return a tensor in symmetric memory."""

    def rendezvous(self, tensor: torch.Tensor, group: ProcessGroup) -> bool:
        """Register a tensor with a group; False if it is not in symmetric memory."""

    def carve_out(self, units: int | None) -> None:
        """Leave some units to communication in all later products; None: take all."""

    def wait_for_all(self) -> None:
        """Make later kernels wait for everything on the current stream."""

    def mark(self) -> Any:
        """Record a time in the order of the device's work."""

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds between two marks; wait for the second."""

    def scalar(self, value: float) -> torch.Tensor:
        """Return a number as a tensor that the default group can reduce."""


class CudaJob:
    """A job on CUDA devices; on ROCm, torch gives HIP devices the same names."""

    def stack(self) -> SoftwareStack:
        """Return the versions of this rank."""
        return detected_stack()

    def missing(self, knobs: Iterable[Knob]) -> list[str]:
        """Return the knobs that this torch lacks."""
        return list(missing_knobs(knobs))

    def refusal(self) -> str:
        """Return why this process cannot execute plans for GPUs."""
        if not torch.cuda.is_available():
            return "this process sees no GPU"
        return "" if dist.is_nccl_available() else "this torch has no NCCL or RCCL"

    def no_peer_access(self) -> str:
        """Return the pair of local devices without peer access."""
        count = torch.cuda.device_count()
        for one in range(count):
            for other in range(count):
                if one != other and not torch.cuda.can_device_access_peer(one, other):
                    return f"cuda:{one} and cuda:{other}"
        return ""

    def communicator(self, ranks: Sequence[int], options: Sequence[Knob]) -> ProcessGroup:
        """Create an NCCL communicator; it starts with its first collective."""
        made: Any = dist.ProcessGroupNCCL.Options()
        for knob in options:
            holder, name = (made.config, knob.name[7:]) if "." in knob.name else (made, knob.name)
            setattr(holder, name, knob.value)
            if (name, knob.value) == ("cta_policy", ZERO_CTA):
                symm_mem.set_backend("NCCL")
        found: ProcessGroup = dist.new_group(
            list(ranks), backend="nccl", pg_options=made, use_local_synchronization=True
        )
        return found

    def symmetric(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Any:
        """Return a tensor of the symmetric-memory pool."""
        with torch.cuda.use_mem_pool(symm_mem.get_mem_pool(device)):
            return torch.empty(*shape, dtype=dtype, device=device)

    def rendezvous(self, tensor: torch.Tensor, group: ProcessGroup) -> bool:
        """Register a tensor of the pool with a group. Collective for each new block of memory."""
        if not symm_mem.is_symm_mem_tensor(tensor):
            return False
        symm_mem.rendezvous(tensor, group=group.group_name)
        return True

    def carve_out(self, units: int | None) -> None:
        """Set the carve-out of cuBLASLt or hipBLASLt."""
        torch._C._set_sm_carveout_experimental(units)

    def wait_for_all(self) -> None:
        """Make the default stream wait for the current one."""
        torch.cuda.default_stream().wait_stream(torch.cuda.current_stream())

    def mark(self) -> Any:
        """Record an event on the default stream."""
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.default_stream())
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds between two events."""
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def scalar(self, value: float) -> torch.Tensor:
        """Return a number on this rank's device."""
        return torch.tensor([value], dtype=torch.float64, device="cuda")
