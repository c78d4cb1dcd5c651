"""What every collective returns across hosts, compared with Gloo; and training on them."""

import pytest

from tests.hosts.ranks import few, on_hosts
from tests.torch.collective_cases import CASES, compare_all

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(240)]

SPLITS = {
    "alone": ("a", "b"),
    "two by two": ("a", "a", "b", "b"),
    "uneven": ("a", "b", "b", "c"),
    "mixed": ("a", "b", "a"),
}


@pytest.fixture(scope="module", params=few(SPLITS, "mixed"))
def compared(request):
    return on_hosts(compare_all, request.param, list(CASES))


@pytest.mark.parametrize("name", CASES)
def test_gives_what_gloo_gives(compared, name):
    assert not any(result[name] for result in compared), "\n".join(r[name] for r in compared)
