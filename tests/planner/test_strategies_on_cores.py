"""The ways of a collective on cores: by Gloo, by weft, by an engine, fused with its lookups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.planner.toy import group_of
from weft.cost.price import Price
from weft.hardware import Lookups as Rates
from weft.hardware import platform
from weft.hardware.libraries import Errors, Fit, Library
from weft.hardware.machine import Machine
from weft.planner.candidates import Candidate
from weft.planner.lookup_ops import TableLookups
from weft.planner.plan import Alternative, Limits
from weft.planner.prices import Prices
from weft.planner.strategies import StrategyContext, baseline, candidates_of
from weft.planner.strategies.fused import joined
from weft.schedule import Cost
from weft.step import Collective, Op

NBYTES = 1 << 20
EXCHANGE = Collective("all_to_all", NBYTES, "fp32")
BROADCAST = Collective("broadcast", NBYTES, "fp32")


def library(name, per_byte):
    """A library that takes 10 us and so much for each byte of the half that a rank moves."""
    line = ((1.0, 1e-5), (1e9, 1e-5 + 1e9 * per_byte))
    kinds = ("all_reduce", "all_to_all", "broadcast")
    errors = Errors(0, 0.0, 0.0, 1.0)
    fits = tuple(Fit("1", kind, "any", (2,), line, (), (), 0, errors) for kind in kinds)
    return Library(name, "cpu", "fitted", "made up", "cpu", 1, 1 << 40, fits)


GLOO, WEFT = library("gloo", 4e-9), library("weft", 1e-9)
CORES = replace(platform("cpu", num_ranks=2), libraries=(GLOO, WEFT))
RATE = 1e-7  # seconds of a lookup, by weft
MEASURED = replace(
    CORES,
    device=replace(
        CORES.require_device(),
        lookups={"weft": Rates(lookup=RATE), "weft_backward": Rates(lookup=3 * RATE)},
    ),
)
HOSTS = replace(MEASURED, nic=platform("cpu").nic).cluster(2)


def context(machine, **limits):
    return StrategyContext(machine, Prices(machine, "gloo"), Limits(**limits))


def ways(machine=CORES, pair=None, **limits):
    found: dict[str, list[Any]] = {}
    for each in candidates_of(context(machine, **limits), pair or group_of(what=EXCHANGE)):
        found.setdefault(each.strategy.name, []).append(each)
    return found


def across(**more):
    """A pair of a rank of each of two hosts."""
    return replace(group_of(**more), ranks=(0, 2))


def test_torch_takes_gloo():
    base = baseline(context(CORES), group_of(what=EXCHANGE))
    assert (base.strategy.name, base.strategy.settings) == ("concurrent", {"backend": "gloo"})
    assert base.alone.seconds == pytest.approx(1e-5 + NBYTES / 2 * 4e-9, rel=1e-3)


def test_weft_moves_it_through_shared_memory_or_as_one_message_a_host():
    base, mine = ways()["concurrent"]
    assert base == baseline(context(CORES), group_of(what=EXCHANGE))
    assert mine.strategy.settings == {"backend": "weft", "algorithm": "auto"}
    assert mine.alone.seconds == pytest.approx(1e-5 + NBYTES / 2 * 1e-9, rel=1e-3)
    assert mine.why.startswith("through shared memory: 534")
    assert ways(HOSTS, across(what=EXCHANGE))["concurrent"][1].why.startswith("one message a host")
    one_host = group_of(what=EXCHANGE)
    assert ways(HOSTS, one_host)["concurrent"][1].why.startswith("through shared memory")


def test_cores_have_no_units_to_share_out():
    found = ways()
    assert "takes turns on its core anyway" in found["serial"][0].why
    for strategy in ("priority", "partition", "priority+partition", "dma+partition"):
        (each,) = found[strategy]
        assert each.why.startswith("a rank has one core")


@pytest.mark.parametrize(
    ("cores", "has_engine"), [(None, False), (1, False), (2, False), (3, True)]
)
def test_an_engine_needs_a_core_that_no_rank_has(cores, has_engine):
    machine = None if cores is None else Machine("some", cores, 1 << 30)
    (found,) = ways(replace(CORES, machine=machine))["dma"]
    if has_engine:
        assert isinstance(found, Candidate)
        assert found.strategy.settings == {"backend": "weft", "engines": 1}
        assert found.alone.seconds == pytest.approx(1e-5 + NBYTES / 2 * 1e-9, rel=1e-3)
    else:
        assert found.why == f"an engine is a thread, and {cores or 2} cores have a rank each"


def test_an_engine_that_is_not_allowed_is_not_used():
    machine = replace(CORES, machine=Machine("some", 3, 1 << 30))
    assert isinstance(ways(machine, engines=1)["dma"][0], Candidate)
    assert ways(machine, engines=0)["dma"][0].why == "needs 1 engine, 0 are allowed"


# TableLookups.


def lookups(*poolings, replaced=(0,)):
    """TableLookups of one rank: 100 samples, so many rows each, in tables of 10,000 rows."""
    ops = [Cost("embedding", (100, 10_000, 32, float(each)), "fp32") for each in poolings]
    return TableLookups(replaced, tuple(Op("bag", cost=cost) for cost in ops))


def fused(machine=MEASURED, pair=None):
    (found,) = ways(machine, pair)["fused"]
    return found


def test_without_lookups_there_is_nothing_to_fuse():
    assert "weft fuses lookups" in fused().why
    other = group_of(what=replace(EXCHANGE, kind="all_reduce"), looks_up=True)
    assert "weft fuses lookups" in fused(pair=other).why


def test_lookups_that_were_not_measured_are_not_priced_but_their_exchange_is():
    unknown = group_of(what=EXCHANGE, looks_up=True)
    found = fused(CORES, unknown)
    assert found.strategy.settings == {"backend": "weft", "fused": "embedding_all_to_all"}
    # Bags are summed where they are wanted: all that is left is a rendezvous.
    assert found.alone.seconds == pytest.approx(1e-5 + 32e-9, rel=1e-3)
    assert (found.exclusive, found.replaced) == (False, ())
    nobody = replace(CORES, libraries=())
    assert "was not measured" in fused(nobody, unknown).why
    assert "was not measured" in fused(HOSTS, across(what=EXCHANGE, looks_up=True)).why
    some = group_of(what=EXCHANGE, lookups=(lookups(1),))
    assert fused(CORES, some).alone.seconds == pytest.approx(1e-5 + 32e-9, rel=1e-3)


def test_a_fused_lookup_takes_what_the_slowest_rank_looks_up_and_a_rendezvous():
    found = (lookups(1, 2, replaced=(3, 4)), lookups(8, replaced=(5,)))
    pair = replace(group_of(6, 7, what=EXCHANGE, lookups=found), members=((0, 6), (1, 7)))
    way = fused(pair=pair)
    assert way.alone.seconds == pytest.approx(100 * 8 * RATE + 1e-5, rel=1e-2)
    assert way.exclusive
    assert way.replaced == ((0, 3), (0, 4), (1, 5))
    assert way.why.startswith("bags are summed straight")


def test_the_range_of_a_fused_lookup_ends_with_the_whole_exchange():
    pair = group_of(what=EXCHANGE, lookups=(lookups(8),))
    way, mine = fused(pair=pair), ways(MEASURED, pair)["concurrent"][1].alone
    work = lookups(8).seconds(MEASURED.require_device(), "forward")
    assert work is not None
    assert way.alone.low < way.alone.seconds < way.alone.high
    assert way.alone.high == pytest.approx(work.high + mine.high)


def test_gradients_are_exchanged_whole():
    pair = group_of(what=EXCHANGE, lookups=(lookups(8),), phase="backward")
    way, mine = fused(pair=pair), ways(MEASURED, pair)["concurrent"][1].alone
    assert way.alone.seconds == pytest.approx(100 * 8 * 3 * RATE + mine.seconds, rel=1e-2)
    assert way.why.startswith("gradients are read where they lie")


def test_between_hosts_what_is_summed_is_sent_meanwhile():
    pair = across(what=EXCHANGE, lookups=(lookups(8),))
    way, mine = fused(HOSTS, pair), ways(HOSTS, pair)["concurrent"][1].alone
    work = 100 * 8 * RATE
    # Four slices: of the shorter side the first of them is not hidden.
    assert mine.seconds > work
    assert way.alone.seconds == pytest.approx(mine.seconds + work / 4, rel=1e-2)
    assert way.why == "what is summed is sent while the rest is summed"
    back = across(what=EXCHANGE, lookups=(lookups(8),), phase="backward")
    assert fused(HOSTS, back).alone.seconds == pytest.approx(mine.seconds + 3 * work, rel=1e-2)


@pytest.mark.parametrize(
    ("overlaps", "expected"), [(False, (14, 7, 21)), (True, (10 + 1, 5 + 0.5, 15 + 1.5))]
)
def test_work_and_moves_are_in_turn_or_in_four_slices(overlaps, expected):
    work, moves = Price(4, 2, 6), Price(10, 5, 15)
    for one, other in ((work, moves), (moves, work)):
        found = joined(one, other, overlaps=overlaps)
        assert (found.seconds, found.low, found.high) == pytest.approx(expected)


# Codecs.


def test_only_broadcasts_between_hosts_are_encoded():
    assert "broadcasts between hosts only" in ways()["compressed"][0].why
    inside = ways(pair=group_of(what=BROADCAST))["compressed"]
    assert [each.why for each in inside] == ["inside a host memory is faster than any codec"]
    found = ways(HOSTS, across(what=BROADCAST), error=0.01)["compressed"]
    coded = [each.strategy.settings for each in found if isinstance(each, Candidate)]
    assert {"backend": "weft", "codec": "int8"} in coded
    assert all(each["backend"] == "weft" for each in coded)


def test_a_codec_between_hosts_that_loses_too_much_is_refused():
    found = ways(HOSTS, across(what=BROADCAST), codecs=("int8",))["compressed"]
    assert [isinstance(each, Alternative) for each in found] == [True]
