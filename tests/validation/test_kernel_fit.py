"""Coefficients are found again from times that they made, and what is held back is not shown."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from validation import find_group
from validation.grid_fit import fit_grid
from validation.kernel_fit import (
    devices_left_out,
    errors_of,
    fitted,
    fitted_coefficients,
    fitted_to_all,
    unexplained,
    unseen_range,
)
from validation.kernel_studies import FAMILY_NAMES, studies_by_device
from validation.kernel_tables import attention_studies, device, gemm_studies, moe_studies, study
from validation.neusight_tables import elementwise_studies, neusight_studies
from validation.other_tables import deepbench_products, vidur_products
from validation.recorded_products import recorded_attention, recorded_elementwise
from weft.calibration.coefficient_ranges import ranges_of
from weft.calibration.cost_model_fit import Range, fit_coefficients
from weft.cost import price_columns
from weft.cost.fit_errors import geomean_error
from weft.errors import UsageError
from weft.hardware import platform
from weft.hardware.kernel_fits import ANY, device_fits, find_fit
from weft.hardware.measured import KernelFit

H100, A100 = device("h100"), device("a100")
MOVED = {
    "launch": 2e-6,
    "call": 3e-5,
    "side": 4.0,
    "memory": 0.7,
    "cached": 0.5,
    "room": 0.4,
}


def moved(coefficients=MOVED, on=A100, number=300, noise=0.0, seed=0):
    """Times of elementwise kernels, as a cost model has them, of sizes that come in pairs."""
    random = np.random.default_rng(seed)
    nbytes = np.repeat(2.0 ** random.uniform(12, 32, number // 2), 2)
    whole = study("elementwise", on, "fp32", {"nbytes": nbytes}, np.ones(number), ("nbytes",))
    seconds = whole.predicted(coefficients) * np.exp(noise * random.normal(size=number))
    return replace(whole, seconds=seconds)


def test_coefficients_are_found_from_times_that_they_made():
    coefficients = fitted_coefficients([moved(noise=0.01)])
    unseen = moved(seed=1)
    assert geomean_error(errors_of(unexplained(unseen, coefficients))) < 0.02
    assert coefficients["memory"] == pytest.approx(0.7, rel=0.05)
    assert coefficients["call"] == pytest.approx(3e-5, rel=0.05)


def test_numbers_stay_in_their_ranges_and_fixed_ones_stay():
    ranges = dict(ranges_of("elementwise", "fp32")) | {"memory": Range(0.85, 0.8, 0.9, 0.15)}
    coefficients = fit_coefficients([moved()], ranges)
    assert coefficients["memory"] == 0.8
    assert coefficients["launch"] == 2e-6


def test_what_a_formula_leaves_is_found_on_the_grid():
    whole = moved()
    bent = replace(whole, seconds=whole.seconds * np.where(whole.columns["nbytes"] > 2**22, 1.5, 1))
    fit = fitted(bent)
    assert isinstance(fit, KernelFit)
    assert fit.errors.shapes is not None
    assert fit.errors.shapes < max(fit.errors.formula, 0.1)
    assert fit.low <= 1 <= fit.high


def test_a_grid_goes_through_straight_lines():
    place = 2.0 ** np.random.default_rng(0).uniform(0, 10, 400)
    axes = {"x": np.array([0.0, 3.0, 10.0])}
    found = fit_grid({"x": place}, 0.1 * np.log2(place), axes)
    assert found == pytest.approx([0.0, 0.3, 1.0], abs=0.02)


def test_rows_of_one_shape_are_held_back_together():
    whole = moved()
    held = whole.tenth_of_shapes
    assert 0 < held.mean() < 0.3
    assert (held[0::2] == held[1::2]).all()
    assert not set(whole.part(held).columns["nbytes"]) & set(whole.part(~held).columns["nbytes"])
    assert 0 < whole.tenth.mean() < 0.3


def test_fifths_of_the_shapes_hold_every_row_once_and_no_shape_twice():
    whole = moved(number=600)
    whole = replace(whole, columns={"nbytes": np.round(whole.columns["nbytes"] % 40) + 1})
    fifths = whole.fifths_of_shapes
    assert len(fifths) == 5
    assert (np.sum(fifths, axis=0) == 1).all()
    shapes = [set(whole.columns["nbytes"][part]) for part in fifths]
    assert sum(map(len, shapes)) == whole.num_shapes


def test_ranges_of_few_shapes_are_those_of_all_of_them_left_out():
    few = moved(number=600, noise=0.0)
    few = replace(few, columns={"nbytes": 2.0 ** (20 + np.arange(600) % 15)})
    few = replace(few, seconds=few.predicted(MOVED) * np.where(np.arange(600) % 15 < 5, 1.3, 1.0))
    assert few.part(few.tenth_of_shapes).num_shapes < 5
    low, high = unseen_range(few, unexplained(few, MOVED), "")
    assert low == pytest.approx(1.0)
    assert high == pytest.approx(1.3)


def test_a_sample_is_the_same_every_time():
    first, second = moved().sample(50), moved().sample(50)
    assert (first.seconds == second.seconds).all()
    assert len(first.seconds) == 50
    assert moved().sample(1000).seconds.size == 300


def test_a_device_that_was_left_out_is_predicted_by_the_others():
    other = moved(on=H100)
    unseen = devices_left_out([moved(), other])
    assert set(unseen) == {"a100", "h100"}
    assert geomean_error(errors_of(unseen["h100"])) < 0.05  # one model made both
    assert devices_left_out([other]) == {}
    alone = fitted_to_all([other])
    assert alone.errors.device is None
    assert alone.high / alone.low > 2
    both = fitted_to_all([moved(), other])
    assert both.errors.device is not None
    assert set(both.errors.devices) == {"a100", "h100"}


def test_a_family_without_tables_is_refused(tmp_path):
    with pytest.raises(UsageError, match="'fft' is fitted to no table"):
        studies_by_device(tmp_path, "fft")


def test_recorded_figures_are_shown_without_tables(monkeypatch):
    monkeypatch.delenv("WEFT_DATA", raising=False)
    rows = {target.name: target for target in find_group("predict").targets()}
    known = [t for name, t in rows.items() if name.startswith("gemm, 20 tables")]
    assert len(known) == 4
    assert [t.fitted for t in known] == [True, True, False, False]
    assert any("left out, from its datasheet" in name for name in rows)


def test_every_fit_of_the_catalogue_has_the_coefficients_of_its_model():
    for name in (ANY, "h100", "v100"):
        for fit in device_fits(name).fits:
            if fit.errors.rows:
                wanted = ranges_of(fit.family, fit.dtype, fit.implementation)
                assert set(fit.coefficients) == set(wanted)
                for key, value in fit.coefficients.items():
                    assert wanted[key].least * 0.999 <= value <= wanted[key].most * 1.001


@pytest.mark.data
@pytest.mark.parametrize(("name", "dtype"), [("h100", "fp8"), ("l40s", "bf16")])
def test_tables_of_products_are_priced_as_well_as_the_catalogue_says(data, name, dtype):
    found = {each.dtype: each for each in gemm_studies(data, name)}[dtype].sample(2000)
    assert found.columns["m"].min() >= 1
    prices = price_columns("gemm", found.columns, platform(f"{name}-8").require_device(), dtype)
    recorded = find_fit(name, "gemm", dtype)
    assert recorded is not None
    error = geomean_error(prices.seconds / found.seconds - 1)
    assert error < 1.15 * (recorded.errors.random_tenth or 0)
    inside = (found.seconds >= prices.low) & (found.seconds <= prices.high)
    assert inside.mean() > 0.75


@pytest.mark.data
def test_every_table_is_read(data):
    sizes = dict.fromkeys(FAMILY_NAMES, 0)
    for each in (*attention_studies(data, "a100"), *moe_studies(data, "a100")):
        assert (each.seconds > 0).all()
        sizes["attention" if each.family == "decode" else each.family] += len(each.seconds)
    assert sizes["attention"] == 5457 + 5431
    assert sizes["moe"] == 6360
    assert [each.device.name for each in neusight_studies(data, "softmax")] == ["a100", "v100"]
    assert all(each.columns["nbytes"].min() > 4 for each in elementwise_studies(data))


@pytest.mark.data
def test_tables_of_other_authors_are_near(data):
    for found in (vidur_products(data).sample(1000), *deepbench_products(data)):
        prices = price_columns(found.family, found.columns, found.device, found.dtype)
        assert 0.4 < np.median(prices.seconds / found.seconds) < 2


def _event(cat, name, number, **args):
    return {"cat": cat, "name": name, "args": {"External id": number, **args}}


def _trace(folder):
    """Write a trace: an addition three times, one with a broadcast operand, and an attention."""
    vectorized, strided = "vectorized_elementwise_kernel<8>", "elementwise_kernel<128>"
    large, half = [16, 1024], "c10::BFloat16"
    ran = [
        *[
            ("aten::add", [large, large, []], [half, half, "Scalar"], vectorized, us)
            for us in (3, 9, 4)
        ],
        ("aten::mul", [large, [16, 1]], [half, half], strided, 5),
        (
            "aten::_flash_attention_forward",
            [[2, 64, 8, 32], [2, 96, 4, 32], []],
            [half] * 3,
            "fmha",
            7,
        ),
        ("aten::mm", [large, [1024, 8]], [half, half], "gemm", 8),
    ]
    events = []
    for number, (operator, dims, dtypes, kernel, us) in enumerate(ran):
        inputs = {"Input Dims": dims, "Input type": dtypes}
        events += [_event("cpu_op", operator, number, **inputs)]
        events += [{**_event("kernel", kernel, number), "dur": us}]
    path = folder / "tracelens" / "traces" / "made.json.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))


def test_recorded_kernels_move_their_operands_and_their_result(tmp_path):
    _trace(tmp_path)
    plain = recorded_elementwise(tmp_path, "made", "h100-8")
    assert plain.columns["nbytes"].tolist() == [3 * 2 * 16 * 1024]
    assert plain.seconds.tolist() == [4e-6]  # the median of three
    strided = recorded_elementwise(tmp_path, "made", "h100-8", contiguous=False)
    assert strided.columns["nbytes"].tolist() == [2 * (2 * 16 * 1024 + 16)]
    assert strided.seconds.tolist() == [5e-6]


def test_recorded_attention_keeps_the_heads_that_share_keys(tmp_path):
    _trace(tmp_path)
    found = recorded_attention(tmp_path, "made", "mi300x-8")
    sides = {"batch": 2, "heads": 8, "kv_heads": 4, "queries": 64, "keys": 96, "head_dim": 32}
    assert {key: found.columns[key].tolist() for key in sides} == {k: [v] for k, v in sides.items()}
    assert found.seconds.tolist() == [7e-6]


@pytest.mark.data
def test_shared_keys_of_the_table_of_h100_are_read_once(data):
    (decode,) = (each for each in attention_studies(data, "h100") if each.family == "decode")
    shared = decode.columns["heads"] > decode.columns["kv_heads"]
    assert set(decode.columns["reads"][shared]) == {1.0}
    assert set(decode.columns["reads"][~shared]) == {2.0}
    moved = np.prod([decode.columns[k] for k in ("reads", "batch", "kv_heads", "keys")], axis=0)
    moved = moved * decode.columns["head_dim"] * decode.columns["kv_bytes"]
    # Values of short sequences come from the cache in the other kernel too.
    large = (moved > 1e9) & (decode.columns["keys"] >= 1024) & (decode.columns["window"] == 0)
    rates = moved[large] / decode.seconds[large]
    assert np.quantile(rates, 0.99) < decode.device.memory_rated
