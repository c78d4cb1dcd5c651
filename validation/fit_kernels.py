"""Fit the cost models of kernels to measured tables and write the catalogue's kernel files.

    WEFT_DATA=folder python -m validation.fit_kernels [FAMILY..] [--device NAME..] [--dtype NAME..]

``training-attention`` are libraries, fitted to published speeds, ``recorded`` products of MI300X in
a trace. What is not asked for stays as it is in the files. The tables stay where they are. The same
tables give the same files to the bit.
"""

import argparse
import sys
from dataclasses import asdict, replace
from typing import Any

from validation.kernel_fit import fitted, fitted_to_all
from validation.kernel_studies import FAMILY_NAMES, studies_by_device
from validation.nccl_tables import data_folder
from validation.published_attention import fitted_attention
from validation.recorded_products import fitted_products
from weft.hardware.kernel_fits import ANY, FOLDER, DeviceFits, device_fits, find_fit
from weft.hardware.measured import KernelFit
from weft.hardware.toml_text import to_toml

ATTENTION, RECORDED = "training-attention", "recorded"
HEAD = "# Written by validation/fit_kernels.py. What the numbers mean stands in weft.cost.\n"


def main() -> int:
    """Fit what is asked for, one file a device, or say that there is no data."""
    parser = argparse.ArgumentParser(description="Fit kernels to measured tables.")
    parser.add_argument("family", nargs="*", help="families; all of them if none is named")
    parser.add_argument("--device", nargs="*", help="devices; 'any' is the fit to them all")
    parser.add_argument("--dtype", nargs="*", help="dtypes; all of them if none is named")
    parser.add_argument("--keep-coefficients", action="store_true", help="fit corrections alone")
    asked = parser.parse_args()
    folder = data_folder()
    if folder is None:
        print("the measured tables are not here: set WEFT_DATA to their folder", file=sys.stderr)
        return 1
    for family in asked.family or (*FAMILY_NAMES, ATTENTION, RECORDED):
        if family == ATTENTION:
            for device, fit in fitted_attention():
                print(device, fit.implementation, fit.family, fit.errors, flush=True)
                _write(device, fit)
            continue
        if family == RECORDED:
            _write("mi300x", fitted_products(folder))
            continue
        for device, groups in studies_by_device(folder, family).items():
            for studies in groups if device in (asked.device or [device]) else []:
                if studies[0].dtype in (asked.dtype or [studies[0].dtype]):
                    known = find_fit(device, studies[0].family, studies[0].dtype)
                    coefficients = known.coefficients if known and asked.keep_coefficients else None
                    fit = (
                        fitted_to_all(studies)
                        if device == ANY
                        else fitted(studies[0], coefficients)
                    )
                    print(device, fit.family, fit.dtype, fit.errors, flush=True)
                    _write(device, fit)
    return 0


def _write(device: str, found: KernelFit) -> None:
    """Put a fit in the place of that of the same family and dtype, or among the others."""
    known = device_fits(device)
    fits = {(f.family, f.dtype, f.implementation): f for f in (*known.fits, found)}
    ordered = tuple(fits[key] for key in sorted(fits))
    text = HEAD + to_toml(_table(replace(known, fits=ordered)))
    (FOLDER / f"{device}.toml").write_text(text, encoding="utf-8")
    device_fits.cache_clear()


def _table(known: DeviceFits) -> dict[str, Any]:
    return {"device": known.device, "fits": [_fit(fit) for fit in known.fits]}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, 4)


def _fit(fit: KernelFit) -> dict[str, Any]:
    table = asdict(fit)
    errors = {k: _rounded(v) for k, v in table.pop("errors").items() if v not in (None, {})}
    correction = table.pop("correction")
    table = {**table, "coefficients": dict(table["coefficients"]), "errors": errors}
    if correction is not None:
        table["correction"] = correction
    return {key: value for key, value in table.items() if value not in (None, "")}


if __name__ == "__main__":
    raise SystemExit(main())
