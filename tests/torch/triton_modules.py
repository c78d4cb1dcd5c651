"""Modules whose tensors lie on a GPU, on CPU tensors in Triton's interpreter: two ranks compare.

``python -m tests.torch.triton_modules FOLDER``
"""

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from weft.fused.torch_symmetric_tensors import SharedFileMemory
from weft.torch.backend.device_compression import broadcast_encoded
from weft.torch.embedding.embedding_module import EmbeddingAllToAll
from weft.torch.embedding.row_gradients import SGD, RowwiseAdagrad
from weft.torch.hosts.inter_host_encoded import BroadcastEncoding
from weft.torch.linear.expert_combine import ExpertCombine
from weft.torch.linear.parallel_linear import AllGatherLinear, GemvAllReduce, LinearReduceScatter

RANKS, SAMPLES, ROWS = 2, 5, 7
DIMS = (4, 3, 2)


def memory(folder: str, name: str, rank: int) -> SharedFileMemory:
    return SharedFileMemory(Path(folder) / name, rank, RANKS)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bags() -> tuple[list[Tensor], list[Tensor]]:
    """Indices and offsets of all tables; a rank takes those of the tables it holds."""
    made = torch.Generator().manual_seed(5)
    indices, offsets = [], []
    for _ in DIMS:
        lengths = torch.randint(0, 4, (SAMPLES,), generator=made)
        offsets.append(torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]))
        indices.append(torch.randint(0, ROWS, (int(lengths.sum()),), generator=made))
    return indices, offsets


def reference(pooling: str) -> tuple[Tensor, list[Tensor]]:
    """The rows of all samples by torch, and the gradients of the tables."""
    tables = [drawn(ROWS, dim, seed=n).requires_grad_() for n, dim in enumerate(DIMS)]
    looked_up = zip(*bags(), tables, strict=True)
    rows = torch.cat(
        [
            torch.nn.functional.embedding_bag(i, t, o, mode=pooling, include_last_offset=True)
            for i, o, t in looked_up
        ],
        1,
    )
    (rows * drawn(SAMPLES, sum(DIMS), seed=9)).sum().backward()
    return rows.detach(), [table.grad for table in tables if table.grad is not None]


def embedding(folder: str, rank: int) -> None:
    tables = {f"t{n}": drawn(ROWS, dim, seed=n) for n, dim in enumerate(DIMS)}
    for case, (pooling, rule) in enumerate(
        [("sum", None), ("mean", None), ("sum", SGD(0.1)), ("sum", RowwiseAdagrad(0.1))]
    ):
        module = EmbeddingAllToAll(
            tables,
            pooling=pooling,
            optimizer=rule,
            sparse=case == 1,
            memory=memory(folder, f"embedding{case}", rank),
        )
        held = [int(name[1:]) for name in module.table_names]
        indices, offsets = bags()
        mine = [indices[n] for n in held], [offsets[n] for n in held]
        want, grads = reference(pooling)
        first = (0, (SAMPLES + 1) // 2)[rank]
        part = slice(first, first + ((SAMPLES + 1) // 2, SAMPLES // 2)[rank])
        for _ in range(2):  # rows change between them only with an optimizer
            before = [weight.detach().clone() for weight in module.weights.values()]
            rows = module(*mine)
            if rule is None:
                assert torch.allclose(rows, want[part], atol=1e-5), (rank, case)
            module.zero_grad()
            (rows * drawn(SAMPLES, sum(DIMS), seed=9)[part]).sum().backward()
            for n, old, weight in zip(held, before, module.weights.values(), strict=True):
                if rule is None:
                    assert weight.grad is not None
                    assert torch.allclose(weight.grad.to_dense(), grads[n], atol=1e-5)
                elif isinstance(rule, SGD):
                    assert torch.allclose(weight, old - rule.lr * grads[n], atol=1e-5)
                else:
                    assert not torch.equal(weight, old) or not grads[n].any()
    broken = [torch.full_like(each, ROWS) for each in mine[0]]
    module(broken, mine[1])
    assert sum(map(len, broken))
    with pytest.raises(IndexError, match="out of range"):
        module(*mine)
    dist.barrier()


def linear(folder: str, rank: int) -> None:
    inside, outside, tokens = 6, 10, 3
    whole = torch.nn.Linear(inside, outside)
    with torch.no_grad():
        whole.weight.copy_(drawn(outside, inside, seed=1))
        whole.bias.copy_(drawn(outside, seed=2))
    layer = GemvAllReduce(inside, outside, memory=memory(folder, "gemv", rank))
    layer._cut_from(whole)
    for step in range(3):
        x = drawn(tokens, inside, seed=30 + step)
        part = x.chunk(RANKS, 1)[rank].clone().requires_grad_()
        found = layer(part)
        assert torch.allclose(found, whole(x), atol=1e-5), (rank, step)
        found.sum().backward()
        assert part.grad is not None
        assert torch.allclose(part.grad, whole.weight.sum(0).chunk(RANKS)[rank].expand(tokens, -1))
    assert any("GEMV" in why for why in layer.reasons.values())
    rows = 4
    x = drawn(rows, inside, seed=40)
    scatter = LinearReduceScatter(inside, outside, memory=memory(folder, "rs", rank))
    scatter._cut_from(whole)
    y = scatter(x.chunk(RANKS, 1)[rank])
    assert torch.allclose(y, whole(x).chunk(RANKS)[rank], atol=1e-5)
    y.sum().backward()
    gather = AllGatherLinear(inside, outside, memory=memory(folder, "ag", rank))
    gather._cut_from(whole)
    z = gather(x.chunk(RANKS)[rank])
    assert torch.allclose(z, whole(x).chunk(RANKS, 1)[rank], atol=1e-5)
    z.sum().backward()


def experts(folder: str, rank: int) -> None:
    inside, outside = 5, 6
    layer = ExpertCombine(4, inside, outside, memory=memory(folder, "experts", rank))
    weights = drawn(4, outside, inside, seed=50)
    with torch.no_grad():
        layer.weight.copy_(weights.chunk(RANKS)[rank])
    counts = torch.tensor([[[3, 0], [20, 1]], [[2, 2], [0, 5]]])  # sender, taker, expert
    given = [drawn(int(counts[r].sum()), inside, seed=60 + r) for r in range(RANKS)]
    for _ in range(2):
        x = given[rank].clone().requires_grad_()
        layer.zero_grad()
        found = layer(x, counts[rank])
        want = []
        for sender in range(RANKS):
            start = int(counts[sender, :rank].sum())
            for expert in range(2):
                count = int(counts[sender, rank, expert])
                rows = given[sender][start : start + count]
                want.append(rows @ weights[2 * sender + expert].t())
                start += count
        assert torch.allclose(found, torch.cat(want), atol=1e-5), rank
        found.sum().backward()
        local = torch.repeat_interleave(torch.tensor([0, 1] * RANKS), counts[rank].reshape(-1))
        assert x.grad is not None
        assert torch.allclose(x.grad, layer.weight.detach().sum(1)[local], atol=1e-5), rank


def encoded(_folder: str, rank: int) -> None:
    sent = []

    def send(tensor: Tensor) -> None:
        sent.append(tensor.nbytes)
        dist.broadcast(tensor, 0)

    for codec, dtype in (("pack", torch.bfloat16), ("int8:64", torch.float32), ("bf16", None)):
        values = (0.02 * drawn(3000, seed=7)).to(dtype or torch.float32)
        x = values.clone() if rank == 0 else torch.zeros_like(values)
        broadcast_encoded(x, BroadcastEncoding(codec), send, is_root=rank == 0)
        both = [torch.empty_like(x) for _ in range(RANKS)]
        dist.all_gather(both, x)
        assert torch.equal(both[0], both[1]), codec
        assert torch.allclose(x.float(), values.float(), atol=1e-3), codec
        assert codec != "pack" or torch.equal(x, values)
        assert sent[-1] < x.nbytes, codec
    noise = torch.randint(-(1 << 31), 1 << 31, (999,), generator=torch.Generator().manual_seed(1))
    x = noise.int().view(torch.float32).clone() if rank == 0 else torch.zeros(999)
    broadcast_encoded(x, BroadcastEncoding("pack"), send, is_root=rank == 0)
    assert torch.equal(x.view(torch.int32), noise.int())
    assert sent[-1] == x.nbytes  # as it is: it did not shrink


def rank_main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    for case in (embedding, linear, experts, encoded):
        case(folder, rank)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    spawn(rank_main, (sys.argv[1],), RANKS)
    sys.stdout.write("equal\n")
