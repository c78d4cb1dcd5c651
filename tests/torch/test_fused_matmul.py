"""Layers over ranks: values, gradients, what is refused, and faults inside a tile."""

import pytest
import torch
import torch.distributed as dist

from tests.torch.embedding_checks import run_checks
from tests.torch.matmul_checks import CHECKS
from tests.torch.ranks import on_ranks
from weft.errors import RunError
from weft.torch import LinearReduceScatter

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]


@pytest.fixture(
    scope="module",
    params=[pytest.param(2, id="2 ranks"), pytest.param(3, id="3 ranks", marks=pytest.mark.slow)],
)
def checked(request):
    return on_ranks(run_checks, request.param, list(CHECKS), CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_checks(checked, name):
    assert not any(result[name] for result in checked), "\n".join(r[name] for r in checked)


def _with_other_shapes():
    """Return what went wrong where one rank has twice as many rows."""
    layer = LinearReduceScatter(8, 4, fuse=True)
    try:
        layer(torch.zeros(4 * (1 + dist.get_rank()), 4))
    except RunError as error:
        return str(error)
    return "nothing"


def _with_a_fault_inside():
    """Return what went wrong where a product of one rank cannot be taken."""
    layer = LinearReduceScatter(8, 4, fuse=True)
    if dist.get_rank() == 1:
        layer.weight.data = torch.zeros(4, 4, dtype=torch.float64)
        layer._flat = lambda x, *_, **__: x  # type: ignore[method-assign] # it would be refused
    try:
        layer(torch.zeros(4, 4))
    except RunError as error:
        return str(error)
    return "nothing"


def test_ranks_that_disagree_get_an_error():
    for text in on_ranks(_with_other_shapes, 2):
        assert "LinearReduceScatter(4 x 4 x 4" in text
        assert "LinearReduceScatter(8 x 4 x 4" in text


def test_a_fault_inside_a_tile_is_raised_on_all_ranks():
    texts = on_ranks(_with_a_fault_inside, 2)
    assert all("rank 1" in text or "@1" in text for text in texts), texts
    assert all("RuntimeError" in text for text in texts), texts
