"""The price of any kernel: seconds, a range, and what they rest on.

``price`` takes the Cost of one command, ``price_columns`` many kernels of one family at once.
A fit to tables of the device itself is used where there is one, then that of a sibling, then the
cost model fitted to all devices, which needs a datasheet alone and has the widest range.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from weft.cost.families import FAMILIES, PARTS, Family
from weft.cost.grid import corrections, point_corrections
from weft.cost.matmul import Floats
from weft.cost.peak_rates import achieved_share, flops_of, rated_flops
from weft.cost.ranges import Deviation, divided_term
from weft.cost.terms import TERMS, op_seconds
from weft.errors import UnknownNameError, UsageError, nearest
from weft.hardware import Device
from weft.hardware.dtypes import known_dtype, scheme_of
from weft.hardware.files import catalogue_device
from weft.hardware.kernel_fits import ANY, find_fit, implementations
from weft.hardware.measured import KernelFit
from weft.schedule import Cost

# Of a kernel that no formula knows, all that is sure is what it moves and multiplies.
_ROOFLINE_RANGE = (0.6, 2.5)
_MOST = 2.0**63  # no shape has more; powers of a few of them are still floats


@dataclass(frozen=True, slots=True)
class Price:
    """What one kernel takes: ``basis`` is predicted or measured, ``model`` what it rests on.

    ``independent`` is the share of the range, in squares, that other shapes do not have in common.
    """

    seconds: float
    low: float
    high: float
    basis: str = "predicted"
    model: str = ""
    independent: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelPrices:
    """The same of many kernels."""

    seconds: Floats
    low: Floats
    high: Floats
    model: str
    independent: float = 0.0


def price(cost: Cost, device: Device) -> Price:
    """Price one kernel: by its family and shape, or else by what it moves and multiplies."""
    if cost.seconds:
        return Price(cost.seconds, cost.seconds, cost.seconds, "measured", "given")
    if cost.scale == 1.0:
        return _price(cost, device)
    found = _price(replace(cost, scale=1.0), device)
    seconds, low, high = (each * cost.scale for each in (found.seconds, found.low, found.high))
    return replace(found, seconds=seconds, low=low, high=high)


@lru_cache(maxsize=65536)
def _price(cost: Cost, device: Device) -> Price:
    cost = _as_decoded(cost)
    if cost.family == "strided" and device.op_model("elementwise") is not None:
        cost = replace(
            cost, family="elementwise"
        )  # a core was measured on contiguous tensors alone
    family = FAMILIES.get(cost.family)
    columns = _columns_of(cost, family) if family else None
    if family is None or columns is None:
        return _roofline(cost, device)
    dtype = cost.dtype or family.dtype
    found = price_columns(family.name, columns, device, dtype, cost.implementation)
    seconds, low, high = (float(each[0]) for each in (found.seconds, found.low, found.high))
    return Price(seconds, low, high, model=found.model, independent=found.independent)


def _as_decoded(cost: Cost) -> Cost:
    """Return attention with one query a sequence as decoding, another kernel."""
    if cost.family != "attention" or len(cost.shape) < 6 or cost.shape[3] != 1:
        return cost
    batch, heads, kv_heads, _, keys, head_dim = cost.shape[:6]
    shape = batch, heads, kv_heads, keys, head_dim, *cost.shape[7:]
    return replace(cost, family="decode", shape=shape)


def _columns_of(cost: Cost, family: Family) -> dict[str, Floats] | None:
    """Name the sides of a shape; None if some are missing, or zero: nothing is computed then."""
    given: dict[str, float] = dict(zip(family.columns, cost.shape, strict=False))
    if "nbytes" in family.columns and cost.nbytes:
        given["nbytes"] = cost.nbytes
    if not all(given.get(key) for key in family.required):
        return None
    return {key: np.array([float(value)]) for key, value in given.items()}


def _roofline(cost: Cost, device: Device) -> Price:
    if (measured := device.op_model("elementwise")) is not None:
        traffic = op_seconds(measured, {"nbytes": np.array([float(cost.nbytes)])})
        total = float(traffic[0]) + cost.flops / flops_of(device, "fp32").achieved
        least, most = (total * each for each in _ROOFLINE_RANGE)
        return Price(total, least, most, model="memory traffic: no formula knows this kernel")
    coefficients = _fit(device, "elementwise", cost.dtype or "fp32")[0].coefficients
    moved = cost.nbytes / (device.memory_rated * coefficients["memory"])
    work = cost.flops / (0.5 * rated_flops(device, scheme_of(cost.dtype or "fp32").math))
    seconds = coefficients["launch"] + max(moved, work)
    low, high = (seconds * each for each in _ROOFLINE_RANGE)
    return Price(seconds, low, high, model="roofline: no formula knows this kernel")


def price_columns(
    kind: str,
    columns: Mapping[str, Floats],
    device: Device,
    dtype: str = "",
    implementation: str = "",
) -> KernelPrices:
    """Price kernels of one family, dtype and library, one a row of the columns."""
    family = find_family(kind)
    dtype = known_dtype(dtype or family.dtype)
    full = _complete(family, columns)
    if (measured := device.op_model(family.name)) is not None and family.name in TERMS:
        seconds = op_seconds(measured, full)
        low, high = seconds * measured.low, seconds * measured.high
        model = f"measured on {device.name}, torch, one thread"
        return KernelPrices(seconds, low, high, model, 1.0)
    library = _implementation(device, family, implementation)
    fit, model, terms = _fit(device, family.fit_family, dtype, library)
    coefficients = fit.coefficients
    if device.like and "scaled by" in model:
        coefficients = _carried_over(coefficients, catalogue_device(device.like), device, dtype)
    elif "datasheet, by" in model:
        coefficients = _within_achieved(coefficients, device, dtype)
    arrives = scheme_of(dtype).arrives and "quantise" in coefficients
    if arrives:  # the correction is of kernels that quantize
        launch = _fit(device, family.fit_family, "bf16", library)[0].coefficients["launch"]
        coefficients = {**coefficients, "quantise": 0.0, "row": 0.0, "launch": launch}

    def predicted(coefficients: Mapping[str, float]) -> Floats:
        return family.formula(full, device, scheme_of(dtype), coefficients)

    seconds = predicted(coefficients)
    if fit.correction is not None and not arrives:
        seconds = seconds * np.exp(corrections(fit.correction, {**full, **family.places(full)}))
    if fit.points is not None and not arrives:
        places = {**full, **family.places(full)}
        seconds = seconds * np.exp(point_corrections(fit.points, places, predicted, coefficients))
    own, common = _deviations(fit, model, terms, family, dtype)
    below, above = own.joined(common).factors
    independent = own.up**2 / (own.up**2 + common.up**2) if own.up else 0.0
    return KernelPrices(seconds, seconds * below, seconds * above, model, independent)


def _deviations(
    fit: KernelFit, model: str, terms: tuple[str, ...], family: Family, dtype: str
) -> tuple[Deviation, Deviation]:
    """Return what a fit is off by for each shape by itself, and for all shapes alike.

    The cost model of other devices is off by what those were that it was not shown, all shapes
    alike. Ranges of libraries of attention hold points of other authors already.
    """
    own, common = Deviation.between(fit.low, fit.high), Deviation()
    if "datasheet, by" in model:
        shown = _shown_elsewhere(fit)
        own, common = common, Deviation.between(shown.low, shown.high)
    if "sibling" in terms and scheme_of(dtype).by_device:
        others = find_fit(ANY, family.fit_family, dtype, fit.implementation)
        if others is not None:  # its kernels are others there: as far as a device of another kind
            common = common.joined(Deviation.between(others.low, others.high))
    for term in terms:
        alone, alike = divided_term(term, family.fit_family)
        own, common = own.joined(alone), common.joined(alike)
    return own, common


def _shown_elsewhere(fit: KernelFit) -> KernelFit:
    """Return the fit whose range is of devices left out: of fp32, where bf16 is of one device.

    Both dtypes of a family wait for the same memory.
    """
    if fit.errors.device is None and fit.dtype == "bf16" and not fit.implementation:
        both = find_fit(ANY, fit.family, "fp32")
        return fit if both is None or both.errors.device is None else both
    return fit


def kernel_deviations(
    kind: str,
    device: Device,
    dtype: str,
    implementation: str = "",
    without: tuple[str, ...] = (),
) -> Deviation:
    """Return how far prices of a family may be off, without some of the terms of its range."""
    family = find_family(kind)
    dtype = known_dtype(dtype or family.dtype)
    library = _implementation(device, family, implementation)
    fit, model, terms = _fit(device, family.fit_family, dtype, library)
    kept = tuple(term for term in terms if term not in without)
    own, common = _deviations(fit, model, kept, family, dtype)
    return own.joined(common)


def _carried_over(
    coefficients: Mapping[str, float], sibling: Device, device: Device, dtype: str
) -> Mapping[str, float]:
    """Carry the coefficients of a sibling over by what bounds its kernels.

    A share of the rated flops becomes the share that this device achieves: a card under a limit of
    watts does not sustain its clock.
    """
    carried = dict(coefficients)
    if "flops" in coefficients:
        math = scheme_of(dtype).math
        kept = achieved_share(device, math) / achieved_share(sibling, math)
        carried["flops"] = min(coefficients["flops"] * kept, 1.0)
    return carried


def _within_achieved(
    coefficients: Mapping[str, float], device: Device, dtype: str
) -> Mapping[str, float]:
    """Cap the coefficients of other devices at the best rates achieved on this one."""
    within = dict(coefficients)
    if "flops" in coefficients:
        within["flops"] = min(coefficients["flops"], achieved_share(device, scheme_of(dtype).math))
    if "memory" in coefficients:
        within["memory"] = min(coefficients["memory"], device.memory_rate / device.memory_rated)
    return within


def find_family(kind: str) -> Family:
    """Find a family by its name."""
    if kind not in FAMILIES:
        raise UnknownNameError(f"unknown kernel {kind!r}", nearest(kind, FAMILIES))
    return FAMILIES[kind]


def _complete(family: Family, columns: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return every column of a family, all of one length, none below what makes sense."""
    missing = [key for key in family.required if key not in columns]
    if missing:
        raise UsageError(
            f"{family.name} needs {', '.join(missing)}",
            f"Its columns are {', '.join(family.columns)}.",
        )
    size = max((np.size(each) for each in columns.values()), default=1)
    full = {
        key: np.broadcast_to(np.asarray(columns.get(key, default), float), (size,))
        for key, default in family.columns.items()
    }
    for key, values in full.items():
        least = 1.0 if key in family.required or key in PARTS else 0.0
        wrong = np.flatnonzero(~(values >= least) | ~(values < _MOST))
        if len(wrong):
            raise UsageError(
                f"{key} of {family.name} must be {least:g} or more, below 2^63, "
                f"not {values[wrong[0]]:g}" + (f" as in row {wrong[0] + 1}" if size > 1 else "")
            )
    return full


_ALIASES = {"sdpa": "flash2"}  # torch's scaled_dot_product_attention, by its flash backend


def _implementation(device: Device, family: Family, asked: str) -> str:
    """Return the library that is meant, or say which are known on the device."""
    known = dict.fromkeys(
        name
        for each in (device.name, device.like, ANY)
        for name in implementations(each, family.fit_family)
    )
    asked = _ALIASES.get(asked, asked)
    if asked in known:
        return asked
    if not asked:
        return next((name for name in family.usual if name in known), "")
    names = [name for name in known if name]
    raise UnknownNameError(
        f"no {asked!r} kernel of {family.name} was measured on {device.name} or a device like it",
        nearest(asked, names) if names else f"{family.name} has no choice of libraries.",
    )


def _fit(
    device: Device, family: str, dtype: str, library: str = ""
) -> tuple[KernelFit, str, tuple[str, ...]]:
    """Return the nearest fit, what to call it, and the terms that its range has in addition.

    What was measured on the device comes first, then on its sibling, then the cost model of all
    devices; and all of that for the dtype itself before another one.
    """
    by = f" with {library}" if library else ""
    for name in dict.fromkeys((dtype, scheme_of(dtype).measured, "fp32")):
        other = by if name == dtype else f"{by}, as {name}"
        terms: tuple[str, ...] = () if _are_alike(name, dtype) else ("dtype",)
        if own := _swept(device, family, name, library):
            return own, f"{_SWEEP} on {device.name}{other}", terms
        terms += () if library else (ELSEWHERE,)
        if own := _of_kin(device.name, family, name, library):
            return own, f"fitted on {device.name}{other}", terms
        if device.like and (own := _of_kin(device.like, family, name, library)):
            return (
                own,
                f"fitted on {device.like}, scaled by the datasheet{other}",
                ("sibling", *terms),
            )
        if own := find_fit(ANY, family, name, library):
            return own, f"datasheet, by the cost model of other devices{other}", terms
    found = find_fit(ANY, family, "bf16", library)
    assert found is not None, f"the catalogue has no coefficients for {family}"
    return (
        found,
        f"datasheet, by the cost model of other devices{by}, as bf16",
        ("dtype", ELSEWHERE),
    )


def _are_alike(one: str, other: str) -> bool:
    """Return whether two dtypes run kernels of the same speed: equal bytes, units of equal rate."""

    def speed(dtype: str) -> tuple[str, float, float]:
        scheme = scheme_of(dtype)
        return scheme.math.replace("fp16", "bf16"), scheme.activation, scheme.weight

    return speed(one) == speed(other)


_SWEEP = "a sweep"
ELSEWHERE = "elsewhere"  # the term of other authors, machines and versions of a library


def _swept(device: Device, family: str, dtype: str, library: str) -> KernelFit | None:
    """Return what a sweep of the user measured on this very device."""
    key = family, dtype, library
    return next((f for f in device.fits if (f.family, f.dtype, f.implementation) == key), None)


def _of_kin(device: str, family: str, dtype: str, library: str) -> KernelFit | None:
    """Return a fit of the family; batched products fall back to that of single ones."""
    found = find_fit(device, family, dtype, library)
    if found is None and family == "bmm" and (single := find_fit(device, "gemm", dtype)):
        return replace(single, correction=None)
    return found
