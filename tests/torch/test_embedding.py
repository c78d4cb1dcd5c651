"""Embeddings over ranks: values, gradients, and what is refused."""

import pytest
import torch
import torch.distributed as dist

from tests.torch.embedding_checks import CHECKS, run_checks
from tests.torch.ranks import on_ranks
from weft.errors import RunError
from weft.torch import EmbeddingAllToAll

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


def _look_up(indices, offsets):
    """Return what went wrong: rank 0 has the wrong bags, the other one right ones."""
    bag = EmbeddingAllToAll({"clicks": (10, 8), "b": (5, 4)}, sharding=["table-wise", "table-wise"])
    wrong = "clicks" in bag.weights
    try:
        if wrong:
            bag(torch.tensor(indices), torch.tensor(offsets))
        else:
            for _ in range(2):  # all that this rank wanted may have come before the wrong one
                bag(torch.tensor([1, 2, 3, 4]), torch.tensor([0, 1, 2, 3, 4]))
        dist.barrier()  # one whose own rows had come is told in its next call
    except (RunError, IndexError) as error:
        return wrong, type(error).__name__, str(error)
    return wrong, "", "nothing"


@pytest.mark.parametrize(
    ("indices", "offsets", "said"),
    [
        (
            [0, 9, 10, 3],
            [0, 1, 2, 3, 4],
            "table 'clicks', sample 2: index 10 is not one of 10 rows",
        ),
        (
            [0, -1, 1, 3],
            [0, 1, 2, 3, 4],
            "table 'clicks', sample 1: index -1 is not one of 10 rows",
        ),
        ([0, 1, 2, 3], [0, 2, 1, 3, 4], "table 'clicks', sample 1: offsets go from 2 to 1"),
        ([0, 1, 2, 3], [0, 1, 2, 3, 9], "offsets go from 3 to 9 among 4 indices"),
    ],
)
def test_wrong_bags_are_named_on_every_rank(indices, offsets, said):
    for wrong, kind, text in on_ranks(_look_up, 2, indices, offsets):
        assert said in text
        assert kind == ("BagError" if wrong else "RunError")
