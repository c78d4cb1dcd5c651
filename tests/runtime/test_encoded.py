"""Broadcasts with a codec between real processes: who holds what, and what is refused."""

import numpy as np
import pytest

from tests.runtime.cases import SIZE, own
from tests.runtime.test_faults import error_of, stream
from weft.collectives import collective
from weft.compress import codec_of
from weft.compress.codec_registry import encoded
from weft.runtime import RawMemory, prepare, run, spawn
from weft.schedule import Decode

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]

LOSSLESS = ("pack", "none", "blosc2:lz4", "delta+pack")
LOSSY = ("int8:64", "bf16", "zfp:16", "delta+int8")
SIZES = (0, 1, 1000, 150_001)


def weights(count, seed=0):
    return np.random.default_rng(seed).normal(0, 0.02, count).astype(np.float32)


def held_after(world, codec, count, **options):
    """Return the root's first values, and what this rank holds after each of two broadcasts."""
    held = []
    for seed in range(2):
        x = weights(count, seed) if world.rank == 1 else np.full(count, np.nan, np.float32)
        work = world.broadcast(x, 1, codec=codec, **options)
        if work is not None:
            work.wait()
        held.append(x)
    return held


def all_broadcasts(world):
    """Broadcast everything that the tests look at."""
    return {
        (codec, count): held_after(world, codec, count)
        for codec in (*LOSSLESS, *LOSSY)
        for count in SIZES
    }


@pytest.fixture(scope="module")
def answers():
    return spawn(all_broadcasts, 3, timeout=50)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("codec", LOSSLESS)
def test_without_loss_all_hold_the_roots_bytes(answers, codec, count):
    for answer in answers:
        for seed, held in enumerate(answer[codec, count]):
            assert np.array_equal(held.view(np.uint8), weights(count, seed).view(np.uint8))


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("codec", LOSSY)
def test_with_loss_all_hold_the_same_bytes(answers, codec, count):
    for seed in range(2):
        first = answers[0][codec, count][seed]
        assert all(np.array_equal(answer[codec, count][seed], first) for answer in answers)
        assert np.allclose(first, weights(count, seed), atol=1e-3, rtol=0.02)
        assert count < 1000 or not np.array_equal(first, weights(count, seed))


def keeping_root(world):
    return held_after(world, "int8", 5000, keep_root=True)


def test_the_root_may_keep_what_it_had():
    others, root, last = (held[0] for held in spawn(keeping_root, 3, timeout=30))
    assert np.array_equal(root, weights(5000))
    assert np.array_equal(others, last)
    assert not np.array_equal(others, root)


def in_background(world):
    return [held_after(world, codec, 70_000, async_op=True)[1] for codec in ("pack", "zfp:16")]


def test_libraries_of_python_work_in_the_background_too():
    for exact, near in spawn(in_background, 2, timeout=30):
        assert np.array_equal(exact, weights(70_000, 1))
        assert np.allclose(near, weights(70_000, 1), atol=1e-3)


def other_types(world):
    values = weights(999).astype(np.float16)
    half = values.copy() if world.rank == 0 else np.zeros_like(values)
    world.broadcast(half, codec="pack")
    words = values.view(np.uint16)
    brain = words.copy() if world.rank == 0 else np.zeros_like(words)
    memory = RawMemory(brain.ctypes.data, brain.nbytes, "bfloat16")
    world.broadcast(memory, codec="pack")
    world.broadcast(memory, codec="delta+pack")
    return np.array_equal(half, values), np.array_equal(brain, words)


def test_halves_go_as_well():
    assert spawn(other_types, 2, timeout=30) == [(True, True)] * 2


def refused(world):
    x, whole = weights(100), np.arange(100)
    return [
        error_of(lambda: world.broadcast(whole, codec="pack")),
        error_of(lambda: world.broadcast(x, codec="pak")),
        error_of(lambda: world.broadcast(x, codec="pack", algorithm="tree")),
        error_of(lambda: world.broadcast(x, codec="delta+pack", async_op=True)),
        error_of(lambda: world.broadcast(x[::2], codec="pack")),
        error_of(lambda: world.broadcast(x, 7, codec="pack")),
        error_of(lambda: world.broadcast(x, codec="pack")),  # and the world is as sound as before
    ]


def test_invalid_calls_raise_and_leave_the_world_intact():
    wanted = (
        "int64",
        "codec 'pak'",
        "got algorithm 'tree'",
        "async_op: not supported by codec 'delta+pack'",
    )
    for *answer, last in spawn(refused, 2, timeout=30):
        for found, text in zip(answer, (*wanted, "not contiguous", "got 7"), strict=True):
            assert text in found[1]
        assert last == ("", "")


def decode_garbage(world):
    decode = Decode(own("in", 0, SIZE), own("out", 8, 32), "pack", "float32")
    garbage = np.zeros(SIZE, np.uint8)
    garbage[:8] = np.frombuffer(np.int64(SIZE - 8).tobytes(), np.uint8)
    garbage[8:10], garbage[10] = (0x77, 0x66), 9  # a frame, of a later version
    return error_of(lambda: run(stream(decode), world, {"in": garbage}))


def test_a_broken_chunk_is_named_and_not_used():
    for kind, text in spawn(decode_garbage, 2, timeout=30):
        assert kind == "RunError"
        assert "cannot decode the chunk at byte 8: it has another version" in text
        assert "Decode" in text


def test_frames_are_those_of_the_codec():
    """What run puts into a slot is what the codec itself makes."""
    values = weights(4096)
    frame = encoded(codec_of("pack", "float32"), values)
    (slot, size), _ = spawn(slot_of, 2, timeout=30)
    assert size == len(frame)
    assert np.array_equal(slot[8 : 8 + size], frame)


def slot_of(world):
    made = collective("broadcast", "chain+pack", num_ranks=2, nbytes=4 * 4096, piece=4 * 4096)
    with prepare(made, world) as prepared:
        prepared.load({"data": weights(4096)})
        prepared.run()
        slot = prepared.buffer("slots").copy()
    return slot, int(slot[:8].view(np.int64)[0])
