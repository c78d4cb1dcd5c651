"""What was measured and fitted: kernels of a device, and torch on a machine that is its own device.

Kernels of devices have a cost model each (``weft.cost``) and what its formula leaves unexplained;
ops of torch on cores are sums, with what its host and its wrappers add.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FitErrors:
    """Geometric means of the relative error against so many rows of a table.

    ``formula`` is of the formula alone on the rows that it was fitted to, ``within_20`` the share
    of these within 20 %. The others are of rows that had no part in the fit: a random tenth, whole
    shapes, or one whole device (``devices``: each by itself). None: it was not, or could not be,
    left out.
    """

    rows: int
    formula: float
    within_20: float
    random_tenth: float | None = None
    shapes: float | None = None
    device: float | None = None
    devices: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Correction:
    """What a formula leaves unexplained: log(measured / formula) at the knots of a ``grid``.

    ``values`` are whole numbers of ``step``, one byte each, written as differences along the
    first column, packed and turned into text.
    """

    grid: str
    step: float
    values: str


@dataclass(frozen=True, slots=True)
class PointCorrection:
    """The same between the points of a sweep: the mean of a Gaussian process.

    A point is the logarithm (base 2) of each of ``columns``, then the elasticity of its price to
    each coefficient of ``shares``, all over their ``scales``; ``weights`` has a number for every
    point. Far from all points nothing is corrected.
    """

    columns: tuple[str, ...]
    scales: tuple[float, ...]
    points: tuple[tuple[float, ...], ...] = field(hash=False)  # thousands of numbers
    weights: tuple[float, ...] = field(hash=False)
    shares: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelFit:
    """The cost model of one family and dtype: coefficients, a correction, and its errors.

    Four of five rows that the fit was not shown lie between ``low`` and ``high`` times its price.
    ``implementation`` is the library, where kernels of several were fitted; ``version`` is what
    was measured, library and release.
    """

    family: str
    dtype: str
    coefficients: Mapping[str, float] = field(hash=False)
    low: float
    high: float
    source: str
    errors: FitErrors
    correction: Correction | None = None
    points: PointCorrection | None = None
    implementation: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class OpCostModel:
    """One family of ops with so many threads: seconds are a sum of ``terms`` times their counts.

    What each term counts is written in ``weft.cost.terms``. ``error`` is the geometric mean of the
    relative error on ``rows`` ops that had no part in the fit; four of five of them lie between
    ``low`` and ``high`` times the price.
    """

    family: str
    threads: int
    terms: Mapping[str, float] = field(hash=False)
    rows: int
    error: float
    low: float
    high: float
    source: str = ""


@dataclass(frozen=True, slots=True)
class Ddp:
    """What DDP adds to its collectives, in seconds: a step, each parameter, each byte."""

    step: float = 0.0
    parameter: float = 0.0
    byte: float = 0.0


@dataclass(frozen=True, slots=True)
class TorchHost:
    """What torch spends around ops, in seconds: Python, dispatch and autograd.

    ``forward``, ``backward`` and ``optimizer`` are for each op of that phase, those that only
    name memory anew included; less than zero where ops cost less than when they are called one by
    one. ``ddp`` is what DDP adds to its collectives, by their library. ``cached`` is how many bytes
    of the last cache a rank has.
    """

    forward: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    cached: float = 0.0
    ddp: Mapping[str, Ddp] = field(default_factory=dict, hash=False)
    version: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class CodecRate:
    """How fast one core encodes and decodes, in bytes of input, and by which ratio."""

    name: str
    dtype: str
    encode: float
    decode: float
    ratio: float


@dataclass(frozen=True, slots=True)
class MeasuredNoise:
    """How quiet a machine was while it was measured.

    ``foreign`` is the share of its cores that others had, ``spread`` how far a probe that was
    repeated between measurements moved: its third quartile over its first, less one.
    """

    foreign: float
    spread: float
    seconds: float

    @property
    def is_noisy(self) -> bool:
        """Whether measurements may be off by more than the models are."""
        return self.foreign > _FOREIGN or self.spread > _SPREAD

    @property
    def is_busy(self) -> bool:
        """Whether measurements say more about others than about the machine."""
        return self.foreign > _BUSY


_FOREIGN, _BUSY = 0.05, 0.2
_SPREAD = 0.10
