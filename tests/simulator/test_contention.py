"""Who shares what with whom: times worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator.paper import (
    DEVICE,
    GB,
    HOST,
    MB,
    US,
    bare,
    close,
    hear,
    launch,
    machine,
    made,
    matmul,
    move,
    queue,
    spans,
    tell,
    without_costs,
)
from weft.hardware import Level, platform
from weft.schedule import SELF, Broadcast, Cost, Encode, Kernel, Reduce, Slice, Swap
from weft.simulator import simulate

MS = 1e-3
FREE = without_costs()


def ends(schedule, machine):
    """The ends of all commands, by (rank, queue, id)."""
    return {place: end for place, (_, end) in spans(schedule, machine).items()}


def test_two_flows_on_one_link_take_turns_in_equal_parts():
    # 10 MB and 30 MB leave one port of 10 GB/s: both at 5 GB/s until the smaller
    # has gone, then the larger alone.
    sends = made(3, {0: (queue("nic0", move(0, 1, 10 * MB)), queue("nic1", move(0, 2, 30 * MB)))})
    found = ends(sends, bare(Level("switch", 3, 10 * GB)))
    assert found[0, "nic0", 0] == close(2 * MS)
    assert found[0, "nic1", 0] == close(4 * MS)


def test_the_two_directions_of_a_port_do_not_share():
    both = made(2, {r: (queue("nic0", move(r, 1 - r, 10 * MB)),) for r in range(2)})
    assert simulate(both, bare(Level("switch", 2, 10 * GB))).seconds == close(1 * MS)


def test_a_flow_that_crosses_two_bottlenecks_leaves_the_rest_to_others():
    # Into rank 2 come three flows, out of rank 0 two: 0 -> 2 gets a third of the port of 2,
    # so 0 -> 3 has two thirds of the port of 0.
    sends = {
        0: (queue("nic0", move(0, 2, 10 * MB)), queue("nic1", move(0, 3, 20 * MB))),
        1: (queue("nic0", move(1, 2, 10 * MB)),),
        3: (queue("nic0", move(3, 2, 10 * MB)),),
    }
    found = ends(made(4, sends), bare(Level("switch", 4, 10 * GB)))
    assert list(found.values()) == close([3 * MS] * 4)


def test_when_one_bottleneck_ends_the_other_decides():
    sends = {
        0: (queue("nic0", move(0, 2, 10 * MB)), queue("nic1", move(0, 3, 10 * MB))),
        1: (queue("nic0", move(1, 2, 5 * MB)),),
    }
    found = ends(made(4, sends), bare(Level("switch", 4, 10 * GB)))
    assert found[1, "nic0", 0] == close(1 * MS)  # all at 5 GB/s
    # Then 0 -> 2 and 0 -> 3 still share the port of rank 0.
    assert found[0, "nic0", 0] == found[0, "nic1", 0] == close(2 * MS)


def test_a_ring_link_is_shared_by_all_that_pass_it():
    # 0 -> 2 passes the link 1 -> 2, so it and 1 -> 2 have half of it each.
    sends = {0: (queue("nic0", move(0, 2, 10 * MB)),), 1: (queue("nic0", move(1, 2, 5 * MB)),)}
    found = ends(made(5, sends), bare(Level("ring", 5, 10 * GB)))
    assert found[1, "nic0", 0] == close(1 * MS)
    assert found[0, "nic0", 0] == close(1.5 * MS)


def test_a_mesh_has_a_link_of_its_own_for_each_pair():
    sends = {0: (queue("nic0", move(0, 1, 10 * MB)), queue("nic1", move(0, 2, 10 * MB)))}
    found = ends(made(3, sends), bare(Level("mesh", 3, 10 * GB)))
    assert list(found.values()) == close([2 * MS] * 2)  # 5 GB/s a link, whatever the others do


def test_a_path_through_two_levels_is_as_slow_as_the_slower():
    inner, outer = Level("switch", 2, 20 * GB), Level("switch", 2, 5 * GB)
    send = made(4, {0: (queue("nic0", move(0, 3, 10 * MB)),)})
    assert simulate(send, bare(inner, outer)).seconds == close(2 * MS)


def test_a_path_settles_the_inner_level_first():
    # 0 -> 3 goes 0 -> 1 inside, then 1 -> 3 outside: it shares the outer port of 1, not of 0.
    inner, outer = Level("switch", 2, 20 * GB), Level("switch", 2, 10 * GB)
    across = queue("nic0", move(0, 3, 10 * MB))
    together = {0: (across,), 1: (queue("nic0", move(1, 3, 10 * MB)),)}
    apart = {0: (across, queue("nic1", move(0, 2, 10 * MB)))}
    assert simulate(made(4, together), bare(inner, outer)).seconds == close(2 * MS)
    assert simulate(made(4, apart), bare(inner, outer)).seconds == close(1 * MS)


def test_a_kernel_and_a_copy_share_the_memory():
    # 100 GB/s: the kernel alone takes 10 ms; the copy reads at the link's 10 GB/s for 20 ms.
    # Together the kernel gets the other 90 GB/s.
    kernel = matmul(1 * MS, nbytes=1000 * MB)
    work = made(2, {0: (queue("stream0", kernel), queue("copy0", move(0, 1, 200 * MB)))})
    found = ends(work, machine(device=FREE))
    assert found[0, "copy0", 0] == close(20 * MS)
    assert found[0, "stream0", 0] == close(1000 / 90 * MS)


@pytest.mark.parametrize(
    ("seconds", "nbytes"), [(3 * MS, 100 * MB), (1 * MS, 300 * MB), (3 * MS, 0)]
)
def test_a_kernel_takes_its_memory_time_or_its_unit_time(seconds, nbytes):
    work = made(1, {0: (queue("stream0", matmul(seconds, nbytes=nbytes)),)})
    assert simulate(work, machine(1, device=FREE)).seconds == close(3 * MS)


def test_a_kernel_that_does_nothing_takes_no_time():
    work = made(1, {0: (queue("stream0", Kernel("nothing")),)})
    assert simulate(work, machine(1, device=FREE)).seconds == 0


def test_two_kernels_share_the_units():
    work = made(1, {0: (queue("stream0", matmul(1 * MS)), queue("stream1", matmul(2 * MS)))})
    found = ends(work, machine(1, device=FREE))
    assert found[0, "stream1", 0] == close(3 * MS)


def test_a_local_copy_reads_and_writes_one_memory():
    work = made(1, {0: (queue("stream0", launch((move(0, 0, 100 * MB),), units=100)),)})
    assert simulate(work, machine(1, device=FREE)).seconds == close(2 * MS)


def test_local_copies_leave_the_launch_to_what_uses_no_memory_here():
    # 50 of the 100 GB/s of the launch are all that memory allows the local copy; the transfer
    # from another memory into a third one has the rest.
    lanes = ((move(0, 0, 100 * MB),), (move(1, 2, 100 * MB),))
    work = made(3, {0: (queue("stream0", launch(*lanes, units=100)),)})
    found = ends(work, machine(3, rate=1000 * GB, device=FREE))
    assert found[0, "stream0", 1] == found[0, "stream0", 2] == close(2 * MS)


def test_a_launch_moves_as_fast_as_its_units():
    work = made(2, {0: (queue("stream0", launch((move(0, 1, 10 * MB),), units=5)),)})
    assert simulate(work, machine(device=FREE)).seconds == close(2 * MS)


def test_lanes_share_the_units_of_their_launch():
    lanes = ((move(0, 1, 10 * MB),), (move(0, 2, 10 * MB),))
    work = made(3, {0: (queue("stream0", launch(*lanes, units=5)),)})
    assert simulate(work, machine(3, device=FREE)).seconds == close(4 * MS)


def test_a_launch_takes_units_that_fill_the_links_when_nobody_says_how_many():
    send = launch((move(0, 1, 10 * MB),))
    work = made(2, {0: (queue("stream0", send), queue("stream1", matmul(0.9 * MS)))})
    found = ends(work, machine(device=FREE))
    assert found[0, "stream0", 0] == close(1 * MS)  # 10 units of 1 GB/s
    assert found[0, "stream1", 0] == close(1 * MS)  # 90 of 100 units are left


def test_a_kernel_is_slowed_by_the_units_that_a_launch_holds():
    # 40 units for 2 ms; the kernel has 60 of 100 that long, then all.
    send = launch((move(0, 1, 20 * MB),), units=40)
    work = made(2, {0: (queue("stream0", send), queue("stream1", matmul(2 * MS)))})
    found = ends(work, machine(device=FREE))
    assert found[0, "stream0", 0] == close(2 * MS)
    assert found[0, "stream1", 0] == close(2 * MS + 0.8 * MS)


def test_a_kernel_waits_where_a_launch_holds_all_units():
    send = launch((move(0, 1, 20 * MB),), units=100)
    work = made(2, {0: (queue("stream0", send), queue("stream1", matmul(2 * MS)))})
    assert ends(work, machine(device=FREE))[0, "stream1", 0] == close(4 * MS)


def test_a_kernel_in_a_lane_runs_on_the_units_of_its_launch():
    work = made(1, {0: (queue("stream0", launch((matmul(1 * MS),), units=50)),)})
    assert simulate(work, machine(1, device=FREE)).seconds == close(2 * MS)
    everything = made(1, {0: (queue("stream0", launch((matmul(1 * MS),), units=100)),)})
    assert simulate(everything, machine(1, device=FREE)).seconds == close(1 * MS)


def test_launches_that_do_not_fit_together_run_one_after_another():
    send = launch((move(0, 1, 10 * MB),), units=60)
    work = made(2, {0: (queue("stream0", send), queue("stream1", send))})
    found = spans(work, machine(device=FREE))
    assert found[0, "stream0", 0] == (0, close(1 * MS))
    assert found[0, "stream1", 0] == (close(1 * MS), close(2 * MS))


def test_launches_that_fit_run_side_by_side():
    send = launch((move(0, 1, 10 * MB),), units=50)
    work = made(2, {0: (queue("stream0", send), queue("stream1", send))})
    found = spans(work, machine(device=FREE))
    assert found[0, "stream0", 0] == found[0, "stream1", 0] == (0, close(2 * MS))


def test_units_go_to_the_higher_priority_first_then_in_order():
    send = launch((move(0, 1, 10 * MB),), units=60)
    streams = {"stream0": 0, "stream1": 0, "stream2": 1, "stream3": 0}
    queues = (queue(name, send, priority=priority) for name, priority in streams.items())
    found = spans(made(2, {0: tuple(queues)}), machine(device=FREE))
    started = sorted((start, name) for (_, name, n), (start, _) in found.items() if n == 0)
    assert [name for _, name in started] == ["stream0", "stream2", "stream1", "stream3"]


def test_a_small_launch_does_not_overtake_a_large_one_of_its_priority():
    large = launch((move(0, 1, 10 * MB),), units=60)
    small = launch((move(0, 1, 10 * MB),), units=10)
    work = made(2, {0: (queue("stream0", large), queue("stream1", large), queue("stream2", small))})
    found = spans(work, machine(device=FREE))
    assert found[0, "stream2", 0][0] == close(1 * MS)


def test_a_launch_holds_its_units_while_it_waits():
    waits, other = launch((hear(),), units=60), launch((tell(1, 2),), units=60)
    work = {
        0: (queue("stream0", waits), queue("stream1", other)),
        1: (queue("stream0", matmul(3 * MS), tell(0)),),
    }
    found = spans(made(2, work), machine(device=FREE))
    assert found[0, "stream1", 0][0] == close(3 * MS)


def test_a_launch_without_lanes_returns_its_units():
    work = made(1, {0: (queue("stream0", launch(units=100), matmul(1 * MS)),)})
    assert simulate(work, machine(1, device=FREE)).seconds == close(1 * MS)


def test_a_mask_confines_a_kernel_to_its_units():
    work = made(1, {0: (queue("stream0", matmul(1 * MS), units=(75, 100)),)})
    assert simulate(work, machine(1, device=FREE)).seconds == close(4 * MS)


def test_a_mask_leaves_the_other_units_to_others():
    masked = queue("stream0", matmul(1 * MS, units=20), units=(0, 20))
    other = queue("stream1", matmul(1 * MS, units=80))
    assert simulate(made(1, {0: (masked, other)}), machine(1, device=FREE)).seconds == close(1 * MS)


def test_a_mask_bounds_the_units_of_a_launch():
    send = launch((move(0, 1, 10 * MB),))
    work = made(2, {0: (queue("stream0", send, units=(0, 5)),)})
    assert simulate(work, machine(device=FREE)).seconds == close(2 * MS)


def test_a_reduction_reads_every_source_where_it_lies():
    # Rank 0 reads 10 MB from each of two others through its port: 2 ms.
    sources = tuple(Slice(rank, "x", 0, 10 * MB) for rank in range(3))
    add = Reduce(sources, Slice(0, "y", 0, 10 * MB))
    work = made(3, {0: (queue("stream0", launch((add,), units=100)),)})
    assert simulate(work, machine(3, device=FREE)).seconds == close(2 * MS)


def test_a_kernel_reads_and_writes_other_ranks_over_their_ports():
    reads = (Slice(1, "x", 0, 10 * MB), Slice(1, "x", 0, 0))
    kernel = Kernel("k", reads=reads, writes=(Slice(1, "y", 0, 30 * MB),))
    work = made(2, {0: (queue("stream0", kernel),)})
    assert simulate(work, machine(device=FREE)).seconds == close(3 * MS)


def test_a_swap_uses_both_directions_at_once():
    swap = Swap(Slice(0, "x", 0, 10 * MB), Slice(1, "y", 0, 10 * MB))
    work = made(2, {0: (queue("nic0", swap),)})
    assert simulate(work, machine(device=FREE)).seconds == close(1 * MS)


def test_a_broadcast_leaves_by_one_port_once_for_each_destination():
    dsts = (Slice(1, "y", 0, 10 * MB), Slice(2, "y", 0, 10 * MB))
    work = made(3, {0: (queue("nic0", Broadcast(Slice(0, "x", 0, 10 * MB), dsts)),)})
    assert simulate(work, machine(3, device=FREE)).seconds == close(2 * MS)


def test_a_copy_of_a_slot_moves_what_the_codec_left():
    slot = Slice(SELF, "x", 0, 10 * MB)
    pack = Encode(Slice(SELF, "y", 0, 10 * MB - 8), slot, "fp16", "uint8")
    plain = made(2, {0: (queue("stream0", pack), queue("nic0", move(0, 1, 10 * MB)))})
    packed = replace(plain, ratios=(("fp16", 2.0),))
    network = bare(Level("switch", 2, 10 * GB))
    # Encoding takes as long in both.
    saved = simulate(plain, network).seconds - simulate(packed, network).seconds
    assert saved == close(0.5 * MS)


def test_without_peer_links_every_byte_passes_the_hosts_memory_twice():
    # Four flows of 10 GB/s ask 80 GB/s of a host memory of 40.
    staged = replace(machine(8, device=FREE), staged=True, host=HOST)
    work = made(8, {r: (queue("nic0", move(r, r + 4, 10 * MB)),) for r in range(4)})
    assert simulate(work, machine(8, device=FREE)).seconds == close(1 * MS)
    assert simulate(work, staged).seconds == close(2 * MS)


def test_eight_l40s_are_held_up_by_their_links_then_by_the_host():
    found = platform("l40s-8-nop2p")
    assert found.host is not None
    one = made(8, {0: (queue("nic0", move(0, 1, 100 * MB)),)})
    assert simulate(one, found).seconds == close(100 * MB / found.levels[0].rate)
    slow = replace(found, host=replace(found.host, memory_rate=100 * GB))
    all_of_them = made(8, {r: (queue("nic0", move(r, r ^ 1, 100 * MB)),) for r in range(8)})
    assert simulate(all_of_them, slow).seconds == close(8 * 2 * 100 * MB / (100 * GB))


def test_a_launch_and_a_bare_kernel_pay_for_being_started():
    work = made(1, {0: (queue("stream0", matmul(1 * MS), launch(units=1), matmul(1 * MS)),)})
    assert simulate(work, machine(1)).seconds == close(2 * MS + 3 * US)


def test_an_opaque_kernel_takes_its_seconds_and_shares_nothing():
    known = Kernel("library", Cost("library", flops=1e15, nbytes=1 << 30, seconds=1 * MS))
    work = made(1, {0: (queue("stream0", known), queue("stream1", matmul(1 * MS)))})
    timeline = simulate(work, machine(1))
    assert timeline.seconds == close(1 * MS + DEVICE.launch)
    assert timeline.exposed.max() < 1 * US  # it counts as communication, hidden by the matmul


def test_a_kernel_in_a_lane_is_already_running():
    work = made(1, {0: (queue("stream0", launch((matmul(1 * MS),), units=100)),)})
    assert simulate(work, machine(1)).seconds == close(1 * MS + DEVICE.launch)
