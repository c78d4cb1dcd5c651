"""What the backend does beyond what Gloo does, across hosts; and what only long tensors show."""

import pytest
import torch
import torch.distributed as dist

from tests.hosts.long_checks import LONG
from tests.hosts.ranks import few, on_hosts
from tests.torch.backend_checks import CHECKS, run_checks
from weft.torch.backend.group_functions import weft_group
from weft.torch.hosts.multi_host_channel import MultiHostChannel

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


def many_tags():
    """Send with a new tag for each message, some before and some after they are asked for."""
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    out = torch.zeros(1)
    for tag in range(100):
        if (tag + rank) % 2:
            dist.recv(out, peer, tag=tag)
        else:
            dist.send(torch.tensor([float(tag)]), peer, tag=tag)
    channel = weft_group(None).channel
    assert isinstance(channel, MultiHostChannel)
    (connection,) = channel._p2p._connections.values()
    return len(connection._wanted), len(connection._announced), float(out)


def test_a_connection_keeps_nothing_for_tags_without_messages():
    assert on_hosts(many_tags, ("a", "b")) == [(0, 0, 99.0), (0, 0, 98.0)]
