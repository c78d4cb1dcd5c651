"""Published speeds of attention in training, by library: FlashAttention 2 to 4 and cuDNN.

Speeds are TFLOP/s as FlashAttention's benchmarks count them: 4 x batch x heads x queries x keys x
head dimension in the forward pass, half of it with a causal mask, 2.5 times as much in the backward
pass. Its papers keep 16 k tokens and a hidden size of 2048 for every length of a sequence.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from validation.kernel_tables import Study, study
from weft.calibration.coefficient_ranges import ranges_of
from weft.calibration.cost_model_fit import fit_coefficients
from weft.cost.fit_errors import geomean_error, within_20
from weft.hardware import platform
from weft.hardware.kernel_fits import ANY
from weft.hardware.measured import FitErrors, KernelFit

FA3_PAPER = "FlashAttention-3, arXiv 2407.08608, figures 5 and 6, H100 SXM5"
FA_1791 = "Dao-AILab/flash-attention pull request 1791, H100"
FA_2688 = "Dao-AILab/flash-attention pull request 2688, Hopper"
BENCH_2391 = "pytorch/benchmark pull request 2391, H100"
FA_2605 = "Dao-AILab/flash-attention pull request 2605, B200"
FA_2280 = "Dao-AILab/flash-attention pull request 2280, B200"
FA_1589 = "Dao-AILab/flash-attention issue 1589, B200"
FA2_PAPER = "FlashAttention-2, arXiv 2307.08691: at most 73 and 63 % of A100's peak"

FORWARD, BACKWARD = "attention", "attention-backward"
_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
_TOKENS, _HIDDEN = 16384, 2048


@dataclass(frozen=True, slots=True)
class Speed:
    """One published speed; ``fitted`` if the model of its library was fitted to it."""

    device: str
    implementation: str
    family: str
    batch: int
    heads: int
    length: int
    head_dim: int
    causal: bool
    tflops: float
    source: str
    fitted: bool = False

    @property
    def seconds(self) -> float:
        """What the kernel took."""
        flops = 4.0 * self.batch * self.heads * self.length**2 * self.head_dim
        passes = 2.5 if self.family == BACKWARD else 1.0
        return passes * flops / (2.0 if self.causal else 1.0) / (self.tflops * 1e12)


def _lengths(
    device: str,
    implementation: str,
    family: str,
    shape: tuple[int, bool],
    speeds: tuple[float, ...],
    source: str,
    *,
    fitted: bool = False,
) -> Iterator[Speed]:
    """List the speeds of a figure, one a length of a sequence."""
    head_dim, causal = shape
    for length, tflops in zip(_LENGTHS[-len(speeds) :], speeds, strict=True):
        batch, heads = max(1, _TOKENS // length), _HIDDEN // head_dim
        yield Speed(
            device,
            implementation,
            family,
            batch,
            heads,
            length,
            head_dim,
            causal,
            tflops,
            source,
            fitted,
        )


def _h100() -> Iterator[Speed]:
    speeds: tuple[float, ...]
    for name, family, shape, speeds, fitted in (
        ("flash2", FORWARD, (128, False), (309, 350, 362, 368, 370, 370), True),
        ("cudnn", FORWARD, (128, False), (497, 574, 617, 609, 600, 595), True),
        ("flash3", FORWARD, (128, False), (467, 565, 625, 638, 646, 648), True),
        ("flash2", FORWARD, (128, True), (191, 260, 298, 319, 333, 335), True),
        ("cudnn", FORWARD, (128, True), (315, 410, 484, 518, 529, 539), True),
        ("flash3", FORWARD, (128, True), (292, 423, 521, 579, 602, 616), True),
        ("flash2", FORWARD, (256, False), (275, 313, 321, 323, 324, 326), False),
        ("cudnn", FORWARD, (256, False), (470, 546, 580, 581, 580, 581), False),
        ("flash3", FORWARD, (256, False), (482, 639, 707, 736, 746, 756), False),
        ("flash2", FORWARD, (256, True), (208, 251, 278, 293, 297, 298), False),
        ("cudnn", FORWARD, (256, True), (308, 391, 450, 483, 497, 509), False),
        ("flash3", FORWARD, (256, True), (286, 427, 537, 612, 628, 642), False),
        ("flash2", BACKWARD, (128, False), (214, 260, 291, 310, 318, 322), True),
        ("cudnn", BACKWARD, (128, False), (305, 408, 465, 499, 518, 516), True),
        ("flash3", BACKWARD, (128, False), (316, 424, 501, 542, 559, 561), True),
        ("flash2", BACKWARD, (64, False), (198, 238, 264, 279, 287, 291), False),
        ("cudnn", BACKWARD, (64, False), (266, 348, 395, 417, 432, 433), False),
        ("flash3", BACKWARD, (64, False), (272, 363, 422, 453, 472, 474), False),
    ):
        yield from _lengths("h100", name, family, shape, speeds, FA3_PAPER, fitted=fitted)
    for name, family, causal, tflops in (
        ("flash2", FORWARD, False, 369.9),
        ("flash2", BACKWARD, False, 290.6),
        ("flash3", FORWARD, False, 659.1),
        ("flash3", BACKWARD, False, 553.9),
        ("flash2", FORWARD, True, 284.1),
        ("flash2", BACKWARD, True, 287.1),
        ("flash3", FORWARD, True, 630.0),
        ("flash3", BACKWARD, True, 531.6),
    ):  # a batch of 2 sequences of 8192 tokens, 16 heads
        yield Speed("h100", name, family, 2, 16, 8192, 128, causal, tflops, FA_1791)
    speeds = (430.3, 517.1, 565.5, 590.2, 614.2, 620.7)
    yield from _lengths("h100", "flash3", FORWARD, (128, False), speeds, BENCH_2391)
    for family, speeds in (
        (FORWARD, (252.5, 294.8, 308.1, 312.0, 310.2)),
        (BACKWARD, (189.9, 238.8, 263.7, 279.8, 299.2)),
    ):
        for length, speed in zip(_LENGTHS, speeds, strict=False):
            sizes = _TOKENS // length, 32, length, 64, False
            yield Speed("h100", "flash2", family, *sizes, speed, FA_2688)


def _b200() -> Iterator[Speed]:
    speeds: tuple[float, ...]
    tables = (((128, False), (1145, 1382, 1559, 1646, 1745)), ((128, True), (785, 1132, 1381)))
    for (head_dim, causal), speeds in tables:  # 32 k tokens, a hidden size of 2048
        for length, speed in zip(_LENGTHS[1:], speeds, strict=False):
            shape = 2 * _TOKENS // length, _HIDDEN // head_dim, length, head_dim, causal
            yield Speed("b200", "flash4", FORWARD, *shape, speed, FA_2605, fitted=True)
    for causal, tflops in ((False, 1359.8), (True, 1208.6)):
        shape = 4, 16, 8192, 128, causal
        yield Speed("b200", "flash4", BACKWARD, *shape, tflops, FA_2280, fitted=True)
    for family, speeds in (
        (FORWARD, (308.4, 359.3, 381.0, 306.9, 343.1, 379.4)),
        (BACKWARD, (243.1, 280.6, 301.6, 314.7, 329.1, 334.0)),
    ):
        yield from _lengths("b200", "flash2", family, (64, False), speeds, FA_1589, fitted=True)


def _a100() -> Iterator[Speed]:
    """Yield what the text of a paper says its figures reach: long sequences with wide heads."""
    for family, share in ((FORWARD, 0.73), (BACKWARD, 0.63)):
        shape = 1, 16, 16384, 128, False
        yield Speed("a100", "flash2", family, *shape, 312 * share, FA2_PAPER, fitted=True)


def speeds() -> tuple[Speed, ...]:
    """List every published speed."""
    return (*_h100(), *_b200(), *_a100())


def studies(points: Iterable[Speed]) -> list[Study]:
    """Turn speeds into Studies, one a device, library and pass."""
    groups: dict[tuple[str, str, str], list[Speed]] = {}
    for point in points:
        key = point.device, point.implementation, point.family
        groups.setdefault(key, []).append(point)
    return [_study(group) for group in groups.values()]


def fitted_attention() -> list[tuple[str, KernelFit]]:
    """Fit the models of libraries; those of H100's FlashAttention-2 serve any device."""
    found, models = [], []
    for shown in studies(point for point in speeds() if point.fitted):
        coefficients = fit_coefficients(
            [shown], ranges_of(shown.family, shown.dtype, shown.implementation)
        )
        models.append((shown, coefficients))
    for shown, coefficients in models:
        fit = _fit_of(shown, coefficients, _range_of(shown, models))
        found.append((shown.device.name, fit))
        if (shown.device.name, shown.implementation) == ("h100", "flash2"):
            found.append((ANY, replace(fit, low=0.7, high=1.4)))
    return found


def _fit_of(
    shown: Study, coefficients: Mapping[str, float], ends: tuple[float, float]
) -> KernelFit:
    """Score coefficients on the points they were fitted to and on others of the library."""
    errors = shown.predicted(coefficients) / shown.seconds - 1
    unseen = held_out(shown.device.name, shown.implementation, shown.family)
    left = (
        None
        if unseen is None
        else geomean_error(unseen.predicted(coefficients) / unseen.seconds - 1)
    )
    return KernelFit(
        shown.family,
        shown.dtype,
        coefficients,
        *ends,
        shown.source,
        FitErrors(len(errors), geomean_error(errors), within_20(errors), shapes=left),
        implementation=shown.implementation,
    )


def _range_of(
    shown: Study, models: Sequence[tuple[Study, Mapping[str, float]]]
) -> tuple[float, float]:
    """Return between which factors four of five held-out points of a device and pass lie."""
    left = []
    for other, coefficients in models:
        unseen = held_out(other.device.name, other.implementation, other.family)
        if (other.device.name, other.family) == (shown.device.name, shown.family) and unseen:
            left.append(np.log(unseen.seconds / unseen.predicted(coefficients)))
    if not left:
        return _FEW_POINTS
    low, high = np.exp(np.quantile(np.concatenate(left), (0.1, 0.9)))
    return round(min(float(low), 1.0), 2), round(max(float(high), 1.0), 2)


_FEW_POINTS = (0.85, 1.2)  # assumed where a device has no points but those that were fitted to


def held_out(device: str, implementation: str, family: str) -> Study | None:
    """Return the published points of a library that its model was not fitted to."""
    key = device, implementation, family
    mine = (p for p in speeds() if (p.device, p.implementation, p.family) == key)
    found = studies(point for point in mine if not point.fitted)
    return found[0] if found else None


def _study(points: list[Speed]) -> Study:
    first = points[0]
    columns = {
        "batch": np.array([float(p.batch) for p in points]),
        "heads": np.array([float(p.heads) for p in points]),
        "kv_heads": np.array([float(p.heads) for p in points]),
        "queries": np.array([float(p.length) for p in points]),
        "keys": np.array([float(p.length) for p in points]),
        "head_dim": np.array([float(p.head_dim) for p in points]),
        "causal": np.array([float(p.causal) for p in points]),
    }
    seconds = np.array([p.seconds for p in points])
    return study(
        first.family,
        platform(f"{first.device}-8").require_device(),
        "bf16",
        columns,
        seconds,
        ("queries", "head_dim", "causal"),
        first.source,
        first.implementation,
    )
