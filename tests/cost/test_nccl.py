"""Prices of library collectives: physics, marks, and refusals."""

from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.collectives.opaque import opaque
from weft.cost.nccl import fitted_seconds, library_price, links_of, on_curve, own_seconds
from weft.errors import PlatformError, UnknownNameError, UsageError
from weft.hardware import Level, platform
from weft.hardware.libraries import Fit, library, library_devices
from weft.schedule import Cost, Kernel, Program, from_json, to_json
from weft.schedule.check import check
from weft.simulator import simulate

pytestmark = pytest.mark.thorough

KINDS = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
DTYPES = ("float16", "int8")
devices = st.sampled_from(library_devices("nccl"))
kinds, dtypes = st.sampled_from(KINDS), st.sampled_from(DTYPES)
sizes = st.integers(1, 1 << 36)
counts = st.sampled_from((2, 4, 8))
rising = st.lists(st.tuples(st.integers(1, 1 << 30), st.floats(1e-7, 1e-2)), min_size=1, max_size=6)


@lru_cache
def node(device, num_ranks=8):
    return platform(f"{device}-8", num_ranks=num_ranks)


def faster_links(machine, factor):
    levels = (replace(level, rate=level.rate * factor) for level in machine.levels)
    return replace(machine, levels=tuple(levels))


@given(device=devices, kind=kinds, dtype=dtypes, count=counts, nbytes=sizes, more=sizes)
def test_more_bytes_are_never_faster(device, kind, dtype, count, nbytes, more):
    machine = node(device, count)
    less = library_price(machine, kind, nbytes, dtype=dtype).seconds
    assert 0 < less <= library_price(machine, kind, nbytes + more, dtype=dtype).seconds


@given(device=devices, kind=kinds, count=counts, nbytes=sizes, factor=st.floats(1, 100))
def test_faster_links_are_never_slower(device, kind, count, nbytes, factor):
    machine = node(device, count)
    before = library_price(machine, kind, nbytes).seconds
    after = library_price(faster_links(machine, factor), kind, nbytes).seconds
    assert after <= before
    assert after >= before / factor * (1 - 1e-9)  # what does not move bytes gains nothing


@pytest.mark.parametrize("kind", KINDS)
def test_large_transfers_follow_the_links(kind):
    machine = platform("h100-8")
    half = faster_links(machine, 0.5)
    prices = [library_price(m, kind, 1 << 34).seconds for m in (machine, half)]
    assert prices[1] == pytest.approx(2 * prices[0], rel=0.01)


@given(curve=rising, nbytes=st.floats(0, 2**32))
def test_a_curve_is_flat_before_its_first_place_and_straight_behind_its_last(curve, nbytes):
    places = sorted(dict(curve).items())
    values = sorted(seconds for _, seconds in places)
    curve = tuple((nbytes, value) for (nbytes, _), value in zip(places, values, strict=True))
    assert on_curve(curve, 0) == curve[0][1]
    assert all(on_curve(curve, x) == pytest.approx(y) for x, y in curve)
    assert on_curve(curve, nbytes) <= on_curve(curve, nbytes * 2 + 1) * (1 + 1e-12)


@given(device=devices, kind=kinds, count=counts, nbytes=st.sampled_from((1024, 1 << 20, 1 << 30)))
def test_the_simulator_gives_the_price(device, kind, count, nbytes):
    machine = node(device, count)
    price = library_price(machine, kind, nbytes)
    schedule = opaque("nccl", kind, count, nbytes, seconds=own_seconds(machine, price))
    timeline = simulate(schedule, machine)
    assert timeline.seconds == pytest.approx(price.seconds, rel=1e-9)
    assert timeline.computation.max() == 0  # a library's kernel is communication
    assert timeline.exposed.max() == pytest.approx(price.seconds, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_library_schedule_keeps_the_rules_and_goes_through_a_file(kind):
    schedule = opaque("nccl", kind, 4, 1000, seconds=1e-3)
    check(schedule)
    assert from_json(to_json(schedule)) == schedule


def test_rendezvous_and_launch_are_part_of_what_was_measured():
    machine = platform("h100-8")
    price = library_price(machine, "all_reduce", 1 << 20)
    device, level = machine.require_device(), machine.levels[0]
    own = own_seconds(machine, price)
    assert own + device.launch + device.signal + level.latency == pytest.approx(price.seconds)
    slow = replace(machine, levels=(replace(level, latency=1.0),))
    assert own_seconds(slow, price) == 0.0


def test_a_rank_that_comes_late_holds_up_the_others():
    machine, work = platform("h100-8", num_ranks=2), Cost(seconds=1e-3)
    alone = opaque("nccl", "all_reduce", 2, 1 << 20, seconds=1e-4)
    (program,) = alone.programs
    (queue,) = program.queues
    busy = replace(queue, commands=(Kernel("work", work), *queue.commands))
    late = replace(alone, programs=(Program((0,), (queue,)), Program((1,), (busy,))))
    timeline = simulate(late, machine)
    assert timeline.seconds == pytest.approx(1e-3 + 1e-4, rel=0.01)
    assert timeline.waiting[0] == pytest.approx(1e-3, rel=0.01)


def test_the_newest_version_is_taken_unless_another_is_asked_for():
    machine = platform("h100-8")
    newest = library_price(machine, "all_gather", 1 << 20).fit
    assert newest.version == library("nccl", "h100").versions[-1] == "2.29.2"
    older = library_price(machine, "all_gather", 1 << 20, version="2.23").fit
    assert older.version == "2.23"


def test_the_switch_reduces_floats_and_not_bytes():
    machine = platform("h100-8")
    floats, bytes_ = (library_price(machine, "all_reduce", 1 << 29, dtype=d) for d in DTYPES)
    assert isinstance(floats.fit, Fit)
    assert isinstance(bytes_.fit, Fit)
    assert floats.fit.in_switch
    assert not bytes_.fit.in_switch
    assert floats.seconds < 0.85 * bytes_.seconds


def test_the_switch_is_left_aside_where_not_all_ranks_take_part():
    fit = library_price(platform("h100-8"), "all_reduce", 1 << 29).fit
    assert isinstance(fit, Fit)
    outside = replace(fit, in_switch=())
    assert fitted_seconds(fit, 4, 1 << 29) == fitted_seconds(outside, 4, 1 << 29)
    assert fitted_seconds(fit, 8, 1 << 29) < fitted_seconds(outside, 8, 1 << 29)


def test_what_was_not_measured_is_marked():
    machine = platform("h100-8")
    assert library_price(machine, "all_gather", 1 << 20).note == ""
    large = library_price(machine, "all_gather", 1 << 30)
    assert large.note == "outside measured sizes (512 B to 512 MiB)"
    between = library_price(platform("h100-8", num_ranks=6), "all_gather", 6 << 20)
    assert between.note == "between measured numbers of ranks (2, 4, 8)"
    assert library_price(platform("h200-8"), "all_gather", 1 << 20).note.startswith(
        "inherited: curves of h1"
    )


def test_ranks_between_the_measured_lie_between_them():
    prices = [
        library_price(platform("a100-8", num_ranks=n), "all_gather", n << 20).seconds
        for n in range(2, 9)
    ]
    assert prices == sorted(prices)


def test_a_healthy_node_of_l40s_is_as_fast_as_a_pair_of_the_broken_one():
    healthy = library_price(platform("l40s-8"), "all_gather", 1 << 29).seconds
    assert 7 / 8 * (1 << 29) / healthy == pytest.approx(19.6e9, rel=0.1)


@pytest.mark.parametrize(("mib", "milliseconds"), [(64, 0.375), (1024, 4.769), (4096, 18.49)])
def test_a_broadcast_inside_a_node_is_a_pipelined_ring(mib, milliseconds):
    # nccl-tests on 8 A100 in SuperBench: nothing was fitted to it
    seconds = library_price(platform("a100-8"), "broadcast", mib << 20).seconds
    assert seconds == pytest.approx(milliseconds * 1e-3, rel=0.17)


def test_no_pcie_switch_reduces():
    seconds = library_price(platform("h100-pcie-8"), "all_reduce", 1 << 30).seconds
    assert 1.75 * (1 << 30) / seconds < 39.2e9 * 1.05


def test_a_rack_goes_on_where_the_tables_end():
    found = library_price(platform("gb200-nvl72"), "all_gather", 72 << 24)
    eight = library_price(platform("b200-8"), "all_gather", 8 << 24)
    assert "beyond measured numbers of ranks (2, 4, 8)" in found.note
    assert found.high > eight.high
    assert 64 / 8 * eight.seconds < found.seconds < 72 / 7 * eight.seconds


def test_v100_reaches_the_published_bus_rate():
    # 120-135 GB/s, published of a DGX-1
    seconds = library_price(platform("v100-8"), "all_reduce", 1 << 30).seconds
    assert 120e9 < 1.75 * (1 << 30) / seconds < 135e9


def test_rings_use_all_links_of_a_rank():
    assert links_of(platform("v100-8"), "all_reduce") == pytest.approx(130e9)
    for kind in KINDS:
        assert links_of(platform("h100-8x4"), kind) == links_of(platform("h100-8"), kind)


def two_levels(name, inner, outer):
    """Return a node of eight in two halves, with a rate inside and between them."""
    node = platform(f"{name}-8")
    levels = (replace(node.levels[0], size=4, rate=inner), Level("switch", 2, outer))
    return replace(node, levels=levels, node_levels=2)


def test_a_slow_level_between_halves_makes_a_node_slower():
    whole = platform("h100-8")
    rate = whole.levels[0].rate
    for kind in KINDS:
        flat = library_price(whole, kind, 1 << 30).seconds
        halves = [
            library_price(two_levels("h100", rate, outer), kind, 1 << 30).seconds
            for outer in (rate / 100, rate / 20, rate / 8)
        ]
        assert flat < halves[2] < halves[1] < halves[0]


@given(kind=kinds, outer=st.floats(1e9, 1e12))
def test_a_node_cut_in_halves_is_never_faster_than_a_whole_one(kind, outer):
    whole = platform("h100-8")
    halves = two_levels("h100", whole.levels[0].rate, outer)
    assert links_of(halves, kind) <= links_of(whole, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_whose_devices_are_all_as_close_as_a_pair_is_faster(kind):
    node = platform("l40s-8-nop2p")
    flat = replace(node, levels=(replace(node.levels[0], size=8),), node_levels=1)
    slow, fast = (library_price(each, kind, 1 << 26).seconds for each in (node, flat))
    assert fast < 0.2 * slow  # pairs reach 19.6 GB/s, halves of the node 1.17 GB/s


@given(
    device=st.sampled_from(("h100", "v100", "l40s")),
    kind=kinds,
    inner=st.floats(1e9, 1e12),
    outer=st.floats(1e9, 1e12),
    factor=st.floats(1.0, 10.0),
)
def test_a_faster_level_never_makes_a_node_slower(device, kind, inner, outer, factor):
    node = two_levels(device, inner, outer)
    base = links_of(node, kind)
    for index in range(2):
        levels = list(node.levels)
        levels[index] = replace(levels[index], rate=levels[index].rate * factor)
        assert links_of(replace(node, levels=tuple(levels)), kind) >= base


@pytest.mark.parametrize(
    ("spec", "kind", "options", "words", "hint"),
    [
        ("h100-8", "gather", {}, "not measured for gather", "all_gather"),
        ("h100-8", "all_gather", {"version": "1.0"}, "nccl 1.0 was not measured", "2.29.2"),
        ("h100-8", "all_reduce", {"version": "2.23"}, "2.23 all_reduce", "other versions"),
        ("h100-8x2", "all_gather", {"version": "2.23"}, "2.23 was not measured between", "2.29.2"),
        ("cpux2", "all_gather", {}, "inside one node, cpux2 has 2", "hierarchical"),
        ("switch(8)@1GB/s", "all_gather", {}, "a network without any", "h100"),
    ],
)
def test_what_cannot_be_priced_says_why(spec, kind, options, words, hint):
    with pytest.raises(UsageError, match=words) as caught:
        library_price(platform(spec), kind, 1 << 20, **options)
    assert hint in caught.value.hint


def test_a_machine_fitted_count_by_count_has_nothing_between():
    machine = platform("l40s-8-nop2p")
    three = replace(machine, levels=(replace(machine.levels[0], size=3),), node_levels=1)
    with pytest.raises(UsageError, match="not measured on 3 ranks") as caught:
        library_price(three, "all_gather", 3 << 10)
    assert "2, 4, 8" in caught.value.hint


def test_unknown_libraries_and_devices_are_named():
    with pytest.raises(UnknownNameError, match="unknown library 'ncl'") as caught:
        library_price(platform("h100-8"), "all_gather", 1, name="ncl")
    assert "nccl" in caught.value.hint
    with pytest.raises(PlatformError, match="not measured on mi300x"):
        library_price(platform("mi300x-8"), "all_gather", 1)


@pytest.mark.parametrize("server", ["vllm", "sglang", "trtllm"])
def test_a_server_has_small_all_reduces_of_its_own_and_leaves_the_rest_to_nccl(server):
    node, cluster = platform("h100-8"), platform("h100-8x2")
    small = library_price(node, "all_reduce", 16 << 10, name=server)
    assert small.seconds < 0.5 * library_price(node, "all_reduce", 16 << 10).seconds
    for machine, kind in ((node, "all_gather"), (cluster, "all_reduce")):
        found = library_price(machine, kind, 1 << 20, name=server)
        assert found.seconds == library_price(machine, kind, 1 << 20).seconds
        assert found.note.startswith(f"{server} leaves it to nccl")
    with pytest.raises(UsageError, match=r"9\.9\.9"):
        library_price(node, "all_reduce", 1 << 20, name=server, version="9.9.9")


def test_a_version_that_a_sibling_has_changes_what_it_changes_there():
    """SGLang 0.5.14 has other kernels than 0.5.9 and 0.5.10, which are alike on B200."""
    node, nbytes = platform("gb200-nvl72").resized(4), 1 << 20
    oldest, old, new = (
        library_price(node, "all_reduce", nbytes, name="sglang", version=each)
        for each in ("0.5.9", "0.5.10", "0.5.14")
    )
    assert "0.5.9" not in library("sglang", "gb200").versions
    assert oldest.seconds == pytest.approx(old.seconds, rel=0.15)
    assert new.seconds < 0.7 * oldest.seconds
    assert "b200" in oldest.note
