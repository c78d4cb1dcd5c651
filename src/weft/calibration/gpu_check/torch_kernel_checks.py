"""Correctness of weft's own kernels on the ranks of a check: fused operators and codecs.

On GPUs they store into torch's symmetric memory; on the stand-in they run in Triton's interpreter
on files that all ranks map.
"""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from weft.compress import codec_of
from weft.compress.codec_registry import encoded

if TYPE_CHECKING:
    from collections.abc import Callable

    from weft.calibration.gpu_check.torch_check_device import CheckJob
    from weft.fused.torch_symmetric_tensors import SymmetricMemory

EPOCHS = 50


def kernel_checks(job: CheckJob) -> list[dict[str, Any]]:
    """Return a row for each kernel; a kernel that cannot run here says why."""
    if not job.device.is_gpu and os.environ.get("TRITON_INTERPRET") != "1":
        return [_row("Triton kernels", note="skipped: no GPU, and TRITON_INTERPRET is not 1")]
    if find_spec("triton") is None:
        return [_row("Triton kernels", note="skipped: triton is not installed")]
    found = []
    cases: tuple[tuple[str, Callable[[CheckJob, SymmetricMemory], int]], ...] = (
        ("embedding + all-to-all", _embedding),
        ("GEMV + all-reduce", _gemv),
        ("GEMM + all-to-all", _gemm),
    )
    for name, case in cases:
        try:
            wrong = case(job, _memory(job))
        except (RuntimeError, AssertionError, IndexError) as error:
            found.append(_row(name, passed=False, note=f"{type(error).__name__}: {error}"[:300]))
        else:
            total = sum(job.gather(wrong))
            found.append(_row(name, passed=not total, wrong=total, repeats=_epochs(job)))
    found.append(_codecs(job))
    return found


def _row(case: str, *, passed: bool | None = None, **more: Any) -> dict[str, Any]:
    return {"case": case, "passed": passed, **more}


def _epochs(job: CheckJob) -> int:
    return EPOCHS if job.device.is_gpu else 2


def _memory(job: CheckJob) -> SymmetricMemory:
    if job.device.is_gpu:
        from weft.fused.torch_symmetric_tensors import TorchSymmetricMemory

        return TorchSymmetricMemory(None, job.device.device)
    from weft.fused.torch_symmetric_tensors import SharedFileMemory

    made = [tempfile.mkdtemp() if job.rank == 0 else None]
    dist.broadcast_object_list(made)
    return SharedFileMemory(Path(str(made[0])), job.rank, job.num_ranks)


def _embedding(job: CheckJob, memory: SymmetricMemory) -> int:
    from weft.fused.triton_launch import EmbeddingAllToAllOperator, TableRows

    n, device = job.num_ranks, job.device.device
    samples, dim, rows = ([1024] * n, 128, 10_000) if job.device.is_gpu else ([3] * n, 4, 11)
    operator = EmbeddingAllToAllOperator(memory, samples, dim * n, slice_samples=512)
    wrong = 0
    for epoch in range(_epochs(job)):
        tables = [_bags(rank, epoch, sum(samples), rows, dim) for rank in range(n)]
        weights, indices, offsets = (each.to(device) for each in tables[job.rank])
        operator.output.fill_(torch.nan)
        if (epoch + job.rank) % 3 == 0:
            job.device.delay(2e-4)
        operator.launch([TableRows(weights, indices, offsets, job.rank * dim)])
        for part in range(operator.num_slices):
            operator.finish_slice(part, range(n))
        operator.check()
        first = sum(samples[: job.rank])
        want = torch.cat([_pooled(*table) for table in tables], 1)[first : first + samples[0]]
        wrong += int(not torch.equal(operator.output.cpu(), want))
    return wrong


def _bags(
    rank: int, epoch: int, samples: int, rows: int, dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows of small integers, so that sums are exact, and bags of 0 to 3 of them."""
    generator = torch.Generator().manual_seed(1000 * epoch + rank)
    lengths = torch.randint(0, 4, (samples,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = torch.randint(0, rows, (int(offsets[-1]),), generator=generator)
    return torch.randint(-8, 8, (rows, dim), generator=generator).float(), indices, offsets


def _pooled(weights: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding_bag(indices, weights, offsets[:-1], mode="sum")


def _gemv(job: CheckJob, memory: SymmetricMemory) -> int:
    from weft.fused.triton_configs import GemvConfig
    from weft.fused.triton_launch import GemvAllReduceOperator

    n, device = job.num_ranks, job.device.device
    tokens, features, columns = (4, 4096, 1024) if job.device.is_gpu else (1, 5, 6)
    config = GemvConfig() if job.device.is_gpu else GemvConfig(block_rows=4, block_columns=8)
    operator = GemvAllReduceOperator(memory, tokens, features, config=config)
    wrong = 0
    for epoch in range(_epochs(job)):
        factors = [
            _integers(epoch, rank, (features, columns), (tokens, columns)) for rank in range(n)
        ]
        matrix, vectors = (each.to(device) for each in factors[job.rank])
        found = operator.run(matrix, vectors)
        operator.check()
        want = torch.stack([x @ a.t() for a, x in factors]).sum(0)
        wrong += int(not torch.equal(found.cpu(), want))
    return wrong


def _integers(epoch: int, rank: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * epoch + rank)
    return [torch.randint(-4, 5, shape, generator=generator).float() for shape in shapes]


def _gemm(job: CheckJob, memory: SymmetricMemory) -> int:
    from weft.fused.triton_configs import GemmConfig
    from weft.fused.triton_launch import GemmAllToAllOperator, RowSegment

    n, me, device = job.num_ranks, job.rank, job.device.device
    rows, columns, inner = (512, 1024, 512) if job.device.is_gpu else (20, 16, 16)
    config = GemmConfig() if job.device.is_gpu else GemmConfig(block_m=16, block_n=16, block_k=16)
    dtype = torch.bfloat16 if job.device.is_gpu else torch.float32
    operator = GemmAllToAllOperator(memory, n * rows, columns, torch.float32)
    wrong = 0
    for epoch in range(_epochs(job)):
        factors = [_integers(epoch, rank, (n * rows, inner), (inner, columns)) for rank in range(n)]
        a, b = (each.to(device, dtype) for each in factors[me])
        operator.outputs.mine.fill_(torch.nan)
        segments = [RowSegment(t, t * rows, rows, 0, me * rows) for t in range(n)]
        operator.launch(a, b.unsqueeze(0), segments, config=config)
        found = operator.finish([operator.slices_of([rows], config.block_m)] * n)
        operator.check()
        want = torch.cat([x[me * rows : (me + 1) * rows] @ y for x, y in factors])
        wrong += int(not torch.equal(found.cpu(), want))
    return wrong


def _codecs(job: CheckJob) -> dict[str, Any]:
    """Compare payloads with the native codecs' on the CPU, and decode them."""
    from weft.compress import triton_codecs

    count = 1 << 22 if job.device.is_gpu else 1500
    generator = torch.Generator().manual_seed(7)
    wrong = 0
    for name in ("pack", "int8", "bf16"):
        values = 0.02 * torch.randn(count, generator=generator)
        frame = encoded(codec_of(name, "float32"), values.numpy())
        on_device = values.to(job.device.device)
        payload = triton_codecs.encode(name, on_device)
        wrong += int(not torch.equal(payload.cpu(), torch.from_numpy(frame[32:].copy())))
        back = torch.empty_like(on_device)
        wrong += int(not triton_codecs.decode(name, payload, back))
        if name == "pack":
            wrong += int(not torch.equal(back.cpu(), values))
    total = sum(job.gather(wrong))
    return _row("codecs pack, int8, bf16", passed=not total, wrong=total)
