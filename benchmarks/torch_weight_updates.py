"""One rank of the benchmark of weight updates: rank 0 trains, the others receive."""

import time
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import weft.torch
from benchmarks.weight_updates import bfloat16_weights, changed_words

_TENSOR = 32 << 20  # bytes of a tensor: the weights of a model are many of them


def updates(groups: dict[str, Any], job: dict[str, Any]) -> list[dict[str, Any]]:
    """Send full weights once, then updates of each share; time until all have switched."""
    del groups
    is_sender, found = dist.get_rank() == 0, []
    words = bfloat16_weights(job["nbytes"] if is_sender else 0).view(np.int16)
    held = torch.from_numpy(words if is_sender else np.zeros(job["nbytes"] // 2, np.int16))
    tensors = {
        f"weights.{number}": part.view(torch.bfloat16)
        for number, part in enumerate(torch.split(held, _TENSOR // 2))
    }
    group = dist.new_group()
    sender = weft.torch.WeightSender(tensors, group=group) if is_sender else None
    receiver = None if is_sender else weft.torch.WeightReceiver(tensors, group=group)
    for share in (1.0, *job["shares"]):
        times: list[dict[str, float]] = []
        for number in range(1 if share == 1.0 else job["rounds"]):
            if is_sender and share < 1:
                held.copy_(
                    torch.from_numpy(
                        changed_words(held.numpy().view(np.uint16), share, "one_ulp", number).view(
                            np.int16
                        )
                    )
                )
            dist.barrier()
            times.append(_one_update(sender, receiver))
        shown = torch.tensor([_digest(held)])
        everyone = [torch.zeros_like(shown) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, shown)
        found.append(
            {
                "share": share,
                "seconds": [each["seconds"] for each in times],
                "staged_seconds": median(each["staged"] for each in times),
                "switch_seconds": median(each["switch"] for each in times),
                "wire_bytes": median(each["wire_bytes"] for each in times),
                "exact": len({int(each) for each in everyone}) == 1,
            }
        )
    return found


def _one_update(sender: Any, receiver: Any) -> dict[str, float]:
    """Publish and switch; the sender's time includes the last receiver's switch."""
    begin = time.perf_counter()
    wire_bytes, switch = 0, 0.0
    if sender is not None:
        wire_bytes = sender.publish().wire_bytes
    else:
        receiver.stage()
        while not receiver.is_staged:
            time.sleep(1e-3)  # what a receiver computes meanwhile, on cores of its own
        staged = time.perf_counter()
        receiver.switch()
        switch = time.perf_counter() - staged
    done = time.perf_counter()
    slowest = torch.tensor([switch], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    seconds = time.perf_counter() - begin
    return {
        "seconds": seconds,
        "staged": done - begin,
        "switch": float(slowest),
        "wire_bytes": wire_bytes,
    }


def _digest(held: torch.Tensor) -> int:
    """Return a sum of the words of many parts, in which the order of the parts counts."""
    total = 0
    for number, part in enumerate(np.array_split(held.numpy().view(np.uint16), 256)):
        total = (total * 31 + number + int(np.add.reduce(part, dtype=np.uint64))) % (1 << 62)
        total += int(np.bitwise_xor.reduce(part)) << 40
    return total % (1 << 62)
