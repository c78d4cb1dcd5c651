"""Layers over ranks of several hosts give what they give on one."""

import pytest

from tests.hosts.ranks import few, on_hosts
from tests.torch.embedding_checks import run_checks
from tests.torch.matmul_checks import CHECKS

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(240)]

SPLITS = {"alone": ("a", "b"), "mixed": ("a", "b", "a")}


@pytest.fixture(scope="module", params=few(SPLITS, "alone"))
def checked(request):
    return on_hosts(run_checks, request.param, list(CHECKS), CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_checks(checked, name):
    assert not any(result[name] for result in checked), "\n".join(r[name] for r in checked)
