"""Which tables belong to which family, device by device."""

from pathlib import Path

from validation.kernel_tables import (
    FITTED_SIBLINGS,
    SYSTEMS,
    Study,
    attention_studies,
    gemm_studies,
    moe_studies,
)
from validation.neusight_tables import elementwise_studies, neusight_studies
from validation.vidur_layers import layer_studies
from weft.errors import UsageError, nearest
from weft.hardware.dtypes import scheme_of

_ATTENDING = ("a100", "h100")  # devices with tables of attention and experts
FAMILY_NAMES = ("gemm", "attention", "moe", "bmm", "softmax", "norm", "activation", "elementwise")


def studies_by_device(folder: Path, family: str) -> dict[str, list[list[Study]]]:
    """Return the studies of a family: one per device, and those of a dtype for ``any``.

    There dtypes that run the same kernels are one: fp8 with scales known before or not. Siblings
    are not among them: their tables tell how far another device's fits carry.
    """
    by_device: dict[str, list[list[Study]]] = {}
    by_dtype: dict[tuple[str, str], list[Study]] = {}
    for each in _studies(folder, family):
        by_device.setdefault(each.device.name, []).append([each])
        alike = scheme_of(each.dtype).measured if each.dtype != "fp32" else "fp32"
        by_dtype.setdefault((each.family, alike), []).append(each)
    if family == "gemm":
        for name in FITTED_SIBLINGS:
            by_device[name] = [[each] for each in gemm_studies(folder, name)]
    return by_device | {"any": list(by_dtype.values())}


def _studies(folder: Path, family: str) -> list[Study]:
    if family not in FAMILY_NAMES:
        raise UsageError(f"{family!r} is fitted to no table", nearest(family, FAMILY_NAMES))
    found: list[Study] = []
    if family == "gemm":
        found += [each for name in SYSTEMS for each in gemm_studies(folder, name)]
    elif family == "attention":
        found += [each for name in _ATTENDING for each in attention_studies(folder, name)]
    elif family == "moe":
        found += [each for name in _ATTENDING for each in moe_studies(folder, name)]
    elif family == "elementwise":
        found += elementwise_studies(folder)
    if family in ("gemm", "bmm", "softmax", "norm"):
        found += neusight_studies(folder, family)
    return found + [each for each in layer_studies(folder) if each.family == family]
