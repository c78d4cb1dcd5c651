"""The software stack of this process, and whether its torch has the knobs of a plan."""

from __future__ import annotations

import ctypes
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from weft.hardware.software_stack import SoftwareStack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from weft.gpu.knobs import Knob


def detected_stack() -> SoftwareStack:
    """Return the versions of torch and of the libraries it was loaded with."""
    found = {"torch": torch.__version__.partition("+")[0]}
    if torch.cuda.is_available():
        if torch.version.hip is not None:
            found["rocm"] = torch.version.hip.partition("-")[0]
        else:
            found["cuda"] = _driver_version()
            found["nccl"] = ".".join(map(str, _nccl_version()[:3]))
    for name, package in (("mori", "amd-mori"),):
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return SoftwareStack(found, basis="detected")


def _nccl_version() -> tuple[int, ...]:
    found: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return found


def _driver_version() -> str:
    """Return the newest CUDA version that the driver serves."""
    number = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def missing_knobs(knobs: Iterable[Knob]) -> Iterator[str]:
    """Yield the names that this torch lacks, of all knobs of a plan.

    Options of communicators need torch with NCCL; without it they are looked up nowhere and count
    as missing.
    """
    for knob in knobs:
        match knob.door:
            case "communicator":
                options: Any = getattr(dist, "ProcessGroupNCCL", None)
                there = options is not None and _has(options.Options(), knob.name)
                name_of_knob = f"ProcessGroupNCCL.Options.{knob.name}"
            case "fsdp2":
                there, name_of_knob = hasattr(FSDPModule, knob.name), f"FSDPModule.{knob.name}"
            case "ddp":
                names = DistributedDataParallel.__init__.__code__.co_varnames
                there, name_of_knob = knob.name in names, f"DistributedDataParallel({knob.name}=..)"
            case "inductor":
                config = import_module("torch._inductor.config")
                there, name_of_knob = _has(config, knob.name), f"torch._inductor.config.{knob.name}"
            case "torch":
                module, _, name = knob.name.rpartition(".")
                there, name_of_knob = hasattr(import_module(module), name), knob.name
            case "env" | "weft":
                continue
        if not there:
            yield name_of_knob


def _has(what: Any, dotted: str) -> bool:
    for part in dotted.split("."):
        if not hasattr(what, part):
            return False
        what = getattr(what, part)
    return True
