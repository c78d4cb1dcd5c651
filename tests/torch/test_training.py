"""Trainings lose the same with weft as with Gloo."""

import pytest

from tests.torch.ranks import on_ranks
from tests.torch.training_cases import TRAININGS, train_all

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def trained(request):
    return on_ranks(train_all, request.param)


@pytest.mark.parametrize("name", TRAININGS)
def test_losses_are_those_of_gloo(trained, name):
    for by_weft, by_gloo in (result[name] for result in trained):
        assert by_weft == pytest.approx(by_gloo, rel=1e-6)
        assert by_weft[-1] != by_weft[0]
