"""Compressed: fewer bytes are sent, through codecs within a budget of error."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.compress.codec_registry import CODECS, expected_ratio, is_lossless
from weft.cost.codec import codec_rates
from weft.cost.price import Price
from weft.errors import UnknownNameError, nearest
from weft.planner.candidates import Candidate, infeasible
from weft.schedule.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.planner.candidates import CollectiveGroup
    from weft.planner.plan import Alternative, Limits
    from weft.planner.prices import Prices
    from weft.planner.strategies.context import StrategyContext

# By codec; the most exact first, which is taken where others are as fast.
ERRORS = {
    name: kind.error
    for name, kind in sorted(CODECS.items(), key=lambda each: each[1].error or 0.0)
    if kind.error is not None
}
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_CODED = ("all_gather", "all_to_all", "broadcast", "send", "recv", "gather", "scatter")


def error_of(codec: str) -> float:
    """Return the relative error that a codec makes."""
    kind = codec.partition(":")[0]
    if kind not in ERRORS:
        raise UnknownNameError(f"no plan knows the error of codec {codec!r}", nearest(kind, ERRORS))
    return ERRORS[kind]


def candidates(
    context: StrategyContext, group: CollectiveGroup
) -> Iterator[Candidate | Alternative]:
    """Encode the collective; weft's backend on cores encodes broadcasts between hosts."""
    if not context.device.is_core:
        yield from coded(group, context.prices, context.limits)
    elif group.what.kind != "broadcast":
        yield infeasible("compressed", "weft encodes broadcasts between hosts only")
    elif not context.spans_nodes(group):
        yield infeasible("compressed", "inside a host memory is faster than any codec")
    else:
        for each in coded(group, context.weft, context.limits):
            yield replace(each, strategy=replace(each.strategy, backend="weft"))


def coded(
    group: CollectiveGroup, prices: Prices, limits: Limits
) -> Iterator[Candidate | Alternative]:
    """Return the collective through each codec, or why it does not go through one."""
    what, dtype = group.what, _DTYPES.get(group.what.dtype)
    if what.kind not in _CODED:
        yield infeasible("compressed", "sums need values: each hop would decode and encode again")
        return
    if dtype is None:
        yield infeasible("compressed", f"no codec is for {what.dtype}")
        return
    for codec in limits.codecs or ERRORS:
        error, ratio = error_of(codec), expected_ratio(codec, dtype)
        if ratio <= 1.0:  # as many bytes as before
            continue
        strategy = Strategy("compressed", codec=codec)
        if error > limits.error:
            why = f"its error of {error:g} is above the budget of {limits.error:g}"
            yield infeasible(strategy, why)
            continue
        price = _coded_price(group, prices, codec, ratio)
        exact = "loses nothing" if is_lossless(codec) else f"error {error:g}"
        why = f"{codec} sends {ratio:.2f} times fewer bytes, {exact}"
        room = what.nbytes  # for what is encoded, in addition to what is not
        yield Candidate(strategy, price, memory=room, why=why)


def _coded_price(group: CollectiveGroup, prices: Prices, codec: str, ratio: float) -> Price:
    """Add what encodes this rank's part and decodes what comes to the smaller collective."""
    what = group.what
    small = replace(what, nbytes=max(1, int(what.nbytes / ratio)))
    moved = prices.collective_price(small, group.ranks)
    encoded, decoded = _sides(group)
    rates = codec_rates(codec, prices.platform.require_device())
    coding = rates.seconds(encoded, decodes=False) + rates.seconds(decoded, decodes=True)
    return Price(moved.seconds + coding, moved.low + coding, moved.high + coding, model=codec)


def _sides(group: CollectiveGroup) -> tuple[float, float]:
    """Return the most bytes that a rank encodes, and the most that one decodes."""
    size, count = group.what.nbytes, len(group.ranks)
    match group.what.kind:
        case "all_gather" | "gather":
            return size / count, size
        case "scatter":
            return size, size / count
        case _:
            return size, size
