"""Who stands where, and the order in which chunks pass: as data."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.collectives.host_leaders import (
    CHUNK,
    FIRST_ASKED,
    IN_FLIGHT,
    chunk_bytes,
    pipelined,
    receive_windows,
    runs,
)
from weft.torch.hosts.chunks import chunks
from weft.torch.hosts.host_map import HostMap, host_identity

pytestmark = pytest.mark.torch

names = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)


@given(names)
def test_every_rank_stands_on_one_host_at_one_place(names):
    hosts = HostMap.from_identities(names)
    assert [hosts.names[host] for host in hosts.of] == names
    for rank in range(len(names)):
        assert hosts.ranks[hosts.of[rank]][hosts.local_rank(rank)] == rank
    assert sorted(rank for ranks in hosts.ranks for rank in ranks) == list(range(len(names)))


@given(names)
def test_runs_hold_the_ranks_of_a_host_in_their_order(names):
    hosts = HostMap.from_identities(names)
    for host in range(hosts.num):
        found = runs(hosts.ranks[host])
        assert [r for first, last in found for r in range(first, last)] == list(hosts.ranks[host])
        assert all(after[0] > before[1] for before, after in pairwise(found))


@given(names, st.data())
def test_a_root_speaks_for_its_host_and_first_ranks_for_the_others(names, data):
    hosts = HostMap.from_identities(names)
    root = data.draw(st.integers(0, len(names) - 1))
    for host in range(hosts.num):
        expected = root if hosts.of[root] == host else min(hosts.ranks[host])
        assert hosts.leader(host, root) == expected


@given(st.integers(0, 3_000_000), st.sampled_from([torch.uint8, torch.float32, torch.complex128]))
def test_chunks_are_the_tensor_and_hold_whole_elements(count, dtype):
    x = torch.empty(count // dtype.itemsize, dtype=dtype)
    size = chunk_bytes(x.nbytes)
    parts = chunks(x, size)
    assert sum(part.numel() for part in parts) == x.numel()
    assert all(CHUNK <= part.nbytes <= size for part in parts[:-1])
    assert size % dtype.itemsize == 0


@given(st.integers(0, 20), st.integers(1, 4))
def test_blocks_pass_the_stages_in_order_and_some_apart(num_blocks, num_stages):
    passed = []
    stages = [
        lambda block, stage=stage: passed.append((stage, block)) for stage in range(num_stages)
    ]
    pipelined(num_blocks, stages)
    assert sorted(passed) == [(s, b) for s in range(num_stages) for b in range(num_blocks)]
    for stage, block in passed:
        before = passed[: passed.index((stage, block))]
        assert stage == 0 or (stage - 1, block) in before
        assert block == 0 or (stage, block - 1) in before
        ahead = sum(1 for other, _ in before if other == 0) - block
        assert ahead <= IN_FLIGHT * stage + 1


@given(st.integers(0, 300), st.integers(0, 100))
def test_receives_are_asked_for_once_each_in_time_and_few_before_the_first(num_blocks, most):
    asked = list(receive_windows(num_blocks, most))
    assert [number for some in asked for number in some] == list(range(num_blocks))
    for block, some in enumerate(asked):
        assert some.stop > block
        assert some.stop <= block + max(most, 1)
    assert not asked or len(asked[0]) <= FIRST_ASKED


def test_a_name_tells_hosts_apart_but_never_joins_machines(monkeypatch):
    monkeypatch.delenv("WEFT_HOST", raising=False)
    here = host_identity()
    monkeypatch.setenv("WEFT_HOST", "left")
    left = host_identity()
    monkeypatch.setenv("WEFT_HOST", "right")
    assert len({here, left, host_identity()}) == 3
    assert left.split()[2:] == here.split()[1:]
