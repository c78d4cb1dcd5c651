"""What every collective of torch.distributed returns, compared with Gloo."""

import pytest

from tests.torch.collective_cases import CASES, compare_all
from tests.torch.ranks import on_ranks

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def compared(request):
    return on_ranks(compare_all, request.param, list(CASES))


@pytest.mark.parametrize("name", CASES)
def test_gives_what_gloo_gives(compared, name):
    assert not any(result[name] for result in compared), "\n".join(r[name] for r in compared)
