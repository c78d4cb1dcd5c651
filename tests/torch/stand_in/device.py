"""The device ``standin``: tensors that are not on the CPU, with a C++ backend of c10d.

It is built once from ``stand_in_device.cpp`` and kept with torch's other extensions. Kernels run
at once, on the calling thread, so its streams and events do nothing.
"""

import contextlib
import os
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import backend_registration, cpp_extension

NAME = "standin"  # torch accepts letters only
SOURCE = Path(__file__).with_name("stand_in_device.cpp")
HAS_COMPILER = shutil.which("g++") is not None


def _module() -> Any:
    """Return ``torch.standin``, with what torch asks of the module of a device."""
    made: Any = types.ModuleType(f"torch.{NAME}")
    current = torch.Stream(device=NAME)
    made.Event = lambda *_, **__: torch.Event(NAME)
    made.Stream = lambda *_, **__: torch.Stream(device=NAME)
    made.is_available = made.is_initialized = lambda: True
    made.device_count = lambda: 1
    made.current_device = lambda: 0
    made.set_device = made.synchronize = lambda *_: None
    made.current_stream = made.default_stream = lambda *_: current
    made.stream = made.device = lambda *_: contextlib.nullcontext()
    made.manual_seed = made.manual_seed_all = made.set_stream = lambda *_: None
    made.get_rng_state = lambda *_: torch.get_rng_state()
    made.set_rng_state = lambda state, *_: torch.set_rng_state(state)
    made._is_in_bad_fork = lambda: False
    made.get_amp_supported_dtype = lambda: [torch.bfloat16]
    return made


def load() -> Any:
    """Build the device if needed, register it with its backend, and return its extension."""
    if NAME in sys.modules.get("torch", torch).__dict__:
        return getattr(torch, NAME).extension
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    extension = cpp_extension.load(f"weft_{NAME}", [str(SOURCE)], extra_cflags=["-O0"])
    backend_registration.rename_privateuse1_backend(NAME)
    module = _module()
    module.extension = extension
    torch._register_device_module(NAME, module)
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    dist.Backend.register_backend(NAME, _create, devices=[NAME])
    return extension


def _create(store: Any, rank: int, size: int, timeout: Any) -> Any:
    gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
    return getattr(torch, NAME).extension.backend(gloo)


if __name__ == "__main__":
    load()
