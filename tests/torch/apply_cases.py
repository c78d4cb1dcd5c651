"""Jobs that follow a plan, as ranks of a test run them."""

import warnings
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import weft.torch
from weft.planner.plan import Choice, Plan
from weft.schedule.strategy import Strategy
from weft.step.step_graph import Collective
from weft.torch.apply.step_watch import StepWatch
from weft.torch.backend.c10d import all_gather_single, reduce_scatter_single

HERE = weft.platform("cpu", num_ranks=2)
ROWS, DIM, SAMPLES, POOLING = 50, 8, 12, 3


def choice(
    kind: str,
    nbytes: int,
    strategy: str = "concurrent",
    ops: tuple[int, ...] = (0,),
    **settings: Any,
) -> Choice:
    what = Collective(kind, nbytes, "fp32")
    name = f"{kind} {nbytes}"
    how = Strategy(strategy, **settings)
    return Choice(name, ops[0], what, how, 1e-3, 1e-3, 1e-3, 0.1, "because", ops=ops)


def plan_of(*choices: Choice, num_ranks: int = 2, **changes: Any) -> Plan:
    times = {"baseline": 2.0, "planned": 1.0, "low": 0.0, "high": 1.5} | changes
    return Plan("job", "cpu", num_ranks, choices, fingerprint="a-b", **times)


def apply(plan: Plan, model: nn.Module | None = None) -> weft.torch.Applied:
    return weft.torch.apply(plan, model, on=HERE)


def ways(applied: weft.torch.Applied) -> list[tuple[Any, ...]]:
    keys = ("collective", "nbytes", "path", "by_plan", "by_default")
    return [tuple(row[key] for key in keys) for row in applied.rows()]


def every_collective() -> tuple[Any, ...]:
    """Call each collective by Gloo, by an algorithm and unplanned; return values and ways."""
    rank, size = dist.get_rank(), dist.get_world_size()
    plan = plan_of(
        choice("all_reduce", 4000, backend="weft", algorithm="ring"),
        choice("all_reduce", 8000, backend="gloo"),
        choice("all_gather", 800, backend="gloo"),
        choice("all_to_all", 80, backend="gloo"),
        choice("reduce_scatter", 160, backend="gloo"),
        choice("broadcast", 40, backend="gloo"),
    )
    applied = apply(plan)
    values = []
    for count in (1000, 2000, 3000):
        x = torch.full((count,), float(rank + 1))
        dist.all_reduce(x)
        values.append(float(x.sum()) / count)
    out, x = torch.zeros(200), torch.full((200 // size,), float(rank))
    all_gather_single(out, x)
    values.append(float(out.sum()))
    out, x = torch.zeros(20), torch.arange(20.0) + 100 * rank
    dist.all_to_all_single(out, x)
    values.append(float(out[-1]))
    out, x = torch.zeros(20), torch.ones(40)
    reduce_scatter_single(out, x)
    values.append(float(out.sum()))
    x = torch.full((10,), float(rank))
    dist.broadcast(x, 1)
    values.append(float(x[0]))
    found = ways(applied)
    applied.remove()
    x = torch.ones(2000)
    dist.all_reduce(x)
    return values, found, float(x[0]), applied.report()


def occurrences() -> list[tuple[Any, ...]]:
    """Call one size three times a step: the second of them is planned for Gloo."""
    plan = plan_of(
        choice("all_reduce", 400, ops=(3, 9), backend="weft", algorithm="ring"),
        choice("all_reduce", 400, ops=(5,), backend="gloo"),
    )
    applied = apply(plan)
    for _ in range(2):
        for _ in range(3):
            dist.all_reduce(torch.ones(100))
        applied.step()
    dist.all_reduce(torch.ones(100))  # a step that ends early begins anew
    applied.step()
    dist.all_reduce(torch.ones(100))
    return ways(applied)


class Small(nn.Module):
    """Two tables on two ranks, and a layer on top."""

    def __init__(self, rule: Any) -> None:
        super().__init__()
        torch.manual_seed(5)
        tables = [torch.randn(ROWS, DIM) for _ in range(2)]
        self.top = nn.Linear(2 * DIM, 1)
        self.embedding = weft.torch.EmbeddingBags(tables, optimizer=rule)

    def forward(self, bags: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        rows = self.embedding([bags[0]], [bags[1]])
        loss: torch.Tensor = self.top(rows).square().mean()
        return loss


def bags_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(10 * step + dist.get_rank())
    indices = torch.randint(ROWS, (SAMPLES * POOLING,), generator=drawn)
    return indices, torch.arange(0, SAMPLES * POOLING + 1, POOLING)


def fused_plan(**changes: Any) -> Plan:
    nbytes = SAMPLES * DIM * 4
    return plan_of(choice("all_to_all", nbytes, "fused", fused="embedding_all_to_all"), **changes)


def fused_training(rule: Any) -> tuple[Any, ...]:
    """Train the plain modules, then the same by a plan that fuses; return losses and ways."""
    losses = []
    for planned in (False, True):
        model = Small(rule)
        applied = apply(fused_plan(), model) if planned else None
        optimizer = None if rule else torch.optim.SGD(model.parameters(), lr=0.1)
        mine = []
        for step in range(4):
            loss = model(bags_of(step))
            loss.backward()
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
            mine.append(loss.item())
        losses.append(mine)
    assert applied is not None
    return *losses, type(model.embedding).__name__, ways(applied)


def contradicted(default_is_faster: bool) -> tuple[Any, ...]:  # noqa: FBT001
    """Make steps appear longer than planned; return reports and paths after it."""
    model = Small(weft.torch.SGD(0.1))
    plan = fused_plan(baseline=2.0, planned=1.0, high=1.5)
    applied = apply(plan, model)
    watch: StepWatch = applied._watch
    said, kinds = [], []
    seconds = {False: 3.0, True: 2.0 if default_is_faster else 4.0}
    for step in range(40):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model(bags_of(step)).backward()
            watch.note(seconds[watch.default])
        said += [str(each.message) for each in caught]
        kinds.append(type(model.embedding).__name__)
    return said, kinds, applied.state, ways(applied)


def refusals() -> list[str]:
    """Apply what cannot be applied."""
    complaints = []
    for plan, on in (
        (plan_of(num_ranks=4), HERE),
        (plan_of(), weft.platform("mi300x-8")),
        (plan_of(choice("all_reduce", 4, backend="nccl")), HERE),
        (plan_of(choice("all_reduce", 4, codec="bf16")), HERE),
        (plan_of(choice("broadcast", 4, codec="pack"), choice("broadcast", 8, codec="bf16")), HERE),
    ):
        try:
            weft.torch.apply(plan, on=on)
        except (weft.errors.PlanError, weft.errors.UsageError) as error:
            complaints.append(str(error))
    return complaints


def refuse_gpus() -> tuple[list[str], bool, str]:
    """How plans for GPUs are refused, whatever ``on`` says, and what that leaves of the group."""
    plan = replace(plan_of(choice("all_reduce", 400, engines=2)), platform="mi300x-8")
    group = weft.torch.world_of(None)
    before, complaints = group.engines, []
    for on in (None, "mi300x-8", weft.platform("mi300x-8"), HERE):
        try:
            weft.torch.apply(plan, on=on)
        except weft.errors.PlanError as error:
            complaints.append(str(error))
            hint = error.hint
    return complaints, group.engines == before, hint


def another_job() -> str:
    """Run two steps of a job that has none of the planned collectives."""
    applied = apply(plan_of(choice("all_reduce", 123456)))
    dist.all_reduce(torch.ones(100))
    applied.step()
    try:
        applied.step()
    except weft.errors.PlanError as error:
        dist.all_reduce(torch.ones(100))  # the group is as it was
        return str(error)
    return ""


def buckets() -> tuple[Any, ...]:
    """Make DDP with planned buckets, and one with others."""
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(6)))
    plan = plan_of(choice("all_reduce", 6 * 16384, backend="gloo", bucket=32768))
    applied = apply(plan)
    ddp = applied.ddp(model)
    for _ in range(3):
        ddp(torch.ones(2, 64)).sum().backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        applied.remove()
        apply(plan, other)
    return ways(applied), ddp.bucket_bytes_cap, [str(each.message) for each in caught]
