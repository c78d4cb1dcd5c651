"""Pairs priced quickly are pairs priced rightly, and faster hardware is never slower."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from validation.random_pairs import random_pairs
from weft.c3 import SCENARIOS, STRATEGIES, Pricer, advise, pair_schedule, price_scenario
from weft.c3.strategies import COLLECTIVES
from weft.hardware import platform
from weft.schedule.strategy import Strategy
from weft.simulator import simulate

MACHINE = platform("mi300x-8")
PRICER = Pricer(MACHINE)


@pytest.mark.parametrize("scenario", SCENARIOS[::4], ids=lambda each: each.name)
def test_a_prepared_simulation_gives_what_simulate_does(scenario):
    for priced in price_scenario(scenario, PRICER):
        whole = simulate(pair_schedule(scenario, priced.choice, MACHINE), MACHINE).seconds
        assert priced.seconds == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("machine", ["mi300x-8", "h100-8", "a100-8", "mi210-4"])
def test_random_pairs_on_any_machine_are_priced_as_simulate_does(machine):
    found = platform(machine)
    pricer = Pricer(found)
    for scenario in random_pairs(3, found, COLLECTIVES, seed=7):
        for choice in pricer.choices(scenario)[::3]:
            whole = simulate(pair_schedule(scenario, choice, found), found).seconds
            assert pricer.pair(scenario, choice) == pytest.approx(whole, rel=1e-9)


def test_serial_is_the_sum_and_nothing_is_gained():
    for priced in (price_scenario(each, PRICER, ["serial"])[0] for each in SCENARIOS):
        assert priced.seconds == pytest.approx(priced.serial, rel=0.1)
        assert abs(priced.percent_of_ideal) < 10


def test_classes_go_by_which_is_longer():
    kinds = [price_scenario(each, PRICER, ["serial"])[0].kind for each in SCENARIOS[:3]]
    assert kinds == ["G-long", "GC-equal", "C-long"]


def faster(machine, what, factor):
    device = machine.require_device()
    match what:
        case "links":
            levels = tuple(replace(each, rate=each.rate * factor) for each in machine.levels)
            dma = replace(device.dma, engine_rate=device.dma.engine_rate * factor)
            return replace(machine, levels=levels, device=replace(device, dma=dma))
        case "memory":
            return replace(machine, device=replace(device, memory_rate=device.memory_rate * factor))
        case "flops":
            bf16 = device.flops["bf16"]
            more = replace(bf16, achieved=bf16.achieved * factor, rated=bf16.rated * factor)
            return replace(machine, device=replace(device, flops={**device.flops, "bf16": more}))
        case "l2":
            kernels = replace(device.kernels, l2_rate=device.kernels.l2_rate * factor)
            return replace(machine, device=replace(device, kernels=kernels))
    raise AssertionError(what)


# A faster GEMM begins its last wave sooner, and may meet a collective it would have missed.
ANOMALY = 1.03


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    what=st.sampled_from(["links", "memory", "l2"]),
    factor=st.floats(1.0, 3.0),
    number=st.integers(0, 29),
    strategy=st.sampled_from([name for name in STRATEGIES if "partition" not in name]),
)
def test_faster_hardware_is_never_slower(what, factor, number, strategy):
    # Tiles are chosen anew for other hardware, so only what keeps them is compared.
    scenario, machine = SCENARIOS[number], faster(MACHINE, what, factor)
    pricer = Pricer(machine)
    if pricer.grid(scenario.gemm) != PRICER.grid(scenario.gemm):
        return
    after = pricer.pair(scenario, Strategy(strategy))
    assert after <= PRICER.pair(scenario, Strategy(strategy)) * ANOMALY


@settings(max_examples=15, derandomize=True, deadline=None)
@given(factor=st.floats(1.1, 3.0), number=st.integers(0, 29))
def test_faster_links_shorten_a_collective_and_faster_units_a_gemm(factor, number):
    scenario = SCENARIOS[number]
    linked, computing = (Pricer(faster(MACHINE, what, factor)) for what in ("links", "flops"))
    assert linked.comm(scenario) < PRICER.comm(scenario)
    assert computing.compute(scenario.gemm) <= PRICER.compute(scenario.gemm) * 1.01


@settings(max_examples=20, derandomize=True, deadline=None)
@given(number=st.integers(0, 29), few=st.integers(1, 64), many=st.integers(1, 64))
def test_more_bytes_never_take_less_time(number, few, many):
    scenario = SCENARIOS[number]
    less, more = (replace(scenario, nbytes=n * 8 << 20) for n in sorted((few, many)))
    for strategy in ("serial", "priority", "dma"):
        choice = Strategy(strategy)
        assert PRICER.pair(less, choice) <= PRICER.pair(more, choice) * ANOMALY


def test_no_strategy_beats_the_longer_side_at_its_fastest():
    for scenario in SCENARIOS:
        for priced in price_scenario(scenario, PRICER):
            assert priced.seconds > 0.9 * priced.ideal
            assert priced.seconds < 1.3 * priced.serial


def test_masks_are_the_best_of_all():
    for scenario in random_pairs(10, MACHINE, COLLECTIVES, seed=3):
        for priced in price_scenario(scenario, PRICER, ["partition", "dma+partition"]):
            name = priced.choice.name
            others = [c for c in PRICER.choices(scenario) if c.name == name]
            least = min(PRICER.pair(scenario, each) for each in others)
            assert priced.seconds <= 1.001 * least


@pytest.mark.parametrize("machine", ["mi300x-8", "h100-8", "mi250x-8", "cpu"])
def test_every_advice_has_a_reason(machine):
    found = platform(machine)
    pricer = Pricer(found)
    for scenario in random_pairs(20, found, COLLECTIVES, seed=1):
        advice = advise(scenario, pricer)
        assert advice.choice in pricer.choices(scenario)
        assert advice.why
