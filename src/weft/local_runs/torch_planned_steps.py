"""Steps of training by a plan or without: one function makes what is run and captured."""

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
from weft.calibration.torch_op_calls import drawn_rows
from weft.calibration.torch_timed_steps import CapturedStep, captured_step
from weft.local_runs import synthetic_models as drawn_models
from weft.local_runs.synthetic_models import RANKS, Drawn, model_of
from weft.local_runs.torch_synthetic_models import NUMBERS, Dense, Transformer
from weft.planner.plan import Plan
from weft.workload import Op

_RATE = 0.01
_TURNS = 3  # sets of indices, one step after another
_SIZES = 4  # of a captured lookup: batch, rows, columns, rows of a bag
_CHECKED = 4  # steps whose losses are compared
Step = Callable[[], Tensor]


def captured(model: Drawn) -> CapturedStep:
    """Write down one step of a model, as torch does it on a CPU without a plan."""
    zipfs = {rows: zipf for rows, _, zipf in model.tables} if _is_dlrm(model) else {}
    step = captured_step(
        lambda: Job(model).step, RANKS, name=model.model, zipfs=zipfs, every_rank=True
    )
    steps = [
        replace(each, ops=tuple(_asked(op, zipfs) for op in each.ops))
        for each in step.workload.steps
    ]
    return replace(step, workload=replace(step.workload, steps=tuple(steps)))


def _is_dlrm(model: Drawn) -> TypeGuard[drawn_models.Dlrm]:
    return isinstance(model, drawn_models.Dlrm)


def _asked(op: Op, zipfs: Mapping[int, float]) -> Op:
    """Say of lookups how popular rows are: fake indices do not."""
    cost = op.cost
    if cost is None or cost.family != "embedding" or len(cost.shape) != _SIZES:
        return op
    return replace(op, cost=replace(cost, shape=(*cost.shape, zipfs.get(int(cost.shape[1]), 0.0))))


class DlrmModel(nn.Module):
    """Tables on the ranks that hold them, dense layers on all."""

    def __init__(self, model: drawn_models.Dlrm) -> None:
        super().__init__()
        self.dim = model.dim
        self.embedding: nn.Module = weft.torch.EmbeddingBags(
            [(rows, model.dim) for rows, _, _ in model.tables], optimizer=weft.torch.SGD(_RATE)
        )
        self.dense: nn.Module = Dense(len(model.tables), model.bottom, model.top)

    def forward(self, numbers: Tensor, bags: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return a logit a sample."""
        rows = self.embedding([i for i, _ in bags], [o for _, o in bags])
        logits: Tensor = self.dense(numbers, rows.view(len(numbers), -1, self.dim))
        return logits


class Job:
    """A model, its data and one step of its training; by plan if one is given."""

    def __init__(self, model: Drawn, plan: Plan | None = None, on: str = "") -> None:
        torch.manual_seed(model.seed)
        whole = DlrmModel(model) if isinstance(model, drawn_models.Dlrm) else Transformer(model)
        self.applied = None if plan is None else weft.torch.apply(plan, whole, on=on, watch=False)
        torch.manual_seed(model.seed + dist.get_rank())
        ddp: Any = DistributedDataParallel if self.applied is None else self.applied.ddp
        if isinstance(whole, DlrmModel):
            assert isinstance(model, drawn_models.Dlrm)
            whole.dense = ddp(whole.dense)
            self.dense, self._loss = whole.dense, _clicks(model, whole)
        else:
            assert isinstance(model, drawn_models.Transformer)
            self.dense = ddp(whole)
            self._loss = _tokens(model, self.dense)
        self._optimizer = torch.optim.SGD(self.dense.parameters(), lr=_RATE)

    def step(self) -> Tensor:
        """Train one step; give its loss."""
        loss = self._loss()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        if self.applied is not None:
            self.applied.step()
        return loss.detach()


def _clicks(model: drawn_models.Dlrm, whole: DlrmModel) -> Step:
    """Draw samples of a DLRM; each call looks the next ones up."""
    samples = model.batch // RANKS
    numbers = torch.rand(samples, NUMBERS)
    clicks = (numbers[:, 0] > numbers[:, 1]).float()
    turns = _bags(model)

    def loss() -> Tensor:
        return functional.binary_cross_entropy_with_logits(whole(numbers, next(turns)), clicks)

    return loss


def _bags(model: drawn_models.Dlrm) -> Iterator[list[tuple[Tensor, Tensor]]]:
    rank, count = dist.get_rank(), len(model.tables)
    held = range(rank * count // RANKS, (rank + 1) * count // RANKS)
    sets = [
        [
            (
                drawn_rows(rows, model.batch * pooling, zipf, np.random.default_rng([table, turn])),
                torch.arange(0, model.batch * pooling + 1, pooling),
            )
            for table in held
            for rows, pooling, zipf in [model.tables[table]]
        ]
        for turn in range(_TURNS)
    ]
    return cycle(sets)


def _tokens(model: drawn_models.Transformer, whole: nn.Module) -> Step:
    shape = (model.batch // RANKS, model.seq)
    tokens, wanted = (torch.randint(0, model.vocab, shape) for _ in range(2))

    def loss() -> Tensor:
        return functional.cross_entropy(whole(tokens).flatten(0, 1), wanted.flatten())

    return loss


class PlannedSteps:
    """A job as a rank of a benchmark does it: ``steps`` at a time.

    ``trace`` is where the first rank writes what one step looked like to torch's profiler.
    """

    def __init__(
        self, model: dict[str, Any], plan: str | None, on: str, steps: int, trace: str = ""
    ) -> None:
        torch.set_flush_denormal(True)
        found = None if plan is None else Plan.from_json(plan)
        self._job, self._steps, self._trace = Job(model_of(model), found, on), steps, trace
        self._losses = [float(self._job.step()) for _ in range(_CHECKED)]

    def ready(self) -> None:
        """Take a step that does not count: others had the caches meanwhile."""
        self._job.step()

    def act(self) -> None:
        """Train some steps."""
        for _ in range(self._steps):
            self._job.step()

    def answer(self) -> dict[str, Any]:
        """Return the losses of the first steps and the ways of collectives."""
        if self._trace:
            self._write_trace()
        applied = self._job.applied
        rows = [] if applied is None else applied.rows()
        state = "default" if applied is None else applied.state
        return {"losses": self._losses, "rows": rows, "state": state}

    def _write_trace(self) -> None:
        """Record one step; every rank takes it, the first one writes it down."""
        if dist.get_rank():
            self._job.step()
            return
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            self._job.step()
        profiler.export_chrome_trace(self._trace)

    def free(self) -> None:
        """Let the group be as it was."""
        if self._job.applied is not None:
            self._job.applied.remove()
