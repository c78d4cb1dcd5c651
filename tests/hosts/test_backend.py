"""What the backend does beyond what Gloo does, across hosts; and what only long tensors show."""

import pytest

from tests.hosts.long_checks import LONG
from tests.hosts.ranks import few, on_hosts
from tests.torch.backend_checks import CHECKS, run_checks

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(240)]

# On several hosts a tensor of one rank's heap is still what it is: ordinary memory elsewhere.
NAMES = [*CHECKS, *LONG]
SPLITS = {"alone": ("a", "b"), "two by two": ("a", "a", "b", "b"), "mixed": ("a", "b", "a")}


def run_all(names):
    CHECKS.update(LONG)
    return run_checks(names)


@pytest.fixture(scope="module", params=few(SPLITS, "two by two"))
def checked(request):
    return on_hosts(run_all, request.param, NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_checks(checked, name):
    assert not any(result[name] for result in checked), "\n".join(r[name] for r in checked)
