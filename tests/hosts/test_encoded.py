"""Broadcasts that are encoded between hosts: results, exactness and errors."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weft.torch
from tests.hosts.ranks import few, on_hosts
from tests.torch.test_faults import error_of
from weft.collectives.chain import piece_bytes
from weft.compress import frame
from weft.errors import UnknownNameError, UsageError
from weft.torch.hosts import inter_host_encoded
from weft.torch.hosts.chunk_size import LONGER, TRIES, ChunkChoice, ChunkSizeTuner

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]

COUNT = 700_001  # elements: many pieces, and a rest
LOSSLESS = ("pack", "p2p+pack", "blosc2:lz4", "delta+pack")
LOSSY = ("int8:64", "bf16", "zfp:16", "delta+int8")
SPLITS = {"two by two": tuple("aabb"), "in a row": tuple("abc"), "mixed": tuple("abab")}


def weights(seed, count=COUNT, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, generator=generator) * 0.02).to(dtype)


def broadcast(codec, root, seed, **options):
    weft.torch.compress(broadcast=codec, **options)
    x = weights(seed) if dist.get_rank() == root else torch.zeros(COUNT)
    dist.broadcast(x, root)
    return x


def all_broadcasts():
    """Return what is wrong, by codec."""
    last, wrong = dist.get_world_size() - 1, {}
    for codec in (*LOSSLESS, *LOSSY):
        for seed, root in enumerate((0, last, last)):
            x, want = broadcast(codec, root, seed), weights(seed)
            same = [torch.empty_like(x) for _ in range(last + 1)]
            dist.all_gather(same, x)
            if codec in LOSSLESS and not torch.equal(x, want):
                wrong[codec] = "not the root's bytes"
            if not all(torch.equal(x, other) for other in same):
                wrong[codec] = "ranks differ"
            if not torch.allclose(x, want, atol=1e-3, rtol=0.02):
                wrong[codec] = "too far"
    return wrong


@pytest.fixture(scope="module", params=few(SPLITS, "two by two"))
def wrong(request):
    return on_hosts(all_broadcasts, request.param)


@pytest.mark.parametrize("codec", [*LOSSLESS, *LOSSY])
def test_every_rank_holds_what_the_codec_leaves(wrong, codec):
    assert [each.get(codec) for each in wrong] == [None] * len(wrong)


def odd_tensors():
    """Halves, strides, empty and whole numbers, and a root that keeps what it had."""
    rank, wrong = dist.get_rank(), []
    weft.torch.compress(broadcast="pack", least=0)
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64):
        for count in (0, 1, 99_999):
            want = weights(1, count, dtype) if dtype.is_floating_point else torch.arange(count)
            x = want.clone() if rank == 0 else torch.zeros_like(want)
            dist.broadcast(x, 0)
            wrong += [f"{dtype} {count}"] if not torch.equal(x, want) else []
    want = weights(2, 60_000).view(200, 300).t()
    x = want.clone(memory_format=torch.preserve_format) if rank == 0 else torch.zeros(200, 300).t()
    dist.broadcast(x, 0)
    wrong += [] if torch.equal(x, want) else ["strides"]
    x = broadcast("int8", 0, 3, keep_root=True)
    wrong += [] if torch.equal(x, weights(3)) == (rank == 0) else ["the root's"]
    work = dist.broadcast(y := weights(4) if rank == 0 else torch.zeros(COUNT), 0, async_op=True)
    work.wait()
    wrong += [] if torch.allclose(y, weights(4), atol=1e-3) else ["in the background"]
    return wrong


def test_what_cannot_be_encoded_goes_as_it_is():
    assert on_hosts(odd_tensors, "aab") == [[], [], []]


def left_alone():
    """Return what comes of a lossy codec for tensors that it is not for."""
    held = weights(1) if dist.get_rank() == 0 else torch.zeros(COUNT)
    weft.torch.compress(broadcast="int4", exclude=[held])
    dist.broadcast(held, 0)
    weft.torch.compress(broadcast="int4", exclude=lambda x: x.dim() == 1)
    flat = weights(2) if dist.get_rank() == 0 else torch.zeros(COUNT)
    dist.broadcast(flat, 0)
    weft.torch.compress(broadcast=None)
    plain = weights(3) if dist.get_rank() == 0 else torch.zeros(COUNT)
    dist.broadcast(plain, 0)
    return [torch.equal(x, weights(seed)) for seed, x in enumerate((held, flat, plain), 1)]


@pytest.mark.slow
def test_what_is_excluded_is_exact():
    assert on_hosts(left_alone, "ab") == [[True] * 3] * 2


def started_model():
    torch.manual_seed(dist.get_rank())
    weft.torch.compress(broadcast="int8:256")
    linear, norm = torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300)
    before = linear.weight.detach().clone()
    DistributedDataParallel(torch.nn.Sequential(linear, norm))
    return before, linear.weight.detach(), norm.running_var


def test_ddp_starts_all_replicas_with_the_same_rounded_weights():
    (before, first, _), (_, second, var) = on_hosts(started_model, "ab")
    assert torch.equal(first, second)
    assert not torch.equal(first, before)
    assert torch.allclose(first, before, atol=1e-3)
    assert torch.equal(var, torch.ones(300))


def monkey(owner: Any, name: str, value: Any) -> None:
    """Change weft in this rank, which ends with its test."""
    setattr(owner, name, value)


def other_codec():
    weft.torch.compress(broadcast=("pack", "int8")[dist.get_rank()])
    dist.broadcast(torch.zeros(COUNT), 0)


def other_version():
    monkey(inter_host_encoded, "FRAME_VERSION", 1 + dist.get_rank())
    weft.torch.compress(broadcast="pack")
    dist.broadcast(torch.zeros(COUNT), 0)


@pytest.mark.parametrize(
    "function", [other_codec, pytest.param(other_version, marks=pytest.mark.slow)]
)
def test_ranks_with_different_codecs_get_an_error(function):
    for name, text in on_hosts(error_of, "ab", function):
        assert name == "DisagreeError"
        assert "pack" in text


def changed_on_its_way():
    """The host in the middle passes on what is not what it got."""
    forward_piece = inter_host_encoded._EncodedBroadcast._forward_piece

    def spoil(line: Any, number: int, chunk: Any) -> None:
        if dist.get_rank() == 1 and number == 3:
            chunk[100] ^= 1
        forward_piece(line, number, chunk)

    monkey(inter_host_encoded._EncodedBroadcast, "_forward_piece", spoil)
    weft.torch.compress(broadcast="pack")
    dist.broadcast(weights(1), 0)


def test_a_changed_chunk_is_named_on_every_rank():
    for name, text in on_hosts(error_of, "abc", changed_on_its_way):
        assert name == "RunError"
        assert "cannot decode chunk 3 of " in text
        assert "rank 1" in text or "rank 2" in text
        assert "its checksum is wrong" in text
        assert "broadcast(2800004 bytes" in text


def longer_than_its_slot():
    frame_bytes = frame.frame_bytes
    monkey(inter_host_encoded, "frame_bytes", lambda slot: frame_bytes(slot) + (1 << 40))
    weft.torch.compress(broadcast="pack")
    dist.broadcast(weights(1), 0)


@pytest.mark.slow
def test_a_frame_of_an_impossible_length_is_refused():
    for name, text in on_hosts(error_of, "ab", longer_than_its_slot):
        assert name == "RunError"
        assert "cannot decode chunk 0 of " in text


def wrong_names():
    said = []
    for options in ({"broadcast": "pak"}, {"broadcast": "delta+pack", "keep_root": True}):
        try:
            weft.torch.compress(**options)
        except (UnknownNameError, UsageError) as error:
            said.append(str(error))
    return said


def test_wrong_codecs_are_refused_at_once():
    for said in on_hosts(wrong_names, "ab"):
        assert "codec 'pak'" in said[0]
        assert "'delta+pack' does not support keep_root" in said[1]


def test_pieces_grow_with_the_root_of_the_size():
    assert piece_bytes(64 << 20) == 2 * piece_bytes(16 << 20)
    assert piece_bytes(16 << 20, 4) == 2 * piece_bytes(16 << 20, 1)
    assert piece_bytes(1000) == 64 << 10
    assert piece_bytes(1 << 40, 4) == 2 << 20
    assert piece_bytes(4 << 20, 1000) == 2 << 20  # nearly nothing is sent: two are enough
    assert piece_bytes(1 << 40, 1000) == 32 << 20


WHAT, USUAL = (16 << 20, "none"), piece_bytes(16 << 20)


def after(chunk_sizes, rate):
    """Wait until it has learned how fast the links are."""
    for _ in range(TRIES):
        cut = chunk_sizes.choose(WHAT[0])
        assert cut == ChunkChoice(USUAL, timed=True)
        chunk_sizes.record(WHAT, cut, WHAT[0], WHAT[0] / rate)
    return chunk_sizes


def test_on_fast_links_longer_pieces_are_tried_and_the_best_is_kept():
    chunk_sizes, tried, best = after(ChunkSizeTuner(), 500e6), [], 16 * USUAL
    for _ in range(TRIES * len(LONGER)):
        cut = chunk_sizes.choose(WHAT[0])
        assert cut.timed
        tried.append(cut.nbytes)
        chunk_sizes.record(WHAT, cut, WHAT[0], 0.03 if cut.nbytes == best else 0.04)
    assert tried == [factor * USUAL for factor in LONGER for _ in range(TRIES)]
    assert chunk_sizes.choose(WHAT[0]) == ChunkChoice(best)
    assert chunk_sizes.choose(WHAT[0], 4.0, "int8") == ChunkChoice(
        piece_bytes(WHAT[0], 4.0), timed=True
    )


def test_on_slow_links_and_for_short_tensors_pieces_are_the_models():
    chunk_sizes = after(ChunkSizeTuner(), 100e6)
    assert chunk_sizes.choose(WHAT[0]) == ChunkChoice(USUAL)
    # Every rank chooses it for itself.
    assert chunk_sizes.choose(1 << 20) == ChunkChoice(piece_bytes(1 << 20))
    chunk_sizes.record((1 << 20, "none"), chunk_sizes.choose(1 << 20), 1 << 20, 1e-9)
    assert chunk_sizes.last == piece_bytes(1 << 20)
