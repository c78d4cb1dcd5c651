"""The strategies for executing a collective concurrently with computation, as one table.

c3, the planner, what-if and plan files use these names. What a strategy does is read from its
fields, never from its name.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a collective is executed concurrently with kernels.

    An ``exclusive`` strategy runs the collective when nothing else runs. ``first``: its kernel is
    launched, or dispatched, before waiting kernels. ``masks``: streams are confined to a part of
    the compute units. ``by_engines``: copy engines move the data. ``sliced``: the kernel that
    produces the input sends slices of it. ``coded``: the data is compressed by a codec.
    """

    name: str
    exclusive: bool = False
    first: bool = False
    masks: bool = False
    by_engines: bool = False
    sliced: bool = False
    coded: bool = False

    @property
    def of_pairs(self) -> bool:
        """Whether it only sets order and resources: the strategies of ``weft c3``."""
        return not (self.sliced or self.coded)


_TABLE = (
    Strategy("serial", exclusive=True),
    Strategy("concurrent"),
    Strategy("priority", first=True),
    Strategy("partition", masks=True),
    Strategy("priority+partition", first=True, masks=True),
    Strategy("dma", by_engines=True),
    Strategy("dma+partition", by_engines=True, masks=True),
    Strategy("fused", sliced=True),
    Strategy("compressed", coded=True),
)
STRATEGIES = {strategy.name: strategy for strategy in _TABLE}
