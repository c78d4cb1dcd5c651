"""From single ops and collectives to the platform of this machine."""

from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from weft.calibration.torch_calibration import TorchFound, fitted_op_models, is_current, rising  # noqa: E402
from weft.calibration.torch_collective_times import SIZES, WRAPPED  # noqa: E402
from weft.calibration.torch_host_overhead import (  # noqa: E402
    PHASES,
    gaps,
    reference_step,
)
from weft.calibration.torch_op_grid import samples  # noqa: E402
from weft.calibration.torch_op_times import OpTime  # noqa: E402
from weft.cost.nccl import library_price  # noqa: E402
from weft.hardware import Lookups, platform  # noqa: E402
from weft.hardware.files import platform_from_table, tomllib  # noqa: E402
from weft.hardware.measured import TorchHost  # noqa: E402

pytestmark = pytest.mark.torch


def _found() -> TorchFound:
    every = samples()
    times = [OpTime(2e-6 + 1e-9 * n, 1e-6) for n in range(len(every))]
    curves = {
        (library, "all_reduce"): [(n, 1e-4 + n * 1e-9) for n in SIZES]
        for library in ("gloo", "weft")
    }
    wrapped = {
        (library, count, nbytes): 1e-4 + 2e-6 * count + 1e-4 + count * nbytes * 1e-9
        for library in ("gloo", "weft")
        for count, nbytes in WRAPPED
    }
    op_models, host = fitted_op_models(every, times, 1), TorchHost(1e-6, 2e-6, 3e-6)
    lookups = {"torch": Lookups(start=2e-5, lookup=3e-9, leaf=4e-8, error=0.05)}
    return TorchFound(op_models, host, curves, wrapped, lookups)


def test_a_fit_finds_the_terms_that_made_its_times():
    every = [each for each in samples() if each.family == "gemm"]
    sides = [[each.columns[key] for key in "mnk"] for each in every]
    times = [OpTime(1e-5 + 2e-11 * m * n * k + 3e-10 * m * n, 0.0) for m, n, k in sides]
    (model,) = fitted_op_models(every, times, 1)
    assert model.terms["flop"] == pytest.approx(1e-11, rel=0.01)
    assert model.terms["result"] == pytest.approx(3e-10, rel=0.02)
    assert model.error < 1e-3
    assert model.low <= 1 <= model.high


def test_the_error_of_a_cost_model_is_that_of_ops_it_was_not_shown():
    every = [each for each in samples() if each.family == "elementwise"]
    drawn = np.random.default_rng(0)
    noise = np.exp(0.3 * drawn.standard_normal(len(every)))
    times = [
        OpTime(1e-10 * s.columns["nbytes"] * x, 0.0) for s, x in zip(every, noise, strict=True)
    ]
    (model,) = fitted_op_models(every, times, 1)
    assert 0.1 < model.error < 0.5
    assert model.low < 0.9
    assert model.high > 1.1


def test_what_was_found_survives_its_file():
    found = _found().put_into(platform("cpu"), "a test")
    again = platform_from_table(tomllib.loads(found.to_toml()), "here.toml")
    assert again.torch == found.torch
    assert again.libraries == found.libraries
    assert again.require_device().op_models == found.require_device().op_models
    assert again.require_device().lookups == found.require_device().lookups
    sources = [key for key in again.sources if key.startswith("device.lookups.torch")]
    assert len(sources) == len(fields(Lookups))


def test_a_library_gives_back_what_was_measured():
    found = _found().put_into(platform("cpu"), "a test").resized(2)
    price = library_price(found, "all_reduce", 1 << 20, name="gloo", dtype="float32")
    assert price.seconds == pytest.approx(1e-4 + (1 << 20) * 1e-9, rel=1e-3)
    assert price.basis == "measured"


def test_ddp_is_what_is_left_of_wrapped_steps():
    host = _found().put_into(platform("cpu"), "a test").torch
    assert host is not None
    assert host.ddp["gloo"].step == pytest.approx(1e-4, rel=0.05)
    assert host.ddp["gloo"].parameter == pytest.approx(2e-6, rel=0.05)
    assert host.ddp["weft"].byte == pytest.approx(0.0, abs=1e-10)


def test_overheads_are_what_phases_take_beyond_their_ops():
    count = Counter(dict.fromkeys(PHASES, 5))
    found = gaps(dict.fromkeys(PHASES, 3.0), dict.fromkeys(PHASES, 1.0), count)
    assert found == dict.fromkeys(PHASES, 0.4)


def test_the_reference_model_learns():
    for act in reference_step().values():
        act()


def test_a_hill_on_the_way_is_not_the_library():
    assert rising([(1, 2.0), (2, 9.0), (4, 3.0)]) == [(1, 2.0), (2, 3.0), (4, 3.0)]


@pytest.mark.parametrize(
    "what", ["old", "of another torch", "without torch", "without cost models"]
)
def test_a_calibration_goes_stale(what):
    found = _found().put_into(platform("cpu"), "a test")
    assert found.torch is not None
    found = replace(found, torch=replace(found.torch, version=torch.__version__))
    assert is_current(found, 60.0)
    if what == "of another torch":
        found = replace(found, torch=TorchHost(version="1.0"))
    if what == "without torch":
        found = replace(found, torch=None)
    if what == "without cost models":
        found = replace(found, device=replace(found.require_device(), op_models=()))
    assert not is_current(found, 1e6 if what == "old" else 60.0)
