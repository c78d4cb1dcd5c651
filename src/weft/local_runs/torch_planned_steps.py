"""Training steps with or without a plan: the same function is run and captured."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import cycle
from typing import Any, TypeGuard

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import weft.torch
from weft.calibration.torch_op_calls import random_rows
from weft.calibration.torch_timed_steps import CapturedStep, captured_step
from weft.local_runs import synthetic_models
from weft.local_runs.synthetic_models import RANKS, SyntheticModel, model_of
from weft.local_runs.torch_synthetic_models import NUMBERS, Dense, TorchTransformer
from weft.planner.plan import Plan
from weft.step import Op

_RATE = 0.01
_TURNS = 3  # sets of indices, used in turn
_SIZES = 4  # arguments of a captured lookup: batch, rows, columns, rows per bag
_CHECKED = 4  # steps whose losses are compared
Step = Callable[[], Tensor]


def captured(model: SyntheticModel) -> CapturedStep:
    """Capture one step of a model, as torch runs it on a CPU without a plan."""
    zipfs = {rows: zipf for rows, _, zipf in model.tables} if _is_dlrm(model) else {}
    step = captured_step(
        lambda: PlannedJob(model).step, RANKS, name=model.model, zipfs=zipfs, every_rank=True
    )
    steps = [
        replace(each, ops=tuple(_asked(op, zipfs) for op in each.ops)) for each in step.graph.steps
    ]
    return replace(step, graph=replace(step.graph, steps=tuple(steps)))


def _is_dlrm(model: SyntheticModel) -> TypeGuard[synthetic_models.SyntheticDlrm]:
    return isinstance(model, synthetic_models.SyntheticDlrm)


def _asked(op: Op, zipfs: Mapping[int, float]) -> Op:
    """Add the popularity of rows to lookups, which fake indices do not have."""
    cost = op.cost
    if cost is None or cost.family != "embedding" or len(cost.shape) != _SIZES:
        return op
    return replace(op, cost=replace(cost, shape=(*cost.shape, zipfs.get(int(cost.shape[1]), 0.0))))


class DlrmModel(nn.Module):
    """Tables on the ranks that hold them, dense layers on all."""

    def __init__(self, model: synthetic_models.SyntheticDlrm) -> None:
        super().__init__()
        self.dim = model.dim
        self.embedding: nn.Module = weft.torch.EmbeddingBags(
            [(rows, model.dim) for rows, _, _ in model.tables], optimizer=weft.torch.SGD(_RATE)
        )
        self.dense: nn.Module = Dense(len(model.tables), model.bottom, model.top)

    def forward(self, numbers: Tensor, bags: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return one logit per sample."""
        rows = self.embedding([i for i, _ in bags], [o for _, o in bags])
        logits: Tensor = self.dense(numbers, rows.view(len(numbers), -1, self.dim))
        return logits


class PlannedJob:
    """A model, its data and one training step, with a plan if one is given."""

    def __init__(self, model: SyntheticModel, plan: Plan | None = None, on: str = "") -> None:
        torch.manual_seed(model.seed)
        whole = (
            DlrmModel(model)
            if isinstance(model, synthetic_models.SyntheticDlrm)
            else TorchTransformer(model)
        )
        self.applied = None if plan is None else weft.torch.apply(plan, whole, on=on, watch=False)
        torch.manual_seed(model.seed + dist.get_rank())
        ddp: Any = DistributedDataParallel if self.applied is None else self.applied.ddp
        if isinstance(whole, DlrmModel):
            assert isinstance(model, synthetic_models.SyntheticDlrm)
            whole.dense = ddp(whole.dense)
            self.dense, self._loss = whole.dense, _clicks(model, whole)
        else:
            assert isinstance(model, synthetic_models.SyntheticTransformer)
            self.dense = ddp(whole)
            self._loss = _tokens(model, self.dense)
        self._optimizer = torch.optim.SGD(self.dense.parameters(), lr=_RATE)

    def step(self) -> Tensor:
        """Train one step and return its loss."""
        loss = self._loss()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        if self.applied is not None:
            self.applied.step()
        return loss.detach()


def _clicks(model: synthetic_models.SyntheticDlrm, whole: DlrmModel) -> Step:
    """Return a loss function on random DLRM samples; each call uses the next ones."""
    samples = model.batch // RANKS
    numbers = torch.rand(samples, NUMBERS)
    clicks = (numbers[:, 0] > numbers[:, 1]).float()
    turns = _bags(model)

    def loss() -> Tensor:
        return functional.binary_cross_entropy_with_logits(whole(numbers, next(turns)), clicks)

    return loss


def _bags(model: synthetic_models.SyntheticDlrm) -> Iterator[list[tuple[Tensor, Tensor]]]:
    rank, count = dist.get_rank(), len(model.tables)
    held = range(rank * count // RANKS, (rank + 1) * count // RANKS)
    sets = [
        [
            (
                random_rows(
                    rows, model.batch * pooling, zipf, np.random.default_rng([table, turn])
                ),
                torch.arange(0, model.batch * pooling + 1, pooling),
            )
            for table in held
            for rows, pooling, zipf in [model.tables[table]]
        ]
        for turn in range(_TURNS)
    ]
    return cycle(sets)


def _tokens(model: synthetic_models.SyntheticTransformer, whole: nn.Module) -> Step:
    shape = (model.batch // RANKS, model.seq)
    tokens, wanted = (torch.randint(0, model.vocab, shape) for _ in range(2))

    def loss() -> Tensor:
        return functional.cross_entropy(whole(tokens).flatten(0, 1), wanted.flatten())

    return loss


class PlannedSteps:
    """A job as a rank of a team runs it: ``steps`` at a time.

    ``trace`` is the file to which the first rank writes a profile of one step.
    """

    def __init__(
        self, model: dict[str, Any], plan: str | None, on: str, steps: int, trace: str = ""
    ) -> None:
        torch.set_flush_denormal(True)
        found = None if plan is None else Plan.from_json(plan)
        self._job, self._steps, self._trace = PlannedJob(model_of(model), found, on), steps, trace
        self._losses = [float(self._job.step()) for _ in range(_CHECKED)]

    def ready(self) -> None:
        """Run a step that is not timed, to warm up the caches."""
        self._job.step()

    def act(self) -> None:
        """Train some steps."""
        for _ in range(self._steps):
            self._job.step()

    def answer(self) -> dict[str, Any]:
        """Return the losses of the first steps and the paths of collectives."""
        if self._trace:
            self._write_trace()
        applied = self._job.applied
        rows = [] if applied is None else applied.rows()
        state = "default" if applied is None else applied.state
        return {"losses": self._losses, "rows": rows, "state": state}

    def _write_trace(self) -> None:
        """Profile one step on every rank; the first rank writes it."""
        if dist.get_rank():
            self._job.step()
            return
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            self._job.step()
        profiler.export_chrome_trace(self._trace)

    def free(self) -> None:
        """Restore the process group."""
        if self._job.applied is not None:
            self._job.applied.remove()
