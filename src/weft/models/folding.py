"""Steps of very many micro batches, with one op for each pass through a chunk of layers.

Micro batches repeat. A pass through a chunk is simulated by itself, and stands in the step as one
kernel of that duration, with what is exposed of its communication behind it. Where the host may
take longer than the device, the pass ends with a kernel that takes no time and that the host
issues only when it would have issued all ops of the pass. Of a long pipeline the middle repeats
too: what is left out of it stands there as one op on every stage.

```
 full    F F F F [F B F B F B F B ... F B] B B B B
 folded  F F F F [F B F B  (37 more) F B ] B B B B
```

The first and the final pass of a chunk, which gather weights and reduce gradients, are written
as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from weft.hardware import Platform
from weft.models.pipeline import Part, Pass
from weft.models.stacks import Stack
from weft.models.transformer import Transformer
from weft.models.transformer_layout import Layout
from weft.models.transformer_memory import fullest_memory
from weft.models.transformer_step import Stage, stage_ranks
from weft.schedule.ir import Cost
from weft.step import HostModel, PriceSource, StepEngine
from weft.step.step_graph import Collective, Op, Phase, RankStep, StepGraph

MANY_OPS = 60_000  # of a step, from which on it is folded
_TURNS = 2  # times the stages: micro batches that are left of a pipeline, so that it is steady
_SHOWN = 0.03  # of the kernels of a pass, from which on a family has an op of its own
_LEAST = 1e-3  # of a pass, from which on what is exposed of it is counted
_AHEAD = 0.5  # of a pass, up to which its host is always ahead of the device
# Passes that one is simulated behind, itself the last.
_ROUNDS: dict[Part, tuple[Part, ...]] = {
    "forward": ("forward",),
    "backward": ("forward", "backward"),
    "input": ("forward", "input"),
    "weight": ("forward", "input", "weight"),
}
_APART = ("pp", "pp back", "embedding")  # groups of ranks of several stages


@dataclass(frozen=True, slots=True)
class PassCost:
    """What a pass takes of its stage: kernels, and communication that nothing hides.

    ``families`` are the seconds of kernels by family, ``what`` is the collective that moves most,
    ``host`` is how long the host is busy with it.
    """

    families: Mapping[str, float]
    exposed: float
    what: Collective | None
    host: float = 0.0

    @property
    def compute(self) -> float:
        """Seconds of all kernels."""
        return sum(self.families.values())

    @property
    def seconds(self) -> float:
        """Kernels and exposed communication together: what the device takes."""
        return self.compute + self.exposed

    def plus(self, other: PassCost, count: int = 1) -> PassCost:
        """Return the cost of both, of the other so many times."""
        names = dict.fromkeys((*self.families, *other.families))
        families = {
            name: self.families.get(name, 0.0) + count * other.families.get(name, 0.0)
            for name in names
        }
        exposed = self.exposed + count * other.exposed
        host = self.host + count * other.host
        return PassCost(families, exposed, self.what or other.what, host)


@dataclass
class Folding:
    """Folds the step of a model on a platform, with the prices of its ops."""

    name: str
    model: Transformer
    num_ranks: int
    platform: Platform
    prices: PriceSource
    host: HostModel | None = None
    stack: Stack | None = None
    brief: bool = False  # one kernel a pass instead of one for each family
    engines: list[StepEngine] = field(default_factory=list)  # of passes that were simulated
    _known: dict[object, PassCost] = field(default_factory=dict)

    def graph(self, num_micro: int = 0) -> StepGraph:
        """Build the folded step; ``num_micro`` micro batches of it are written one by one."""
        model, layout = self.model, Layout(self.model, self.num_ranks)
        memory, whole = fullest_memory(model, layout), layout.num_micro
        turn = _turn(model)
        wanted = num_micro or _TURNS * model.pp
        if self._pairs:  # fewer have no pair where all stages are steady
            wanted = max(wanted, _TURNS * model.pp)
        if model.is_dual:  # it is steady behind its first and last passes, two for each stage
            wanted = max(wanted, 2 * _TURNS * model.pp)
        kept = whole - max(0, whole - wanted) // turn * turn
        layout.num_micro = kept
        steps = []
        for stage in range(model.pp):
            ops = self._stage(Stage(model, layout, stage), whole - kept)
            steps.append(RankStep(stage_ranks(model, self.num_ranks, stage), tuple(ops)))
        source = f"generated: {self.name}"
        groups = layout.groups
        made = StepGraph(self.name, self.num_ranks, tuple(steps), groups, memory, source=source)
        return self.stack.applied(made) if self.stack is not None else made

    def _stage(self, stage: Stage, left_out: int) -> list[Op]:
        """Write the passes of a stage, and ``left_out`` more of each where it is steady."""
        groups, middle = stage.groups(), stage.layout.num_micro // 2
        if self.model.is_dual:  # half of them go each way
            middle, left_out = middle // 2, left_out // 2
        lumped = self.model.schedule == "gpipe" and self.model.pp > 1
        counted: set[bool] = set()
        for group in groups:
            each = group[0]
            is_forward = each.forward if lumped else True  # gpipe has all forward passes first
            due = each.micro == middle and (lumped or each.forward)
            if self._pairs:  # where every stage is steady
                due = each.micro >= middle and len(group) > 1
            if left_out and due and is_forward not in counted:
                counted.add(is_forward)
                mine = [one for one in groups if one[0].micro == middle]
                mine = [one for one in mine if not lumped or one[0].forward == is_forward]
                if self._pairs:  # a chunk overlaps with the one that is as far from the end
                    last = len(stage.chunks) - 1
                    mine = [
                        (Pass("forward", middle, chunk), Pass("backward", middle, last - chunk))
                        for chunk in range(last + 1)
                    ]
                self._add_left_out(stage, mine, left_out)
            if all(self._is_plain(stage, one) for one in group):
                self._add_passes(stage, group)
            else:
                stage.write_group(group)
        stage.finish()
        return stage.made.ops

    @property
    def _pairs(self) -> bool:
        """Whether forward and backward passes overlap in pairs."""
        return self.model.overlaps_experts or self.model.is_dual

    @staticmethod
    def _is_plain(stage: Stage, each: Pass) -> bool:
        """Return whether a pass is like the others of its chunk."""
        ends = (each.forward and stage.is_first(each)) or stage.is_final(each)
        return not ends and each.part in ("forward", "backward")

    def _add_passes(self, stage: Stage, group: tuple[Pass, ...]) -> None:
        got = tuple(stage.receive(each) for each in group)
        shown = f"{' and '.join(each.part for each in group)} of {len(stage.layers)} layers"
        done = self._add(stage, shown, self._cost(stage, group), group[0].part, got)
        for each in group:
            stage.send(each, done)

    def _add_left_out(self, stage: Stage, groups: list[tuple[Pass, ...]], count: int) -> None:
        total = PassCost({}, 0.0, None)
        for group in groups:
            total = total.plus(self._cost(stage, group), count)
        self._add(stage, f"{count} more micro batches", total, groups[0][0].part, ())

    def _add(self, stage: Stage, name: str, cost: PassCost, part: str, got: tuple[int, ...]) -> int:
        """Add kernels of that duration and the communication that is exposed behind them."""
        made = stage.made
        phase: Phase = "forward" if part == "forward" else "backward"
        after = tuple({n for n in (*got, *made.awaited) if n >= 0})
        made.awaited = ()
        for family, seconds in [(phase, cost.compute)] if self.brief else _by_family(cost, phase):
            # arithmetic without traffic, as most of it is: it demands the units of the device
            work = Cost(family, flops=1.0)
            kernel = Op(name, cost=work, after=after, host=0.0, seconds=seconds, phase=phase)
            made.ops.append(kernel)
            after = ()
        if cost.what is not None and cost.exposed > _LEAST * cost.seconds:
            shown = f"exposed {cost.what.kind}"
            move = Op(shown, "collective", "compute", None, cost.what, host=0.0, phase=phase)
            made.ops.append(replace(move, seconds=cost.exposed))
        if cost.host > _AHEAD * cost.seconds:
            end = Op(f"{name}: host", cost=Cost(phase), host=cost.host, seconds=0.0, phase=phase)
            made.ops.append(end)
        return made.last

    def _cost(self, stage: Stage, group: tuple[Pass, ...]) -> PassCost:
        """Return what passes take between two others, simulated once for equal chunks."""
        key = tuple(self._alike(stage, each) for each in group)
        if key not in self._known:
            self._known[key] = self._simulated(stage, group)
        return self._known[key]

    def _alike(self, stage: Stage, each: Pass) -> object:
        """Return what passes that take equally long have in common."""
        kinds = tuple(self.model.kinds[layer] for layer in stage.chunks[each.chunk])
        position = stage.positions[each.chunk]
        return kinds, position == 0, position == len(stage.layout.chunks) - 1, each.part

    def _simulated(self, stage: Stage, group: tuple[Pass, ...]) -> PassCost:
        """Simulate passes behind those that go before them, and take off what those take.

        Three rounds less two are one in the midst of others: what passes hide of each other's
        communication is in it.
        """
        each = group[0]
        before = [(each._replace(part=part),) for part in _ROUNDS[each.part][:-1]]
        more, fewer = (self._run(stage, [*before, group], count) for count in (3, 2))
        found = more.plus(fewer, -1)
        for one in before:
            found = found.plus(self._cost(stage, one), -1)
        families = {name: max(0.0, seconds) for name, seconds in found.families.items()}
        return PassCost(families, max(0.0, found.exposed), more.what, max(0.0, found.host))

    def _run(self, like: Stage, rounds: list[tuple[Pass, ...]], count: int) -> PassCost:
        """Run rounds of passes by themselves."""
        stage = Stage(self.model, Layout(self.model, self.num_ranks), like.stage)
        for micro in range(count):
            for group in rounds:
                stage.write_group([each._replace(micro=micro) for each in group], alone=True)
        block = self.num_ranks // self.model.pp
        groups = {n: g for n, g in stage.layout.groups.items() if n not in _APART}
        step = RankStep(tuple(range(block)), tuple(stage.made.ops))
        source = f"generated: {self.name}"
        graph = StepGraph(self.name, block, (step,), groups, source=source)
        if self.stack is not None:
            graph = replace(self.stack, between_steps=0.0).applied(graph)
            (step,) = graph.steps
        engine = StepEngine(graph, self.platform, self.prices, host=self.host)
        self.engines.append(engine)
        run = engine.repriced(self.prices, host=0.0).run()
        busy = float(engine.fixed["before"][list(engine.layout.issue_row.values())].sum())
        families, moved = defaultdict[str, float](float), defaultdict[Collective, int](int)
        for number, op in enumerate(step.ops):
            if op.collective is not None:
                moved[op.collective] += op.collective.nbytes
            else:
                start, end = run.span((0, number))
                families[op.cost.family if op.cost else op.kind] += end - start
        most = max(moved, key=lambda what: moved[what], default=None)
        if most is not None and most.peer is not None:  # messages of a ring, as one of them all
            most = replace(most, kind="all_gather", peer=None)
        return PassCost(families, run.seconds - sum(families.values()), most, busy)


def _by_family(cost: PassCost, phase: str) -> Iterator[tuple[str, float]]:
    """Return the largest families of a pass, and the others together under its phase."""
    whole, rest = cost.compute, 0.0
    for family, seconds in cost.families.items():
        if seconds > _SHOWN * whole:
            yield family, seconds
        else:
            rest += seconds
    if rest or not whole:
        yield phase, rest


def _turn(model: Transformer) -> int:
    """Return of how many micro batches a pipeline takes a multiple."""
    return 2 if model.is_dual else model.pp if model.interleave > 1 else 1


def ops_of(model: Transformer, num_ranks: int) -> int:
    """Estimate the ops of a whole step: those of a pass, as often as there are passes."""
    layout = Layout(model, num_ranks)
    if model.mode != "train":
        return 0
    stage = Stage(model, layout, 0)
    for each in (Pass("forward", 0), Pass("backward", 0)):
        stage.write_alone(each)
    chunks = model.pp * model.interleave
    return layout.num_micro * chunks * (len(stage.made.ops) + 4)


def shortened(model: Transformer, num_ranks: int) -> Transformer:
    """Return the model with as many micro batches as give a step of ``MANY_OPS`` ops, or one.

    An interleaved pipeline keeps one for every stage.
    """
    ops = ops_of(model, num_ranks)
    if model.mode != "train" or ops <= MANY_OPS:
        return model
    layout = Layout(model, num_ranks)
    turn = _turn(model)
    least = model.pp if model.is_dual else 1
    kept = max(least, MANY_OPS * layout.num_micro // ops // turn) * turn
    return replace(model, batch=kept * layout.micro * layout.dp, micro_batch=layout.micro)
