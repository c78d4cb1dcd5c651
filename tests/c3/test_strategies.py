"""Strategies as schedules: what stands in them, and what is refused."""

from dataclasses import replace

import pytest

from weft.c3 import (
    SCENARIOS,
    STRATEGIES,
    Gemm,
    Pricer,
    Scenario,
    advised_rows,
    pair_schedule,
)
from weft.c3.strategies import COLLECTIVES, check_choice, masks
from weft.errors import UnknownNameError, UsageError
from weft.hardware import platform
from weft.schedule import Copy, Kernel, Launch, Submit
from weft.schedule.check import check
from weft.schedule.strategy import Strategy
from weft.simulator import simulate

MACHINE = platform("mi300x-8")
SMALL = [Scenario("", Gemm(2048, 2048, 256), kind, 8 << 20) for kind in COLLECTIVES]


def choice(strategy):
    return Strategy(strategy, units=32 if strategy.endswith("partition") else None)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("scenario", SMALL, ids=COLLECTIVES)
def test_a_pair_is_a_schedule_that_can_be_carried_out(scenario, strategy):
    schedule = pair_schedule(scenario, choice(strategy), MACHINE)
    check(schedule)
    collapsed, expanded = (simulate(schedule, MACHINE, collapse=c).seconds for c in (True, False))
    assert collapsed == pytest.approx(expanded, rel=1e-9)


def commands(strategy, kind):
    found = list(pair_schedule(SCENARIOS[0], choice(strategy), MACHINE).commands([0]))
    return [(place, c) for place, c in found if isinstance(c, kind)]


def test_the_order_of_launches_is_the_difference_between_concurrent_and_priority():
    fed = {
        name: [c.queue for _, c in commands(name, Submit)] for name in ("concurrent", "priority")
    }
    assert fed["concurrent"] == ["stream0", "stream1"]
    assert fed["priority"] == ["stream1", "stream0"]


def test_the_kernel_with_fewer_workgroups_goes_first_whichever_it_is():
    few = Scenario("", Gemm(256, 256, 65536), "all_to_all", 1 << 30)  # fewer than 64 tiles
    schedule = pair_schedule(few, Strategy("priority"), MACHINE)
    fed = [c.queue for _, c in schedule.commands([0]) if isinstance(c, Submit)]
    assert fed == ["stream0", "stream1"]


def test_a_partition_divides_the_units():
    schedule = pair_schedule(SCENARIOS[0], Strategy("partition", units=64), MACHINE)
    queues = {q.name: q.units for q in schedule.programs[0].queues}
    assert queues["stream0"] == (0, 240)
    assert queues["stream1"] == (240, 304)


@pytest.mark.parametrize(("units", "wanted"), [(16, 16), (32, 32), (128, 32)])
def test_a_wider_mask_gives_a_collective_no_more_workgroups(units, wanted):
    schedule = pair_schedule(SCENARIOS[0], Strategy("partition", units=units), MACHINE)
    (launch,) = (c for _, c in schedule.commands([0]) if isinstance(c, Launch))
    assert launch.units == wanted


def test_by_engines_no_kernel_moves_anything():
    assert not commands("dma", Launch)
    assert {place.queue[:4] for place, _ in commands("dma", Copy)} == {"copy"}
    assert len(commands("dma", Kernel)) == 1


def test_masks_are_doublings_of_the_grain():
    assert masks(MACHINE.require_device()) == (8, 16, 32, 64, 128)


def refused(match, choice, kind="all_gather", machine=MACHINE, error=UsageError):
    scenario = Scenario("", Gemm(1024, 1024, 1024), kind, 8 << 20)
    with pytest.raises(error, match=match) as caught:
        pair_schedule(scenario, choice, machine)
    assert caught.value.hint
    with pytest.raises(error, match=match):
        Pricer(machine).pair(scenario, choice)


def test_a_device_without_engines_cannot_use_them():
    without = replace(MACHINE, device=replace(MACHINE.require_device(), dma=None))
    refused("no DMA engines", Strategy("dma"), machine=without)
    refused("no DMA engines", Strategy("dma+partition", units=8), machine=without)


def test_one_unit_cannot_be_masked():
    refused("more than its 1 unit", Strategy("partition"), machine=platform("cpu"))
    refused("more than its 1 unit", Strategy("dma+partition", units=0), machine=platform("cpu"))


def test_without_masks_the_other_strategies_are_priced():
    pricer = Pricer(platform("cpu"))
    rows = advised_rows(SMALL[0], pricer, (), None)
    assert [row["strategy"] for row in rows] == ["serial", "concurrent", "priority", "dma"]


def test_a_mask_goes_by_the_grain():
    refused("multiple of 8", Strategy("partition", units=12))


@pytest.mark.parametrize("units", [304, 400, -8])
def test_a_mask_has_no_more_units_than_there_are(units):
    refused("must leave units", Strategy("partition", units=units))


def test_only_a_partition_masks():
    refused("masks no units", Strategy("priority", units=8))


def test_what_cannot_be_paired_is_refused():
    refused("does not overlap", Strategy("dma"), kind="gather")
    refused("expected one node", Strategy("serial"), machine=platform("mi300x-8x2"))
    refused("expected 2 ranks or more", Strategy("serial"), machine=MACHINE.resized(1))
    refused("unknown strategy", Strategy("fast"), error=UnknownNameError)


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_reduce", "broadcast"])
def test_engines_do_what_a_library_of_the_device_does_by_them(kind):
    h100 = platform("h100-8")
    for strategy in ("dma", "dma+partition"):
        refused(f"do no {kind}", Strategy(strategy), machine=h100, kind=kind)
    check_choice(Strategy("dma"), "all_gather", h100)
    check_choice(Strategy("dma"), kind, platform("mi300x-8"))
