"""Figures of kernels: what formulas and corrections say of rows that they were not shown."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from validation.kernel_fit import errors_of, study_errors
from validation.kernel_studies import FAMILY_NAMES, studies_by_device
from validation.kernel_tables import Study, gemm_studies
from validation.other_tables import deepbench_products, vidur_products
from validation.published_attention import fitted_attention, held_out
from validation.recorded_products import (
    fitted_products,
    recorded_attention,
    recorded_elementwise,
)
from validation.splits import DEEPBENCH_T4, VIDUR_LAYERS
from validation.target import Target
from validation.vidur_layers import layer_studies
from weft.cost.fit_errors import geomean_error, joined_error
from weft.cost.price import price_columns
from weft.hardware import Device
from weft.hardware.kernel_fits import ANY, device_fits, fitted_devices
from weft.hardware.measured import FitErrors, KernelFit

GROUP = "predict"
_TENSOR = ("a100", "b200", "h100", "l40s")  # devices with tables of matrix products for inference
_HELD_BACK = 8.0
Limits = tuple[float, float, float, float]
_GEMM: Limits = (6.0, 15.0, 2.0, 2.5)
_NONE: Limits = (-1.0, -1.0, -1.0, -1.0)
_OTHER: Limits = (-1.0, -1.0, -1.0, _HELD_BACK)


@dataclass(frozen=True, slots=True)
class Known:
    """A fit of the catalogue on its device, its errors as recorded or computed again."""

    device: str
    fit: KernelFit

    @property
    def errors(self) -> FitErrors:
        """How far it is from its table."""
        return self.fit.errors


def fitted_kernels(folder: Path | None) -> Iterator[Target]:
    """Compare every fit with its own table: as fitted, and with parts held back."""
    known, note = (_recorded(), "recorded") if folder is None else (_again(folder), "computed")
    inference = [k for k in known if k.fit.family == "gemm" and k.fit.dtype != "fp32"]
    yield from _figures("gemm, 20 tables of A100, H100, B200, GB200, L40S", inference, _GEMM, note)
    for device in _TENSOR:
        yield from _figures(
            f"gemm {device}", [k for k in inference if k.device == device], _NONE, note
        )
    for family, mine in _by_family(k for k in known if k not in inference).items():
        yield from _figures(f"{family}", mine, _OTHER, note)
        for each in mine if len(mine) > 1 else []:
            yield from _figures(f"{family} {each.device} {each.fit.dtype}", [each], _NONE, note)


def _recorded() -> list[Known]:
    fits = ((name, fit) for name in fitted_devices() for fit in device_fits(name).fits)
    return [Known(name, fit) for name, fit in fits if fit.errors.rows > _FEW_ROWS]


def _again(folder: Path) -> list[Known]:
    """Fit corrections again, by the coefficients of the catalogue."""
    fits = {(k.device, k.fit.family, k.fit.dtype): k.fit for k in _recorded()}
    found = []
    for family in FAMILY_NAMES:
        for device, studies in studies_by_device(folder, family).items():
            for study in studies if device != ANY else []:
                fit = fits[device, study[0].family, study[0].dtype]
                errors = study_errors(study[0], fit.coefficients)
                found.append(Known(device, replace(fit, errors=errors)))
    return found


_FEW_ROWS = 20  # libraries of attention and recorded steps have fewer, and figures of their own


def _by_family(known: Iterable[Known]) -> dict[str, list[Known]]:
    families: dict[str, list[Known]] = {}
    for each in known:
        name = "gemm of PyTorch in fp32" if each.fit.family == "gemm" else each.fit.family
        families.setdefault(name, []).append(each)
    return families


def _figures(what: str, known: list[Known], limits: Limits, note: str) -> Iterator[Target]:
    rows = [each.errors.rows for each in known]
    formula, far, tenth, shapes = limits

    def pooled(error: Callable[[FitErrors], float | None]) -> float:
        return joined_error(rows, [error(each.errors) or 0.0 for each in known])

    within = float(np.average([each.errors.within_20 for each in known], weights=rows))
    source = known[0].fit.source
    yield _error(
        f"{what}: formula alone", source, pooled(lambda e: e.formula), formula, note, fitted=True
    )
    yield _error(
        f"{what}: formula off by more than 20 %", source, 1 - within, far, note, fitted=True
    )
    yield _error(
        f"{what}: a random tenth held back", source, pooled(lambda e: e.random_tenth), tenth, note
    )
    yield _error(
        f"{what}: whole shapes held back", source, pooled(lambda e: e.shapes), shapes, note
    )


def left_out_devices() -> Iterator[Target]:
    """Compare predictions from other devices' fits and a datasheet with the device's own tables."""
    fits = [fit for fit in device_fits(ANY).fits if fit.errors.device is not None]
    for family in dict.fromkeys(fit.family for fit in fits):
        mine = [fit for fit in fits if fit.family == family and fit.dtype != "fp32"]
        mine = mine or [fit for fit in fits if fit.family == family]
        pooled = joined_error([f.errors.rows for f in mine], [f.errors.device or 0.0 for f in mine])
        limit = 15.0 if family == "gemm" else -1.0
        name = f"{family}: one device left out, from its datasheet"
        yield _error(name, mine[0].source, pooled, limit, "recorded")
        for fit in mine if family == "gemm" else []:
            for device, error in fit.errors.devices.items():
                name = f"{family} {device} {fit.dtype}: left out, from its datasheet"
                yield _error(name, fit.source, error, -1.0, "recorded")


_HELD_OUT_ATTENTION = 9.0


def training_attention() -> Iterator[Target]:
    """Compare the models of libraries with published speeds: those fitted to, and the others."""
    for device, fit in fitted_attention():
        if device == ANY:
            continue
        name = f"{fit.family} {device} with {fit.implementation}"
        rows = f"{fit.errors.rows} published speeds"
        yield _error(f"{name}: fitted", fit.source, fit.errors.formula, -1.0, rows, fitted=True)
        unseen = held_out(device, fit.implementation, fit.family)
        if unseen is None:
            continue
        found = price_columns(
            fit.family, unseen.columns, unseen.device, fit.dtype, fit.implementation
        )
        error = geomean_error(found.seconds / unseen.seconds - 1)
        note = f"{len(unseen.seconds)} speeds: other head dimensions, masks and authors"
        yield _error(f"{name}: held out", fit.source, error, _HELD_OUT_ATTENTION, note)


def elsewhere(folder: Path) -> Iterator[Target]:
    """Compare fits with tables that had no part in them: of a sibling, of other authors."""
    siblings = gemm_studies(folder, "gb200")
    errors = [_off(each, _like(each.device, "b200")) for each in siblings]
    name = "gemm gb200 by b200's coefficients and corrections"
    yield _error(
        name,
        siblings[0].source,
        geomean_error(np.concatenate(errors)),
        12.0,
        "a sibling, as H200 is of H100: GB200's own fits are left out",
    )
    for each, off in zip(siblings, errors, strict=True):
        yield _error(f"{name}, {each.dtype}", each.source, geomean_error(off), -1.0, "")
    yield from _held_out_layers(folder)
    yield from _on_a_capped_card(folder)
    yield from _recorded_on_mi300x(folder)
    yield from _recorded_in_steps(folder)
    others = (vidur_products(folder), *deepbench_products(folder))
    for study in others:
        error = geomean_error(_off(study, study.device))
        name = f"{study.family} {study.device.name} {study.dtype}: another author's table"
        yield _error(name, study.source, error, -1.0, "")


def _on_a_capped_card(folder: Path) -> Iterator[Target]:
    """Score products on T4, whose only fitted number is the best rate of one application."""
    for applications in (DEEPBENCH_T4.fitted, DEEPBENCH_T4.held_out):
        shown = applications == DEEPBENCH_T4.fitted
        for study in deepbench_products(folder, "T4", applications):
            error = geomean_error(_off(study, study.device))
            what = ", ".join(applications)
            name = f"gemm t4 {study.dtype} by a100's coefficients under 70 W: {what}"
            note = f"{len(study.seconds)} products" + (
                "; its best rate is in the catalogue" * shown
            )
            yield _error(name, study.source, error, -1.0, note, fitted=shown)


def _recorded_on_mi300x(folder: Path) -> Iterator[Target]:
    """Score the one number that was fitted to products of a recorded step."""
    fit = fitted_products(folder)
    name = "gemm mi300x bf16 in recorded steps"
    yield _error(f"{name}: Qwen1.5-0.5B", fit.source, fit.errors.formula, -1.0, "", fitted=True)
    note = "4 small products, all launch and tail: too fast"
    error = fit.errors.shapes or 0.0
    yield _error(f"{name}: BERT small, held out", fit.source, error, -1.0, note)


def _recorded_in_steps(folder: Path) -> Iterator[Target]:
    """Score elementwise kernels and torch's attention of recorded steps: nothing is fitted to them.

    Those of Qwen were looked at, with what strided kernels take.
    """
    for model in ("qwen1.5-0.5b", "bert-small"):
        for gpu, on in (("MI300X", "mi300x-8"), ("H100", "h100-8")):
            trace = f"{model}_{gpu}_single"
            study = recorded_elementwise(folder, trace, on)
            yield _in_step(f"elementwise {gpu} in {model}: contiguous", study)
            if model.startswith("qwen"):
                study = recorded_elementwise(folder, trace, on, contiguous=False)
                yield _in_step(f"elementwise {gpu} in {model}: strided", study)
                study = recorded_attention(folder, trace, on)
                yield _in_step(f"attention {gpu} in {model}: torch's flash kernel", study)


def _in_step(name: str, study: Study) -> Target:
    found = price_columns(
        study.family, study.columns, study.device, study.dtype, study.implementation
    )
    ratio = found.seconds / study.seconds
    note = f"{len(ratio)} kernels, predicted over measured {np.median(ratio):.2f} in the median"
    return _error(name, study.source, geomean_error(ratio - 1), -1.0, note)


_LAYERS_LIMIT = 12.0


def _held_out_layers(folder: Path) -> Iterator[Target]:
    """Score norms, activations and additions of models, and of a device, that no fit was shown."""
    for table in VIDUR_LAYERS.held_out:
        for study in layer_studies(folder, (table,)):
            found = price_columns(study.family, study.columns, study.device, study.dtype)
            error = geomean_error(found.seconds / study.seconds - 1)
            unseen = "another device" if study.device.name != "a100" else "another model"
            name = f"{study.family} of {table} in fp16: {unseen}"
            why = "the clock and the wait for memory were added after a first look"
            note = why if unseen == "another device" else ""
            yield _error(name, study.source, error, _LAYERS_LIMIT, note)


def _like(device: Device, name: str) -> Device:
    """Return a device that is priced by the fits of another, scaled by its own datasheet."""
    return replace(device, name=name)


def _off(study: Study, device: Device) -> np.ndarray:
    found = price_columns(study.family, study.columns, device, study.dtype).seconds
    return errors_of(np.log(study.seconds / found))


def _error(
    name: str, source: str, error: float, limit: float, note: str, *, fitted: bool = False
) -> Target:
    return Target(
        GROUP,
        name,
        None,
        "% error",
        source,
        100 * error,
        allowed=limit,
        error_in="value",
        fitted=fitted,
        note=note,
    )
