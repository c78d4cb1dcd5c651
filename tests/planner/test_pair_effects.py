"""What strategies do to a collective and to kernels beside it, as told by pairs."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest

from tests.planner.toy import quiet
from weft.c3 import Choice, Gemm, Scenario
from weft.c3.strategies import STRATEGIES, masks
from weft.errors import WeftError
from weft.hardware import platform
from weft.planner.pair_effects import (
    BOUNDS,
    Effect,
    Node,
    _effect,
    _scenario,
    effect,
    pair_prices,
    pricer_of,
)
from weft.schedule import Cost
from weft.workload import Collective

MI300X = Node(platform("mi300x-8"))
MIB = 1 << 20
GATHER = "all_gather"
ways = pytest.mark.parametrize("simulated", [True, False])


def on(strategy, bound="arithmetic", nbytes=256 * MIB, *, simulated=True, node=MI300X):
    return effect(node, GATHER, nbytes, strategy, bound, simulated=simulated)


# The pair that stands for a collective.


@pytest.mark.parametrize("nbytes", [64 * MIB, 256 * MIB, 1024 * MIB])
@pytest.mark.parametrize("bound", BOUNDS)
def test_a_product_that_takes_about_as_long_stands_for_kernels(bound, nbytes):
    scenario, pricer = _scenario(MI300X, GATHER, nbytes, bound), pricer_of(MI300X)
    whole, share = pricer.compute(scenario.gemm), pricer.comm(scenario)
    assert whole == pytest.approx(share, rel=0.35)  # tiles run in whole waves
    assert (scenario.collective, scenario.nbytes) == (GATHER, nbytes)


@pytest.mark.parametrize("nbytes", [512 * MIB, 1024 * MIB, 1536 * MIB])
def test_products_have_the_nearest_256_rows_or_columns(nbytes):
    tall = _scenario(MI300X, GATHER, nbytes, "arithmetic")
    thin = _scenario(MI300X, GATHER, nbytes, "memory")
    pricer = pricer_of(MI300X)
    share = pricer.comm(tall) / pricer.compute(Gemm(8192, 8192, 8192))
    assert abs(tall.gemm.m - 8192 * share) <= 128
    share = pricer.comm(thin) / pricer.compute(Gemm(128, 8192, 8192))
    assert abs(thin.gemm.n - 8192 * share) <= 128


def test_arithmetic_bounds_a_tall_product_and_memory_a_thin_one():
    tall = _scenario(MI300X, GATHER, 256 * MIB, "arithmetic").gemm
    thin = _scenario(MI300X, GATHER, 256 * MIB, "memory").gemm
    assert (tall.n, tall.k, tall.m % 256) == (8192, 8192, 0)
    assert (thin.m, thin.k, thin.n % 256) == (128, 8192, 0)
    assert tall.dtype == thin.dtype == "bf16"


@pytest.mark.parametrize(
    ("nbytes", "tall", "thin"), [(1 << 10, 256, 256), (1 << 40, 1 << 17, 1 << 20)]
)
def test_products_are_no_smaller_and_no_larger_than_any_that_is_run(nbytes, tall, thin):
    known = quiet("mi300x-8")  # a collective of little takes next to nothing
    near = Node(replace(known, name="near", levels=(replace(known.levels[0], latency=0.0),)))
    assert _scenario(near, GATHER, nbytes, "arithmetic").gemm.m == tall
    assert _scenario(near, GATHER, nbytes, "memory").gemm.n == thin


def test_a_product_has_a_dtype_that_the_device_multiplies():
    v100 = Node(platform("v100-8"))
    assert "bf16" not in v100.machine.require_device().flops
    assert _scenario(v100, GATHER, MIB, "arithmetic").gemm.dtype == "fp16"
    known = platform("mi300x-8")
    flops = {"tf32": known.require_device().flops["bf16"]}
    odd = replace(known, name="odd", device=replace(known.require_device(), flops=flops))
    assert _scenario(Node(odd), GATHER, MIB, "arithmetic").gemm.dtype == "tf32"


def test_nodes_are_equal_by_name_and_ranks():
    known = platform("mi300x-8")
    assert (
        Node(known) == Node(replace(known, description="told otherwise")) != Node(known.resized(4))
    )
    assert hash(Node(known)) == hash(MI300X)
    assert Node(known) != "mi300x-8"


# Effects.


@ways
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("nbytes", [1, 256 * MIB])
def test_what_is_launched_first_is_what_others_are_compared_with(bound, nbytes, simulated):
    assert on("priority", bound, nbytes, simulated=simulated) == Effect(1.0, 1.0, None)


@ways
def test_sizes_are_looked_at_by_powers_of_two_from_64_kib_on(simulated):
    def at(nbytes):
        return on("dma", nbytes=nbytes, simulated=simulated)

    assert at(1) == at(0) == at(64 << 10) != at((64 << 10) + 1)
    assert at(3 * MIB) == at(4 * MIB) != at(4 * MIB + 1)
    assert at(4 * MIB + 1) == at(8 * MIB)


def test_a_collective_alone_on_its_units_takes_as_long_as_by_itself():
    # 64 KiB are over before a product has filled the device.
    found = _effect(MI300X, GATHER, 64 << 10, "priority", "arithmetic", True)
    assert found.comm == pytest.approx(1.0)
    assert found.compute == 1.0


@ways
def test_engines_leave_units_to_products_and_units_do_not(simulated):
    found = _effect(MI300X, GATHER, 256 * MIB, "dma", "arithmetic", simulated)
    assert found.compute == pytest.approx(1.0, abs=0.01)
    held = _effect(MI300X, GATHER, 256 * MIB, "priority", "arithmetic", simulated)
    # 32 of 304 units are held for most of the time; tiles run in whole waves.
    assert 304 / 272 < held.compute < 1.4
    assert on("dma", simulated=simulated).compute == pytest.approx(1 / held.compute, rel=0.01)


@ways
@pytest.mark.parametrize("bound", BOUNDS)
def test_beside_a_product_a_collective_takes_longer_than_alone(bound, simulated):
    for strategy in STRATEGIES[1:]:
        found = _effect(MI300X, GATHER, 256 * MIB, strategy, bound, simulated)
        assert 1.0 < found.comm < 4.0
        assert 1.0 <= found.compute < 1.5


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("strategy", ["priority", "partition", "dma"])
def test_the_rule_says_about_what_the_simulator_says_of_products(strategy, bound):
    simulated, told = (
        _effect(MI300X, GATHER, 256 * MIB, strategy, bound, each) for each in (True, False)
    )
    assert told.compute == pytest.approx(simulated.compute, rel=0.05)
    assert told.units == simulated.units


def test_what_masks_says_how_many_units():
    sizes = masks(MI300X.machine.require_device())
    for strategy in ("partition", "priority+partition"):
        assert on(strategy).units in sizes
    assert on("dma+partition").units == 0  # arithmetic leaves memory room for both
    assert on("dma+partition", "memory").units in sizes
    assert {on(each).units for each in ("concurrent", "priority", "dma")} == {None}


def test_what_cannot_be_carried_out_raises():
    bare = platform("mi300x-8")
    nothing = replace(bare, name="bare", device=replace(bare.require_device(), dma=None))
    with pytest.raises(WeftError, match="no DMA engines"):
        on("dma", node=Node(nothing))


@ways
@pytest.mark.parametrize("num_ranks", [3, 5, 6])
def test_any_number_of_ranks_has_effects(num_ranks, simulated):
    few = Node(platform("mi300x-8", num_ranks=num_ranks))
    assert on("dma", node=few, simulated=simulated).compute <= 1.0


# A product and a collective that are all that runs.

PRODUCT = Cost("gemm", (4096, 8192, 8192), "bf16")


def asked(nbytes=256 * MIB, kind=GATHER, gemm=PRODUCT, *, simulated):
    return pair_prices(MI300X, Collective(kind, nbytes), gemm, simulated=simulated)


def scenario_of(nbytes):
    return Scenario("", Gemm(4096, 8192, 8192), GATHER, nbytes)


def by_strategy(choices):
    ordered = sorted(choices, key=lambda choice: STRATEGIES.index(choice.strategy))
    return {name: list(same) for name, same in groupby(ordered, key=lambda each: each.strategy)}


@pytest.mark.parametrize("nbytes", [8 * MIB, 256 * MIB, 1024 * MIB])
def test_by_rule_a_strategy_takes_its_best_mask(nbytes):
    rule, scenario = pricer_of(MI300X).rule, scenario_of(nbytes)
    found = asked(nbytes, simulated=False)
    expected = {
        name: min(rule.estimate(scenario, choice) for choice in choices)
        for name, choices in by_strategy(rule.choices(scenario)).items()
    }
    assert {name: each.seconds for name, each in found.items()} == expected


@pytest.mark.parametrize("nbytes", [8 * MIB, 256 * MIB, 1024 * MIB])
def test_simulated_a_strategy_is_between_its_best_mask_and_the_one_of_the_rule(nbytes):
    pricer, scenario = pricer_of(MI300X), scenario_of(nbytes)
    found = asked(nbytes, simulated=True)
    known = by_strategy(pricer.rule.choices(scenario))
    assert set(found) == set(known)
    for name, choices in known.items():
        first = min(choices, key=lambda choice: pricer.rule.estimate(scenario, choice))
        every = [pricer.pair(scenario, choice) for choice in choices]
        assert min(every) <= found[name].seconds <= pricer.pair(scenario, first)


def test_of_the_eight_best_by_the_rule_none_is_left_out():
    pricer, scenario = pricer_of(MI300X), scenario_of(256 * MIB)
    found = asked(simulated=True)
    choices = sorted(
        pricer.rule.choices(scenario), key=lambda each: pricer.rule.estimate(scenario, each)
    )
    for choice in choices[:8]:
        assert found[choice.strategy].seconds <= pricer.pair(scenario, choice)


def test_a_pair_in_turn_changes_nothing_and_masks_say_their_units():
    found = asked(simulated=True)
    assert found["serial"].effect == Effect(1.0, 1.0)
    assert found["partition"].effect.units in masks(MI300X.machine.require_device())
    assert found["priority"].effect.units is None
    assert found["dma"].effect.compute == pytest.approx(1.0)
    alone = pricer_of(MI300X).compute(Gemm(4096, 8192, 8192))
    assert found["serial"].seconds > max(each.seconds for each in found.values()) * 0.9 > alone


def test_bytes_that_do_not_divide_are_rounded_to_ranks():
    assert asked(256 * MIB + 3, simulated=False) == asked(simulated=False)
    assert asked(256 * MIB + 5, simulated=False) == asked(256 * MIB + 8, simulated=False)
    assert asked(1, simulated=False) == asked(8, simulated=False) != asked(16, simulated=False)


@pytest.mark.parametrize(("kind", "dtype"), [("gather", "bf16"), (GATHER, "fp4"), ("send", "bf16")])
def test_pairs_that_nobody_can_price_have_no_prices(kind, dtype):
    product = Cost("gemm", (4096, 8192, 8192), dtype)
    assert asked(kind=kind, gemm=product, simulated=True) == {}


def test_a_choice_is_what_the_rule_would_mask():
    found = _effect(MI300X, GATHER, 256 * MIB, "partition", "memory", False)
    scenario = _scenario(MI300X, GATHER, 256 * MIB, "memory")
    best = pricer_of(MI300X).rule.masks_for(scenario, ["partition"])
    assert best == {"partition": Choice("partition", found.units)}
