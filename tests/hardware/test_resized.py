"""Cutting a platform to its first ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import PlatformError, UsageError
from weft.hardware import platform

MACHINE = platform("mi300x-8x16")


def test_all_ranks_are_the_same_platform():
    assert platform("h100-8", num_ranks=8) == platform("h100-8")


def test_four_ranks_behind_a_switch_keep_their_ports():
    four = platform("h100-8", num_ranks=4)
    assert (four.num_ranks, four.node_size) == (4, 4)
    assert four.levels[0].rate == platform("h100-8").levels[0].rate


def test_four_ranks_of_a_mesh_lose_the_links_to_the_others():
    assert platform("mi300x-8", num_ranks=4).levels[0].rate == pytest.approx(3 * 48e9)


def test_one_node_of_a_cluster_has_no_outer_level():
    assert platform("mi300x-8x16", num_ranks=8).levels == platform("mi300x-8").levels


@pytest.mark.parametrize(("num_ranks", "sizes"), [(1, (1,)), (2, (2,)), (4, (2, 2)), (8, (2, 4))])
def test_the_inner_levels_fill_first(num_ranks, sizes):
    cut = platform("mi250x-8", num_ranks=num_ranks)
    assert tuple(level.size for level in cut.levels) == sizes
    assert cut.node_size == cut.num_ranks == num_ranks


@given(nodes=st.integers(1, 16))
def test_whole_nodes_can_be_kept(nodes):
    cut = MACHINE.resized(8 * nodes)
    assert (cut.num_ranks, cut.node_size, cut.num_nodes) == (8 * nodes, 8, nodes)
    assert {key for key in cut.sources if key.startswith("levels")} == {
        f"levels.{level}.{key}"
        for level in range(len(cut.levels))
        for key in ("rate", "latency", "rated")
        if (level, key) != (1, "rated")
    }


def test_more_ranks_than_there_are_says_how_to_get_them():
    with pytest.raises(UsageError, match="mi300x-8 has 8 ranks, 12 were asked for") as caught:
        platform("mi300x-8", num_ranks=12)
    assert caught.value.hint == "Use 1 to 8, or mi300x-8x2 for that many nodes."


def test_a_network_has_no_larger_one_to_offer():
    with pytest.raises(UsageError, match="has 8 ranks, 9 were asked for") as caught:
        platform("switch(8)@1GB/s", num_ranks=9)
    assert caught.value.hint == "Use 1 to 8."


@pytest.mark.parametrize("num_ranks", [0, -1])
def test_less_than_one_rank_is_refused(num_ranks):
    with pytest.raises(UsageError, match=f"has 8 ranks, {num_ranks} were asked for") as caught:
        platform("h100-8", num_ranks=num_ranks)
    assert caught.value.hint == "Use 1 to 8."


def test_half_a_node_next_to_whole_ones_is_refused():
    message = "12 ranks do not fill whole groups of 8 on mi300x-8x16"
    with pytest.raises(UsageError, match=message) as caught:
        MACHINE.resized(12)
    assert caught.value.hint == "Use 8 or 16."


def test_a_network_has_no_nic_to_make_clusters_with():
    with pytest.raises(PlatformError, match=r"has no nic, so 2 of it cannot be joined"):
        platform("switch(8)@1GB/s").cluster(2)
