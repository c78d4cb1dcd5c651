"""Trainings on several hosts lose the same with weft as with Gloo."""

import pytest

from tests.hosts.ranks import on_hosts
from tests.torch.training_cases import TRAININGS, train_all

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(240)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("ab", id="alone", marks=pytest.mark.slow),
        pytest.param("aabb", id="two by two"),
    ],
)
def trained(request):
    return on_hosts(train_all, request.param)


@pytest.mark.parametrize("name", TRAININGS)
def test_losses_are_those_of_gloo(trained, name):
    for by_weft, by_gloo in (result[name] for result in trained):
        assert by_weft == pytest.approx(by_gloo, rel=1e-6)
        assert by_weft[-1] != by_weft[0]
