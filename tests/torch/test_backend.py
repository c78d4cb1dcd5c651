"""What the backend does beyond what Gloo does."""

import pytest

from tests.torch.backend_checks import CHECKS, run_checks
from tests.torch.ranks import on_ranks

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]


@pytest.fixture(
    scope="module",
    params=[pytest.param(2, id="2 ranks"), pytest.param(3, id="3 ranks", marks=pytest.mark.slow)],
)
def checked(request):
    return on_ranks(run_checks, request.param, list(CHECKS))


@pytest.mark.parametrize("name", CHECKS)
def test_checks(checked, name):
    assert not any(result[name] for result in checked), "\n".join(r[name] for r in checked)
