"""How one collective of a step is carried out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Execution:
    """How one collective is carried out: seconds alone, and what it holds meanwhile.

    ``units`` are the compute units that are taken from kernels (None: as many as the library
    takes; all of them: nothing runs at the same time). ``by_engines`` moves the bytes by copy
    engines, ``first`` gives its kernel every slot that comes free.
    """

    seconds: float
    units: int | None = None
    by_engines: bool = False
    first: bool = False
