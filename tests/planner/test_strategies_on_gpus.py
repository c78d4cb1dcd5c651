"""Candidates on GPUs: what each takes from kernels, what is infeasible and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.planner.toy import MACHINE, group_of, quiet
from weft.collectives import ENGINE_FEATURES
from weft.cost.ranges import range_term
from weft.hardware import platform, platform_names
from weft.hardware.network import Level
from weft.planner.candidates import Candidate
from weft.planner.plan import Alternative, Limits
from weft.planner.prices import Prices, seconds_by
from weft.planner.strategies import StrategyContext, baseline, candidates_of
from weft.step import Collective

pytestmark = pytest.mark.thorough

MIB = 1 << 20
MI300X = quiet("mi300x-8")
NODES = replace(MI300X.cluster(4), sources={})
ALL = tuple(range(8))
ACROSS = (0, 8, 16, 24)


def pair(kind="all_gather", nbytes=256 * MIB, ranks=ALL, dtype="bf16", **more):
    return replace(group_of(what=Collective(kind, nbytes, dtype), **more), ranks=ranks)


def gpu(machine=MI300X, library="no library", *, hypothetical=True, **limits):
    asked = Limits(hypothetical=hypothetical, **limits)  # what stacks execute: tests/gpu
    return StrategyContext(machine, Prices(machine, library), asked)


def candidates(asked=None, machine=MI300X, **more):
    found: dict[str, list[Any]] = {}
    for each in candidates_of(gpu(machine, **more), asked or pair()):
        found.setdefault(each.strategy.name, []).append(each)
    return found


def why(strategy, asked=None, machine=MI300X, **more):
    found = candidates(asked, machine, **more)[strategy][0]
    assert isinstance(found, Alternative)
    return found.why


# Units.


def test_what_torch_does_by_itself_is_the_library_on_its_own_units():
    base = baseline(gpu(), pair())
    assert (base.strategy.name, base.strategy.settings, base.units) == ("concurrent", {}, None)
    assert base.alone == Prices(MI300X, "no library").collective_price(pair().what, ALL)


def test_a_serial_collective_is_exclusive_and_a_first_one_has_priority():
    found = candidates()
    assert found["serial"][0].exclusive
    assert found["priority"][0].strategy.kind.first
    assert found["priority"][0].strategy.settings == {"priority": 1}


@pytest.mark.parametrize("strategy", ["partition", "priority+partition"])
def test_fewer_units_than_fill_the_links_take_longer(strategy):
    base = baseline(gpu(), pair()).alone.seconds  # 32 units fill the links
    for each in candidates()[strategy]:
        assert each.units == each.strategy.units < 32
        assert each.alone.seconds == pytest.approx(base * 32 / each.units)
        assert each.strategy.kind.first is strategy.startswith("priority")


def test_between_nodes_a_port_is_filled_by_fewer_units():
    base = baseline(gpu(NODES), pair(ranks=ACROSS)).alone.seconds
    widest = candidates(pair(ranks=ACROSS), NODES)["partition"][-1]
    assert widest.alone.seconds == pytest.approx(base)


def test_engines_hold_no_units_unless_they_leave_sums_to_them():
    (gathers, *_), (sums, *_) = candidates()["dma"], candidates(pair("all_reduce"))["dma"]
    assert (gathers.strategy.kind.by_engines, gathers.units) == (True, 0)
    assert (sums.strategy.kind.by_engines, sums.units > 0) == (True, True)
    assert sums.why == "engines leave the units to kernels, sums stay on units"


@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_what_engines_cannot_do_is_infeasible_with_the_reason(kind):
    assert why("dma", pair(kind)) == f"engines do not carry out {kind}"


def test_sums_are_not_encoded():
    assert why("compressed", pair("all_reduce")).startswith("sums need values")


# Engines.


@pytest.mark.parametrize(("kind", "needed"), [("all_gather", 7), ("all_to_all", 8)])
def test_an_engine_for_each_peer_is_needed_and_one_more_for_what_stays(kind, needed):
    (found, *_) = candidates(pair(kind), engines=needed)["dma"]
    assert found.strategy.engines == needed
    told = why("dma", pair(kind), engines=needed - 1)
    assert told == f"needs {needed} engines, {needed - 1} are allowed"


def test_without_engines_nothing_is_done_by_them():
    none = replace(MI300X, name="none", device=replace(MI300X.require_device(), dma=None))
    assert why("dma", machine=none).endswith("has no DMA engines")
    assert why("dma", pair("gather"), none).endswith("has no DMA engines")
    assert len(candidates(pair(nbytes=MIB), none)["dma"]) == 1


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all"])
def test_small_messages_are_fed_to_engines_in_several_candidates(kind):
    small = candidates(pair(kind, 32 * MIB))["dma"][1:]
    assert {way.strategy.algorithm.partition("+")[0] for way in small} >= {
        "dma",
        "dma-b2b",
    }
    for way in small:
        name = way.strategy.algorithm
        assert way.strategy.engines == (1 if "b2b" in name else 7)
        assert way.alone.seconds == seconds_by(MI300X, kind, name, 32 * MIB)
        simulated = range_term("collectives", "simulated").factors[1]
        assert way.alone.high / way.alone.seconds == pytest.approx(simulated)
        assert (way.strategy.kind.by_engines, way.units) == (True, 0)
        assert name in way.why
    assert len(candidates(pair(kind, 32 * MIB + 1))["dma"]) == 1


def test_engines_that_are_not_allowed_are_not_fed():
    fed = candidates(pair(nbytes=MIB), engines=1)["dma"][1:]
    assert {way.strategy.engines for way in fed} == {1}
    seven = candidates(pair(nbytes=MIB), engines=7)["dma"][1:]
    assert {way.strategy.engines for way in seven} == {1, 7}
    assert [type(way) for way in candidates(pair(nbytes=MIB), engines=0)["dma"]] == [Alternative]


def test_other_collectives_are_not_fed_to_engines():
    assert len(candidates(pair("all_reduce", MIB))["dma"]) == 1


# What a device has.


GPUS = [name for name in platform_names() if not platform(name).require_device().is_core]
KINDS = ("all_gather", "all_to_all", "reduce_scatter", "all_reduce", "broadcast")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GPUS)
def test_ways_by_engines_are_of_engines_that_the_device_has(name, kind):
    machine = quiet(name)
    dma = machine.require_device().require_dma()
    ranks = tuple(range(machine.num_ranks))
    for nbytes in (MIB, 256 * MIB):
        asked = pair(kind, nbytes, ranks)
        for each in candidates(asked, machine).get("dma", ()):
            if isinstance(each, Alternative):
                assert "copy engines of" in each.why
                continue
            assert kind in dma.collectives
            assert 1 <= each.strategy.engines <= dma.num_engines
            algorithm = each.strategy.algorithm
            assert algorithm is None or set(ENGINE_FEATURES[algorithm]) <= set(dma.features)


def test_engines_of_an_h100_copy_and_do_not_add():
    h100 = quiet("h100-8")
    assert candidates(machine=h100)["dma"][0].strategy.settings == {"engines": 3}
    for strategy in ("dma", "dma+partition"):
        for kind in ("reduce_scatter", "all_reduce"):
            assert "they copy, they do not add" in why(strategy, pair(kind), h100)
        assert "do no broadcast" in why(strategy, pair("broadcast"), h100)
    assert isinstance(
        candidates(pair("reduce_scatter"))["dma"][0], Candidate
    )  # by mori.ccl on MI300X


def test_engines_of_an_h100_are_fed_by_what_cuda_has():
    found = candidates(pair("all_to_all", MIB), quiet("h100-8"))["dma"][1:]
    fed = [each.strategy.algorithm for each in found if isinstance(each, Candidate)]
    assert fed == ["dma", "dma-b2b"]
    (told,) = [each.why for each in found if isinstance(each, Alternative)]
    assert "no swap, prelaunch" in told


# Between nodes.


def test_between_nodes_engines_do_not_reach():
    told = "engines reach the memory of one node, its ranks are on several"
    assert why("dma", pair(ranks=ACROSS), NODES) == told
    assert why("dma+partition", pair(ranks=ACROSS), NODES) == told
    assert len(candidates(pair(ranks=ACROSS, nbytes=MIB), NODES)["dma"]) == 1


def test_a_group_in_a_node_sees_its_part_of_it():
    node = gpu(NODES).node(pair(ranks=(0, 1)))
    assert node is not None
    assert (node.num_ranks, node.node_levels, node.num_nodes) == (2, 1, 1)
    assert gpu(NODES).node(pair(ranks=ACROSS)) is None
    assert gpu(NODES).node(pair(ranks=(0, 8))) is None
    deep = replace(NODES, levels=(Level("mesh", 2, 1e11), *NODES.levels), node_levels=2)
    inner = gpu(deep).node(pair(ranks=(0, 2, 4)))
    assert inner is not None
    assert [level.size for level in inner.levels] == [3]


# Other algorithms.


def switched(rate=100e9):
    return replace(MI300X, name=f"switched{rate:g}", levels=(Level("switch", 8, rate, 1e-6),))


def algorithms(found):
    return {way.strategy.algorithm: way for way in found["concurrent"] if way.strategy.algorithm}


def test_another_algorithm_is_offered_where_it_is_clearly_faster_than_what_is_simulated():
    machine = switched()
    asked = pair("broadcast", 64 * MIB)
    alone = Prices(machine, "no library").collective_price(asked.what, ALL).seconds
    names = ("direct", "ring", "tree", "binomial", "halving-doubling", "scatter-allgather")
    took = {name: seconds_by(machine, "broadcast", name, 64 * MIB) for name in names}
    faster = {n: s for n, s in took.items() if s is not None and s < 0.95 * alone}
    found = algorithms(candidates(asked, machine))
    assert {name: way.alone.seconds for name, way in found.items()} == faster
    assert all(way.units is None for way in found.values())  # as many as the library's


def test_a_faster_algorithm_is_found_among_those_that_libraries_do_not_have():
    # A tree needs few steps where a latency is all there is.
    far = replace(switched(), name="far", levels=(Level("switch", 8, 1e12, 1e-3),))
    asked = pair("broadcast", 1024)
    found = algorithms(candidates(asked, far))
    alone = baseline(gpu(far), asked).alone.seconds
    assert found
    assert all(way.alone.seconds < 0.95 * alone for way in found.values())


def test_what_was_measured_has_no_peer_in_a_model():
    measured = candidates(pair("all_reduce", 1024, dtype="bf16"), MACHINE, library="nccl")
    assert measured["concurrent"][0].alone.model == "nccl, measured"
    assert algorithms(measured) == {}


def test_a_message_has_no_algorithms():
    assert algorithms(candidates(pair("send", 1024, (0, 1)))) == {}


# Fused with what makes it, and encoded.


def test_a_fused_operator_sends_slices_of_what_its_maker_makes():
    (found,) = candidates(pair("all_reduce", producers=((0, 0),), produced_by="up"))["fused"]
    assert (found.slices, found.producer) == (16, 1.0625)  # half of the worst: 12.5 %
    assert found.strategy.settings == {"fused": "up + all_reduce"}
    assert found.why == "slices of up leave while it computes the next"
    assert found.alone == baseline(gpu(), pair("all_reduce")).alone


def test_what_cannot_be_fused_says_why():
    assert why("fused", pair(producers=((0, 0),))) == "no fused operator ends in all_gather"
    assert why("fused", pair("all_reduce")).startswith("no lookup or product right before it")
