"""The strategies by which a collective can be carried out next to computation, as one table.

c3, the planner, what-if and plan files name strategies as they stand here; what a strategy does is
read from its fields, never from its name. To add one, add a line here and a module of
``weft.planner.strategies`` that lists its candidates.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to carry out a collective next to kernels.

    ``module`` of ``weft.planner.strategies`` lists its candidates. An ``exclusive`` one runs when
    nothing else does. ``first``: its kernel is launched, or dispatched, before those that wait.
    ``masks``: streams are confined to units. ``by_engines``: copy engines move the bytes.
    ``sliced``: the kernel that produces its input sends slices of it. ``coded``: what is sent
    passes a codec.
    """

    name: str
    module: str
    exclusive: bool = False
    first: bool = False
    masks: bool = False
    by_engines: bool = False
    sliced: bool = False
    coded: bool = False

    @property
    def of_pairs(self) -> bool:
        """Whether it only says who runs when and on what: the strategies of ``weft c3``."""
        return not (self.sliced or self.coded)


_TABLE = (
    Strategy("serial", "serial", exclusive=True),
    Strategy("concurrent", "concurrent"),
    Strategy("priority", "priority", first=True),
    Strategy("partition", "partition", masks=True),
    Strategy("priority+partition", "partition", first=True, masks=True),
    Strategy("dma", "dma", by_engines=True),
    Strategy("dma+partition", "dma", by_engines=True, masks=True),
    Strategy("fused", "fused", sliced=True),
    Strategy("compressed", "compressed", coded=True),
)
STRATEGIES = {strategy.name: strategy for strategy in _TABLE}
