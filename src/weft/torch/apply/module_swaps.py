"""Replacement of modules by fused ones, and DDP's buckets."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from weft.planner.plan import Choice, Plan
from weft.torch.apply.step_watch import PlanWarning
from weft.torch.embedding.embedding_bags import EmbeddingBags
from weft.torch.embedding.embedding_module import EmbeddingAllToAll
from weft.units import format_size


@dataclass
class ModuleSwap:
    """A plain module and the fused one that replaces it inside ``parent``."""

    parent: nn.Module
    name: str
    plain: EmbeddingBags
    fused: EmbeddingAllToAll
    is_fused: bool = True

    def put(self, *, fused: bool) -> None:
        """Put the fused or the plain module into the model, with the current values."""
        if fused == self.is_fused:
            return
        if fused:
            self.plain.give_values(self.fused)
        else:
            self.plain.take_values(self.fused)
        setattr(self.parent, self.name, self.fused if fused else self.plain)
        self.is_fused = fused

    @property
    def can_go_back(self) -> bool:
        """Whether the module updates its own rows, so that no optimizer holds its parameters."""
        return self.plain.optimizer is not None


def fuse(plan: Plan, model: nn.Module | None) -> list[ModuleSwap]:
    """Replace modules by fused ones as the plan says; warn if there are none."""
    wanted = [choice for choice in plan.choices if is_fused(choice)]
    if not wanted:
        return []
    swaps = [
        ModuleSwap(parent, name, plain, plain.fused()) for parent, name, plain in _plain_in(model)
    ]
    for swap in swaps:
        setattr(swap.parent, swap.name, swap.fused)
    if not swaps:
        warnings.warn(
            f"the plan fuses {wanted[0].pair}, but the model passed to apply has no "
            "weft.torch.EmbeddingBags: its all-to-all runs unfused",
            PlanWarning,
            stacklevel=3,
        )
    return swaps


def is_fused(choice: Choice) -> bool:
    """Return whether a choice replaces modules."""
    return choice.strategy.kind.sliced or bool(choice.strategy.fused)


def bucket_of(plan: Plan) -> int | None:
    """Return the bytes of DDP's buckets in the plan, None if it does not change them."""
    sizes = [size for c in plan.choices if (size := c.strategy.bucket) is not None]
    return max(sizes, default=None)


def check_buckets(bucket: int | None, model: nn.Module | None) -> None:
    """Warn about a DDP with other buckets, which cannot be changed any more."""
    modules: list[Any] = [] if model is None else list(model.modules())
    for module in modules:
        cap = getattr(module, "bucket_bytes_cap", None)
        if bucket is not None and cap is not None and cap != bucket:
            warnings.warn(
                f"the plan has buckets of {format_size(bucket)}, this DDP has {format_size(cap)}: "
                "create it with applied.ddp(module), after apply",
                PlanWarning,
                stacklevel=3,
            )


def _plain_in(model: nn.Module | None) -> Iterator[tuple[nn.Module, str, EmbeddingBags]]:
    if model is None:
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, EmbeddingBags):
                yield parent, name, child
