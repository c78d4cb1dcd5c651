"""``weft.torch.reshard`` between meshes of one host and of several."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard

import weft.torch
from tests.hosts.ranks import few, on_hosts
from tests.torch.ranks import on_ranks
from weft.errors import UsageError

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]

SPLITS = {"one": tuple("aaaa"), "two by two": tuple("aabb"), "mixed": tuple("abab")}
CASES: list[tuple[Any, Any]] = [
    (([0, 1], [Shard(0)]), ([2, 3], [Shard(1)])),
    (([0, 1, 2], [Shard(0)]), ([3], [Replicate()])),
    (([[0, 1], [2, 3]], [Shard(0), Shard(1)]), ([0, 1, 2, 3], [Shard(0)])),
    (([3], [Replicate()]), ([[0, 1], [2, 3]], [Replicate(), Shard(1)])),
]


def local(whole, mesh, placements):
    """Return this rank's part by torch.chunk, None without one."""
    ranks = torch.tensor(mesh)
    place = (ranks == dist.get_rank()).nonzero()
    if not len(place):
        return None
    for size, at, each in zip(ranks.shape, place[0].tolist(), placements, strict=True):
        if isinstance(each, Shard):
            parts = torch.chunk(whole, size, each.dim)
            whole = parts[at] if at < len(parts) else whole.narrow(each.dim, 0, 0)
    return whole.contiguous()


def all_cases():
    wrong = []
    for shape in ((7, 10), (3, 1), (64, 129)):
        for dtype in (torch.float32, torch.bfloat16):
            whole = torch.arange(shape[0] * shape[1]).view(shape).to(dtype)
            for source, destination in CASES:
                x = local(whole, *source)
                out = weft.torch.reshard(x, shape, dtype, source, destination)
                want = local(whole, *destination)
                same = out is None if want is None else out is not None and torch.equal(out, want)
                wrong += [] if same else [(shape, dtype, source, destination)]
    return wrong


@pytest.mark.parametrize("hosts", few(SPLITS, "mixed"))
def test_every_rank_gets_its_part(hosts):
    assert on_hosts(all_cases, hosts) == [[]] * 4


def used_again():
    source, destination = CASES[0]
    resharding = weft.torch.Resharding((8, 6), torch.float32, source, destination)
    found = []
    for step in range(3):
        whole = torch.arange(48.0).view(8, 6) + step
        want = local(whole, *destination)
        out = None if want is None else torch.empty_like(want)
        got = resharding(local(whole, *source), out)
        found.append(got is out and (got is None or torch.equal(got, want)))
    resharding.close()
    return found


def test_a_resharding_is_used_again_with_the_callers_output():
    assert on_ranks(used_again, 4) == [[True] * 3] * 4


def into_its_own_input():
    """Ranks swap their shards in place: each writes what the other still reads."""
    rank, count = dist.get_rank(), 1 << 18
    ends: list[Any] = [([ranks], [Replicate(), Shard(0)]) for ranks in ([0, 1], [1, 0])]
    resharding = weft.torch.Resharding((2 * count,), torch.float32, *ends)
    found = []
    for _ in range(3):
        x = torch.full((count,), float(rank))
        resharding(x, x)
        found.append(bool((x == 1 - rank).all()))
    resharding.close()
    return found


@pytest.mark.parametrize("hosts", few({"one": ("a", "a"), "two": ("a", "b")}, "one"))
def test_the_output_may_be_the_input(hosts):
    assert on_hosts(into_its_own_input, hosts) == [[True] * 3] * 2


def conjugated():
    rank = dist.get_rank()
    x = torch.full((4, 2), complex(rank, 1)).conj()
    ends = ([0, 1], [Shard(0)]), ([0, 1], [Shard(-1)])
    out = weft.torch.reshard(x, (8, 2), x.dtype, *ends)
    assert out is not None
    return out.flatten().tolist()


def test_lazily_conjugated_shards_and_negative_dimensions_are_resharded():
    assert on_ranks(conjugated, 2) == [[0 - 1j] * 4 + [1 - 1j] * 4] * 2


def between_device_meshes():
    """DeviceMeshes have global ranks, whatever the group is."""
    group = dist.new_group([1, 2, 3])
    source, destination = DeviceMesh("cpu", [1, 2]), DeviceMesh("cpu", [3])
    rank = dist.get_rank()
    if rank == 0:
        return None
    x = torch.arange(2.0) + 2 * rank if rank < 3 else None
    to = destination, [Replicate()]
    out = weft.torch.reshard(x, (4,), torch.float32, (source, [Shard(0)]), to, group=group)
    return None if out is None else out.tolist()


def test_device_meshes_inside_a_group_have_global_ranks():
    assert on_ranks(between_device_meshes, 4) == [None, None, None, [2, 3, 4, 5]]


def refused():
    texts = []
    placements: Any
    mesh: Any
    ours, meta = torch.zeros(4, 4), torch.zeros(4, 4, device="meta")
    for x, shape, mesh, placements in (
        (torch.zeros(3, 3), (4, 4), [0], Shard(0)),
        (ours, (4, 4), [0], Partial()),
        (meta, (4, 4), [0], Shard(0)),
        (ours, (-4, -4), [0], Shard(0)),
        (ours, (4, 4), [0.7], Shard(0)),
        (ours, (4, 4), [[0], [0, 1]], Shard(0)),
    ):
        try:
            weft.torch.reshard(x, shape, torch.float32, (mesh, [placements]), ([0], [Shard(0)]))
        except UsageError as error:
            texts.append(str(error))
    return texts


def test_wrong_shards_and_partial_values_are_refused():
    shape, partial, *others = on_ranks(refused, 1)[0]
    wanted = ("on meta", "got (-4, -4)", "whole numbers", "a mesh of ranks")
    for text, part in zip(others, wanted, strict=True):
        assert part in text
    assert "x: expected (4, 4) of torch.float32 in CPU memory on rank 0 (got (3, 3)" in shape
    assert "Shard or Replicate" in partial
