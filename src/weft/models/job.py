"""A generated step as a job: its settings, what it is worth a second, and where it comes from."""

from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from weft.models import dlrm, transformer_step
from weft.models.dlrm import Dlrm
from weft.models.stacks import Stack, stack_named
from weft.models.transformer import Transformer
from weft.models.transformer_layout import Layout
from weft.models.transformer_memory import StageMemory, stage_memories
from weft.step.step_graph import StepGraph

# Settings that are always told, also where they are as usual.
_TOLD = ("batch", "micro_batch", "seq", "dtype", "tp", "cp", "pp", "dp", "ep", "recompute")


@dataclass(frozen=True)
class Job:
    """A model on so many ranks; ``notes`` name what a file asks for and the model leaves out.

    ``stack`` names the software that runs it; "" runs its kernels as the cost models price them.
    ``products`` is how much longer its products take than the stack says, as on a machine whose
    clocks fall under a power limit.
    """

    name: str
    model: Transformer | Dlrm
    num_ranks: int
    notes: tuple[str, ...] = ()
    stack: str = ""
    products: float = 1.0

    @property
    def software(self) -> Stack | None:
        """The stack that runs it; None: kernels as the cost models price them."""
        if not self.stack and self.products == 1.0:
            return None
        found = stack_named(self.stack) if self.stack else Stack("")
        return replace(found, products=found.products * self.products)

    def graph(self) -> StepGraph:
        """Build the step of the job."""
        build = dlrm.build if isinstance(self.model, Dlrm) else transformer_step.build
        found = build(self.name, self.model, self.num_ranks)  # type: ignore[arg-type]
        return found if self.software is None else self.software.applied(found)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings in force: those that are not the default, and what decides the layout."""
        model = self.model
        found = {
            each.name: getattr(model, each.name)
            for each in fields(model)
            if each.name != "tables"
            and (
                each.default is MISSING
                or getattr(model, each.name) != each.default
                or (each.name in _TOLD and isinstance(model, Transformer))
            )
        }
        if isinstance(model, Transformer):
            layout = Layout(model, self.num_ranks)
            found |= {"dp": layout.dp, "micro_batch": layout.micro}
            found["micro_batches"] = layout.num_micro
        return found | ({"stack": self.stack} if self.stack else {})

    @property
    def memories(self) -> list[StageMemory]:
        """What a rank of each stage of the pipeline needs."""
        if isinstance(self.model, Dlrm):
            return []
        return stage_memories(self.model, Layout(self.model, self.num_ranks))

    @property
    def tokens(self) -> int:
        """Tokens of one step of the whole job; 0 where there are none."""
        model = self.model
        if isinstance(model, Dlrm):
            return 0
        return model.batch * (1 if model.mode == "decode" else model.seq)

    @property
    def flops(self) -> float:
        """Floating-point operations that the model needs for one step, without recomputation.

        Products of weights with every token and of queries with the keys that they see; a
        backward pass takes twice the forward pass, or as much where weights are frozen.
        """
        model = self.model
        if isinstance(model, Dlrm):
            return 0.0
        if model.mode != "train" and model.mtp:  # no server runs the modules of further tokens
            return replace(self, model=replace(model, mtp=0)).flops
        head = model.vocab * model.hidden
        ends = head * (1 if model.tied else 2)
        body = 2.0 * (model.active_parameters - ends)
        usual = model.seq if model.mode == "train" else 1
        scored = min(model.scored or usual, model.seq) if model.mode != "decode" else 1
        tokens = self.tokens
        total = tokens * (body + self._attention_flops)
        total += 2.0 * model.batch * scored * head * (1 + model.mtp)
        if model.mode != "train":
            return total
        return total * (3 if model.trains_weights else 2)

    @property
    def _attention_flops(self) -> float:
        """Floating-point operations of attention for one token, forward, in all layers."""
        model = self.model
        assert isinstance(model, Transformer)
        total = 0.0
        each = 2.0 * model.heads * (model.qk_dim + model.value_dim)
        for kind in (*model.kinds, *model.kinds[-1:] * model.mtp):
            total += each * model.keys_seen(full=kind.full)
        return total

    def throughput(self, seconds: float, peak: float, gpu_hour: float = 0.0) -> dict[str, float]:
        """Return what the job does in a second, and the share of ``peak`` flop/s that is.

        ``mfu`` is model flop utilization (arXiv 2204.02311) of one rank. With a price of a GPU for
        an hour, ``gpu_hour``, it has the cost of a million tokens, or samples, in that currency.
        """
        if not seconds:
            return {}
        found = {"samples_per_second": self.model.batch / seconds}
        if gpu_hour:
            kind, count = ("tokens", self.tokens) if self.tokens else ("samples", self.model.batch)
            step = self.num_ranks * gpu_hour * seconds / 3600
            found[f"cost_per_million_{kind}"] = 1e6 * step / count
        if not self.tokens:
            return found
        rate = self.flops / seconds / self.num_ranks
        return found | {
            "tokens_per_second": self.tokens / seconds,
            "tokens_per_second_per_rank": self.tokens / seconds / self.num_ranks,
            "flops_per_second_per_rank": rate,
            "mfu": rate / peak,
        }

    def row(self, seconds: float, peak: float, gpu_hour: float = 0.0) -> dict[str, Any]:
        """Return what programs read of a job in addition to its prediction."""
        return {
            "throughput": self.throughput(seconds, peak, gpu_hour),
            "settings": {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in self.settings.items()
            },
            "memory_by_stage": [each.as_row() for each in self.memories],
            "notes": list(self.notes),
        }
