"""The ways of a collective on GPUs: what each does to kernels, what is refused and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.planner.toy import MACHINE, pair_of, quiet
from weft.c3 import STRATEGIES
from weft.collectives import ENGINE_FEATURES
from weft.errors import WeftError
from weft.hardware import platform, platform_names
from weft.hardware.network import Level
from weft.planner.gpu_ways import GpuWays, _settings
from weft.planner.pair_effects import BOUNDS, Node, effect, pair_prices
from weft.planner.plan import Alternative, Limits
from weft.planner.prices import Prices, seconds_by
from weft.planner.ways import Way
from weft.schedule import Cost
from weft.workload import Collective

MIB = 1 << 20
MI300X = quiet("mi300x-8")
NODES = replace(MI300X.cluster(4), sources={})
PRODUCT = Cost("gemm", (4096, 4096, 4096), "bf16")
ALL = tuple(range(8))


def pair(kind="all_gather", nbytes=256 * MIB, ranks=ALL, dtype="bf16", **more):
    return replace(pair_of(what=Collective(kind, nbytes, dtype), **more), ranks=ranks)


def gpu(machine=MI300X, library="no library", *, simulated=False, **limits):
    return GpuWays(machine, Prices(machine, library), Limits(**limits), simulated)


def ways(asked=None, machine=MI300X, **more):
    found: dict[str, list[Any]] = {}
    for each in gpu(machine, **more).of(asked or pair()):
        found.setdefault(each.strategy, []).append(each)
    return found


def why(strategy, asked=None, machine=MI300X, **more):
    found = ways(asked, machine, **more)[strategy][0]
    assert isinstance(found, Alternative)
    return found.why


# What torch does by itself.


@pytest.mark.parametrize(
    ("by_memory", "slower"), [(0.0, 32 / 272), (1.0, 32 / 272 / 3), (0.5, 32 / 272 * 2 / 3)]
)
def test_a_library_holds_its_units_and_movers_lose_a_third_of_what_products_do(by_memory, slower):
    base = gpu().base(pair(by_memory=by_memory))  # 32 of 304 units
    assert (base.strategy, base.settings, base.beside) == ("concurrent", {}, 1.0)
    assert base.compute == pytest.approx(1 + slower)
    assert base.alone == Prices(MI300X, "no library").collective_price(pair().what, ALL)


def test_on_its_own_stream_it_is_the_same_whoever_is_launched_first():
    found = ways()
    base = gpu().base(pair())
    assert found["concurrent"] == [base]
    (first,) = found["priority"]
    assert (first.beside, first.compute, first.settings) == (1.0, base.compute, {"priority": 1})


def test_in_turn_nothing_runs_beside_it():
    (found,) = ways()["serial"]
    assert (found.serial, found.beside, found.compute) == (True, 1.0, 1.0)
    assert found.alone == gpu().base(pair()).alone


# Where a pair stands for what runs beside.


@pytest.mark.parametrize("by_memory", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("strategy", ["partition", "priority+partition", "dma"])
@pytest.mark.parametrize("simulated", [True, False])
def test_effects_are_mixed_by_what_bounds_the_kernels(strategy, by_memory, simulated):
    (found,) = ways(pair(by_memory=by_memory), simulated=simulated)[strategy]
    sides = [
        effect(Node(MI300X), "all_gather", 256 * MIB, strategy, bound, simulated=simulated)
        for bound in BOUNDS
    ]
    comm = (1 - by_memory) * sides[0].comm + by_memory * sides[1].comm
    compute = (1 - by_memory) * sides[0].compute + by_memory * sides[1].compute
    library = gpu().base(pair(by_memory=by_memory)).compute
    assert found.beside == pytest.approx(max(1.0, comm))
    assert found.compute == pytest.approx(max(1.0, library * compute))
    assert found.settings.get("units") == sides[by_memory > 0.5].units


def test_engines_leave_products_alone():
    (found,) = ways(pair(by_memory=0.0))["dma"]
    assert found.compute == 1.0
    assert found.why == "engines leave the units to kernels"
    sums = ways(pair("all_reduce"))["dma"][0]
    assert sums.why == "engines leave the units to kernels, sums stay on units"


@pytest.mark.parametrize(("by_memory", "mask"), [(0.4, False), (0.6, True)])
def test_a_mask_beside_engines_needs_a_reason(by_memory, mask):
    (found,) = ways(pair(by_memory=by_memory))["dma+partition"]
    assert isinstance(found, Way) is mask
    if mask:
        assert found.settings["units"] > 0
    else:
        assert found.why == "a mask would gain nothing: memory has room for both"


def test_settings_say_what_the_strategy_needs():
    assert _settings("priority", None) == {"priority": 1}
    assert _settings("priority+partition", 8) == {"priority": 1, "units": 8}
    assert _settings("partition", 8) == {"units": 8}
    assert _settings("partition", None) == {}
    assert _settings("dma", 8) == {}
    assert _settings("partition", 0) == {"units": 0}


# Where the pair itself is priced.


@pytest.mark.parametrize("simulated", [True, False])
def test_a_product_that_is_all_that_runs_beside_is_priced_with_the_collective(simulated):
    found = ways(pair(gemm=PRODUCT), simulated=simulated)
    assert tuple(found) == STRATEGIES  # nothing else can be compared with these
    priced = pair_prices(Node(MI300X), pair().what, PRODUCT, simulated=simulated)
    for strategy, (way,) in found.items():
        assert way.pair == priced[strategy].seconds
        assert (way.beside, way.compute) == priced[strategy].effect[:2] or way.serial
    base = gpu(simulated=simulated).base(pair(gemm=PRODUCT))
    assert base.pair == priced["concurrent"].seconds


def test_without_prices_of_the_pair_all_ways_are_looked_at():
    assert set(STRATEGIES) < set(ways(pair(gemm=replace(PRODUCT, dtype="fp4"))))
    assert all(way.pair is None for (way, *_) in ways().values() if isinstance(way, Way))


# Engines.


@pytest.mark.parametrize(("kind", "needed"), [("all_gather", 7), ("all_to_all", 8)])
def test_an_engine_for_each_peer_is_needed_and_one_more_for_what_stays(kind, needed):
    (found, *_) = ways(pair(kind), engines=needed)["dma"]
    assert found.settings["engines"] == needed
    told = why("dma", pair(kind), engines=needed - 1)
    assert told == f"needs {needed} engines, {needed - 1} are allowed"


def test_without_engines_nothing_is_done_by_them():
    none = replace(MI300X, name="none", device=replace(MI300X.require_device(), dma=None))
    assert why("dma", machine=none).endswith("has no DMA engines")
    assert why("dma", pair("gather"), none).endswith("has no DMA engines")
    assert len(ways(pair(nbytes=MIB), none)["dma"]) == 1


@pytest.mark.parametrize("simulated", [True, False])
@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_what_engines_cannot_do_is_refused_with_the_reason(kind, simulated):
    told = why("dma", pair(kind), simulated=simulated)
    assert "no collective that weft runs beside a GEMM" in told


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all"])
def test_small_messages_are_fed_to_engines_in_several_ways(kind):
    small = ways(pair(kind, 32 * MIB))["dma"][1:]
    assert {way.settings["algorithm"].partition("+")[0] for way in small} >= {"dma", "dma-b2b"}
    for way in small:
        name = way.settings["algorithm"]
        assert way.settings["engines"] == (1 if "b2b" in name else 7)
        assert way.alone.seconds == seconds_by(MI300X, kind, name, 32 * MIB)
        assert way.alone.high / way.alone.seconds == pytest.approx(1.35)
        assert (way.beside, way.compute) == (1.0, 1.0)
        assert name in way.why
    assert len(ways(pair(kind, 32 * MIB + 1))["dma"]) == 1


def test_engines_that_are_not_allowed_are_not_fed():
    fed = ways(pair(nbytes=MIB), engines=1)["dma"][1:]
    assert {way.settings["engines"] for way in fed} == {1}
    seven = ways(pair(nbytes=MIB), engines=7)["dma"][1:]
    assert {way.settings["engines"] for way in seven} == {1, 7}
    assert [type(way) for way in ways(pair(nbytes=MIB), engines=0)["dma"]] == [Alternative]


def test_other_collectives_are_not_fed_to_engines():
    assert len(ways(pair("all_reduce", MIB))["dma"]) == 1


# What a device has.


GPUS = [name for name in platform_names() if not platform(name).require_device().is_core]
KINDS = ("all_gather", "all_to_all", "reduce_scatter", "all_reduce", "broadcast")


@pytest.mark.parametrize("simulated", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GPUS)
def test_ways_by_engines_are_of_engines_that_the_device_has(name, kind, simulated):
    machine = quiet(name)
    dma = machine.require_device().require_dma()
    ranks = tuple(range(machine.num_ranks))
    for nbytes in (MIB, 256 * MIB):
        asked = pair(kind, nbytes, ranks)
        for each in ways(asked, machine, simulated=simulated).get("dma", ()):
            if isinstance(each, Alternative):
                assert "copy engines of" in each.why
                continue
            assert kind in dma.collectives
            assert 1 <= each.settings["engines"] <= dma.num_engines
            algorithm = each.settings.get("algorithm")
            assert algorithm is None or set(ENGINE_FEATURES[algorithm]) <= set(dma.features)


def test_engines_of_an_h100_copy_and_do_not_add():
    h100 = quiet("h100-8")
    assert ways(machine=h100)["dma"][0].settings == {"engines": 3}
    for strategy in ("dma", "dma+partition"):
        for kind in ("reduce_scatter", "all_reduce"):
            assert "they copy, they do not add" in why(strategy, pair(kind), h100)
        assert "do no broadcast" in why(strategy, pair("broadcast"), h100)
    assert isinstance(ways(pair("reduce_scatter"))["dma"][0], Way)  # by mori.ccl on MI300X


def test_engines_of_an_h100_are_fed_by_what_cuda_has():
    found = ways(pair("all_to_all", MIB), quiet("h100-8"))["dma"][1:]
    fed = [each.settings["algorithm"] for each in found if isinstance(each, Way)]
    assert fed == ["dma", "dma-b2b"]
    (told,) = [each.why for each in found if isinstance(each, Alternative)]
    assert "no swap, prelaunch" in told


# Between nodes.


ACROSS = (0, 8, 16, 24)


def test_between_nodes_engines_do_not_reach():
    told = "engines reach the memory of one node, its ranks are on several"
    assert why("dma", pair(ranks=ACROSS), NODES) == told
    assert why("dma+partition", pair(ranks=ACROSS), NODES) == told
    assert len(ways(pair(ranks=ACROSS, nbytes=MIB), NODES)["dma"]) == 1


def test_between_nodes_a_mask_is_as_wide_as_the_port_needs():
    asked = pair(ranks=ACROSS, by_memory=0.0)
    device = NODES.require_device()
    for strategy in ("partition", "priority+partition"):
        (found,) = ways(asked, NODES)[strategy]
        rate = asked.what.nbytes / found.alone.seconds
        units = found.settings["units"]
        assert units % device.unit_grain == 0
        assert (units - 8) * device.unit_copy_rate < rate <= units * device.unit_copy_rate
        assert found.compute == pytest.approx(1 + units / (304 - units))
        assert found.beside == 1.0
        assert found.why == "its ranks are on several nodes, so priced by the units it holds"


@pytest.mark.parametrize(
    ("rate", "units"),
    [(10.5e9, 8), (200e9, 24), (1e12, 32)],  # at least a grain, at most what fills the links
)
def test_a_mask_between_nodes_has_bounds(rate, units):
    (found,) = [gpu(NODES)._by_units(pair(ranks=ACROSS, nbytes=10**9), 1e9 / rate)]
    assert found.units == units
    assert found.comm == 1.0


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


def test_effects_between_nodes_are_not_known():
    with pytest.raises(WeftError, match="several nodes"):
        gpu(NODES)._effect(pair(ranks=ACROSS), "partition")
    assert gpu(NODES)._effect(pair(ranks=ACROSS), "priority").comm == 1.0


# Other algorithms.


def switched(rate=100e9):
    return replace(MI300X, name=f"switched{rate:g}", levels=(Level("switch", 8, rate, 1e-6),))


def algorithms(found):
    return {
        way.settings["algorithm"]: way for way in found["concurrent"] if "algorithm" in way.settings
    }


def test_another_algorithm_is_offered_where_it_is_clearly_faster_than_what_is_simulated():
    machine = switched()
    asked = pair("broadcast", 64 * MIB)
    alone = Prices(machine, "no library").collective_price(asked.what, ALL).seconds
    names = ("direct", "ring", "tree", "binomial", "halving-doubling", "scatter-allgather")
    took = {name: seconds_by(machine, "broadcast", name, 64 * MIB) for name in names}
    faster = {n: s for n, s in took.items() if s is not None and s < 0.95 * alone}
    found = algorithms(ways(asked, machine))
    assert {name: way.alone.seconds for name, way in found.items()} == faster
    base = gpu(machine).base(asked)
    assert all((way.beside, way.compute) == (base.beside, base.compute) for way in found.values())


def test_a_faster_algorithm_is_found_among_those_that_libraries_do_not_have():
    # A tree needs few steps where a latency is all there is.
    far = replace(switched(), name="far", levels=(Level("switch", 8, 1e12, 1e-3),))
    asked = pair("broadcast", 1024)
    found = algorithms(ways(asked, far))
    alone = gpu(far).base(asked).alone.seconds
    assert found
    assert all(way.alone.seconds < 0.95 * alone for way in found.values())


def test_what_was_measured_has_no_peer_in_a_model():
    measured = ways(pair("all_reduce", 1024, dtype="bf16"), MACHINE, library="nccl")
    assert measured["concurrent"][0].alone.model == "nccl, measured"
    assert algorithms(measured) == {}


def test_a_message_has_no_algorithms():
    assert algorithms(ways(pair("send", 1024, (0, 1)))) == {}


# Fused with what makes it, and encoded.


def test_a_fused_operator_sends_slices_of_what_its_maker_makes():
    (found,) = ways(pair("all_reduce", makers=((0, 0),), made_by="up"))["fused"]
    assert (found.slices, found.producer) == (16, 1.0625)  # half of the worst: 12.5 %
    assert found.settings == {"fused": "up + all_reduce"}
    assert found.why == "slices of up leave while it computes the next"
    assert found.alone == gpu().base(pair("all_reduce")).alone


def test_what_cannot_be_fused_says_why():
    assert why("fused", pair(makers=((0, 0),))) == "no fused operator ends in a all_gather"
    assert why("fused", pair("all_reduce")).startswith("no lookup or product right before it")


def test_codecs_run_beside_kernels_as_the_library_does():
    found = ways(error=1.0, codecs=("int8", "fp8"))["compressed"]
    base = gpu().base(pair())
    assert [(way.beside, way.compute) for way in found] == [(1.0, base.compute)] * 2
    assert why("compressed", pair("all_reduce")).startswith("sums need values")
