"""The group of another device is given what the weft group is: calls, options, timeouts, ends."""

from datetime import timedelta

import pytest

from tests.torch import device_group_cases
from tests.torch.ranks import on_ranks
from weft.torch.backend.c10d import method_of

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def noted():
    return on_ranks(device_group_cases.reach_group, 2)


@pytest.mark.parametrize("name", device_group_cases.COALESCED)
def test_coalesced_calls_and_barriers_reach_the_group_of_their_device(noted, name):
    assert [found[name] for found, _, _ in noted] == [device_group_cases.COALESCED[name][1]] * 2


def test_a_new_timeout_reaches_the_group_of_each_device(noted):
    for _, told, reduced in noted:
        assert told == ["set_timeout"]
        assert reduced == [2.0] * 3


def test_the_group_of_a_device_is_given_the_options_of_the_caller():
    for is_same, others in on_ranks(device_group_cases.keep_options, 2):
        assert is_same
        assert others == [2, [0, 1], timedelta(seconds=40)]


@pytest.mark.parametrize("how", ["shutdown", "abort"])
def test_the_group_of_a_device_ends_as_its_group_does(how):
    assert on_ranks(device_group_cases.end, 2, how) == [[how], [how]]


class Older:
    """A group with the names that torch had before 2.13, as a Backend has them."""

    def _allgather_base(self):
        return "gathered"


def test_a_call_is_found_by_its_older_name():
    assert method_of(Older(), "all_gather_single")() == "gathered"


def test_a_device_without_a_backend_is_named():
    for text in on_ranks(device_group_cases.without_backend, 2):
        assert "'meta'" in text
