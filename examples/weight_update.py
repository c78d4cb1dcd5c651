"""A trainer sends its weights to workers after every step: only what changed travels.

    torchrun --nproc-per-node=3 examples/weight_update.py --pretend-hosts

Rank 0 trains; the others would serve the model. They compute with the weights they have while the
next ones arrive, and switch between two batches. On one machine ranks share memory:
``--pretend-hosts`` tells them apart as if each had a machine of its own.
"""

import os
import sys

import torch
import torch.distributed as dist

import weft.torch

STEPS = 6


def main() -> None:
    """Train on rank 0, serve on the others."""
    if "--pretend-hosts" in sys.argv:
        os.environ |= {"WEFT_HOST": f"host-{os.environ['RANK']}", "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("weft")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024)).bfloat16()
    updates = dist.new_group()  # a group of its own: workers receive while they compute
    if dist.get_rank() == 0:
        train(model, weft.torch.WeightSender(model.state_dict(), group=updates))
    else:
        serve(model, weft.torch.WeightReceiver(model.state_dict(), group=updates))
    dist.destroy_process_group()


def train(model: torch.nn.Module, sender: weft.torch.WeightSender) -> None:
    """Take steps as small as those of fine-tuning, and publish the weights after each."""
    master = {name: tensor.float() for name, tensor in model.state_dict().items()}
    for _ in range(STEPS):
        for name, tensor in model.state_dict().items():
            master[name] += 2e-7 * torch.randn_like(master[name]).sign()
            tensor.copy_(master[name])
        update = sender.publish()
        print(
            f"version {update.version}: {update.wire_bytes} of {update.nbytes} bytes"
            f"{f', all values for ranks {update.full}' if update.full else ''}"
        )


def serve(model: torch.nn.Module, receiver: weft.torch.WeightReceiver) -> None:
    """Compute while the next weights arrive, then switch."""
    x = torch.randn(64, 1024, dtype=torch.bfloat16)
    for step in range(STEPS):
        receiver.stage()
        with torch.no_grad():
            model(x)  # with the weights of the last switch
        version = receiver.switch()
        assert version == step + 1
    receiver.close()


if __name__ == "__main__":
    main()
