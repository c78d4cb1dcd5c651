"""Every codec: what comes out, how long a frame is, and what a broken one does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from weft._core import seal
from weft.compress import Codec, Delta, codec_of
from weft.compress.codec_registry import encoded, is_lossless
from weft.compress.frame import Octets
from weft.errors import CodecError, SizeError, UnknownNameError, UsageError

LOSSLESS = ("none", "pack", "blosc2:lz4", "blosc2:zstd")
LOSSY = {"bf16": 2**-8, "fp16": 2**-10, "int8:64": 1 / 127, "int4:32": 1 / 7, "fp8": 2**-2}
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
HEAD = 32
any_bytes = st.binary(max_size=9000)


def octets(data: bytes, dtype: str = "float32") -> Octets:
    size = len(data) // ITEM_BYTES[dtype] * ITEM_BYTES[dtype]
    chunk: Octets = np.frombuffer(data[:size], np.uint8).copy()
    return chunk


def weights(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 0.02, count).astype(np.float32)


def decoded(codec: Codec, frame: Octets, nbytes: int) -> Octets:
    chunk = np.full(nbytes, 42, np.uint8)
    codec.decode(frame, chunk)
    return chunk


@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("name", LOSSLESS)
@given(data=any_bytes)
@settings(max_examples=40, deadline=None)
def test_a_lossless_codec_gives_every_bit_back(name, dtype, data):
    codec, chunk = codec_of(name, dtype), octets(data, dtype)
    frame = encoded(codec, chunk)
    assert np.array_equal(decoded(codec, frame, len(chunk)), chunk)
    assert len(frame) <= len(chunk) + HEAD


@pytest.mark.parametrize("name", LOSSY)
@given(
    values=arrays.arrays(np.float32, st.integers(0, 700), elements=st.floats(-1000, 1000, width=32))
)
@settings(max_examples=40, deadline=None)
def test_a_lossy_codec_is_as_near_as_it_says(name, values):
    codec = codec_of(name, "float32")
    back = decoded(codec, encoded(codec, values), values.nbytes).view(np.float32)
    size = (
        np.abs(values) if ":" not in name else np.full_like(values, np.abs(values).max(initial=0))
    )
    assert (np.abs(back - values) <= LOSSY[name] * size + 1e-4).all()


@pytest.mark.parametrize("name", ["int8", "int4", "zfp:16", "pack", "bf16", "fp16", "fp8"])
def test_what_is_not_finite_stays_alone(name):
    values = weights(10_000)
    values[[5, 5000]] = [np.nan, np.inf]
    codec = codec_of(name, "float32")
    back = decoded(codec, encoded(codec, values), values.nbytes).view(np.float32)
    assert np.isnan(back[5])
    assert np.isinf(back[5000])
    assert np.isfinite(np.delete(back, [5, 5000])).all()


@pytest.mark.parametrize(
    ("name", "least"), [("pack", 1.15), ("int8", 3.9), ("int4", 7), ("bf16", 1.99), ("zfp:8", 3.9)]
)
def test_weights_shrink(name, least):
    values = weights(65_536)
    assert values.nbytes / len(encoded(codec_of(name, "float32"), values)) > least


def test_zeros_nearly_vanish_and_scattered_ones_are_a_bit_each():
    codec = codec_of("pack", "float32")
    zeros = np.zeros(65_536, np.float32)
    assert zeros.nbytes / len(encoded(codec, zeros)) > 1000
    kept = np.random.default_rng(1).random(65_536) < 0.1
    sparse = np.where(kept, weights(65_536), np.float32(0))
    assert sparse.nbytes / len(encoded(codec, sparse)) > 7.5
    masked = weights(65_536) * kept.astype(np.float32)  # half of its zeros are negative
    frame = encoded(codec, masked)
    assert masked.nbytes / len(frame) > 6
    assert np.array_equal(decoded(codec, frame, masked.nbytes), masked.view(np.uint8))


@pytest.mark.parametrize("name", [*LOSSLESS, *LOSSY, "zfp:8"])
@given(seed=st.integers(0, 2**32), data=st.data())
@settings(max_examples=20, deadline=None)
def test_a_changed_or_cut_frame_is_refused_and_writes_nothing(name, seed, data):
    codec, values = codec_of(name, "float32"), weights(300, seed)
    frame = encoded(codec, values).copy()
    at = data.draw(st.integers(0, len(frame) - 1))
    changed = frame.copy()
    changed[at] ^= data.draw(st.integers(1, 255))
    for wrong in (changed, frame[:at]):
        chunk = np.full(values.nbytes, 42, np.uint8)
        with pytest.raises(CodecError):
            codec.decode(wrong, chunk)
        assert (chunk == 42).all()


def test_the_error_says_what_is_wrong():
    pack, int8 = codec_of("pack", "float32"), codec_of("int8", "float32")
    frame, chunk = encoded(pack, weights(100)), np.empty(400, np.uint8)
    with pytest.raises(CodecError, match="encoded by another codec") as caught:
        int8.decode(frame, chunk)
    assert "same codec" in caught.value.hint
    with pytest.raises(CodecError, match="another size"):
        pack.decode(frame, chunk[:-4])
    older = frame.copy()
    older[2] = 0
    with pytest.raises(CodecError, match="another version"):
        pack.decode(older, chunk)
    with pytest.raises(CodecError, match="truncated"):
        pack.decode(frame[:7], chunk)


def test_wrong_names_are_told():
    with pytest.raises(UnknownNameError, match="codec 'pak'") as caught:
        codec_of("pak", "float32")
    assert "pack" in caught.value.hint
    with pytest.raises(UsageError, match="int64") as integers:
        codec_of("int8", "int64")
    assert "none" in integers.value.hint
    for name in ("int8:7", "int8:many", "pack:3", "zfp:99", "zfp:x", "blosc2:gzip"):
        with pytest.raises(UsageError):
            codec_of(name, "float32")


@pytest.mark.parametrize("name", [*LOSSLESS, "int8:64", "zfp:8", "bf16"])
def test_a_codec_is_made_again_from_its_name(name):
    codec = codec_of(name, "float32")
    assert codec_of(codec.name, codec.dtype).name == codec.name
    assert is_lossless(codec.name) == (name in LOSSLESS)


def test_what_changed_is_little():
    now = weights(65_536)
    sender, receiver = (Delta("delta+pack", "float32", now.nbytes) for _ in range(2))
    frame = np.empty(sender.room(now.nbytes), np.uint8)
    chunk = np.empty(now.nbytes, np.uint8)
    rng = np.random.default_rng(2)
    for step in range(3):
        size = sender.encode(now.view(np.uint8), frame)
        receiver.decode(frame[:size], chunk)
        assert np.array_equal(chunk, now.view(np.uint8))
        assert step == 0 or now.nbytes / size > 8
        changed = rng.random(len(now)) < 0.05
        now = np.where(changed, now * np.float32(1.01), now).astype(np.float32)


def test_errors_of_a_lossy_delta_do_not_grow():
    now = weights(4096)
    sender, receiver = (Delta("delta+int8", "float32", now.nbytes) for _ in range(2))
    frame = np.empty(sender.room(now.nbytes), np.uint8)
    half = now.nbytes // 2
    for step in range(20):
        now = now + weights(4096, step) * np.float32(0.01)
        chunk = np.empty(now.nbytes, np.uint8)
        for at in (0, half):
            size = sender.encode(now.view(np.uint8)[at : at + half], frame, at)
            receiver.decode(frame[:size], chunk[at : at + half], at)
        assert np.array_equal(sender.held, receiver.held)
        assert np.abs(chunk.view(np.float32) - now).max() < 1e-3


@pytest.mark.parametrize("name", ["int8", "bf16", "pack"])
def test_a_delta_leads_back_from_what_is_not_finite(name):
    sender, receiver = (Delta(f"delta+{name}", "float32", 400) for _ in range(2))
    out, back = np.empty(sender.room(400), np.uint8), np.zeros(400, np.uint8)
    for value in (-np.inf, -np.inf, np.nan, 0.5):
        now = np.full(100, 0.5, np.float32)
        now[7] = value
        receiver.decode(out[: sender.encode(now.view(np.uint8), out)], back)
        np.testing.assert_allclose(back.view(np.float32), now, atol=5e-3)
        assert np.array_equal(sender.held, receiver.held)


def test_a_delta_knows_its_bounds():
    with pytest.raises(UsageError, match="delta codec"):
        Delta("pack", "float32", 8)
    with pytest.raises(UsageError, match="delta codec"):
        Delta("delta+delta+pack", "float32", 8)
    with pytest.raises(UsageError, match="float32"):
        Delta("delta+int8", "bfloat16", 8)
    delta = Delta("delta+pack", "float32", 8)
    with pytest.raises(SizeError, match="outside"):
        delta.encode(np.zeros(8, np.uint8), np.zeros(100, np.uint8), 4)


def test_frames_of_pack_before_blocks_had_sizes_still_decode():
    values = np.random.default_rng(3).normal(0, 0.02, 3000).astype(np.float32)
    codec = codec_of("pack", "float32")
    frame = encoded(codec, values)
    blocks = -(-len(values) // 1024)
    older = np.concatenate([frame[:HEAD], frame[HEAD + 2 * blocks :]])
    seal(older, 1, 1, 0, values.nbytes, len(older) - HEAD)  # mode 0: blocks alone
    back = np.empty(values.nbytes, np.uint8)
    codec.decode(older, back)
    assert np.array_equal(back.view(np.float32), values)
    assert frame[5] == 2


@pytest.mark.parametrize("at", [0, 1, 2])
def test_sizes_of_blocks_that_do_not_add_up_are_invalid(at):
    values = np.random.default_rng(4).normal(0, 0.02, 3000).astype(np.float32)
    codec = codec_of("pack", "float32")
    frame = encoded(codec, values).copy()
    frame[HEAD + 2 * at] += 1  # one block longer, another shorter: the sum is right
    frame[HEAD + 2 * ((at + 1) % 3)] -= 1
    seal(frame, 1, 1, 0, values.nbytes, len(frame) - HEAD, 2)
    with pytest.raises(CodecError, match="content is invalid"):
        codec.decode(frame, np.empty(values.nbytes, np.uint8))


@pytest.mark.parametrize("name", ["zfp", "zfp:8", "pack", "int8", "blosc2:zstd"])
@pytest.mark.parametrize("nbytes", [1, 6, 4097])
def test_a_chunk_that_ends_inside_a_value_comes_back(name, nbytes):
    codec, chunk = codec_of(name, "float32"), np.arange(nbytes, dtype=np.uint8)
    chunk[: nbytes // 4 * 4].view(np.float32)[:] = 1.0
    frame, back = np.empty(codec.room(nbytes), np.uint8), np.empty_like(chunk)
    size = codec.encode(chunk, frame)
    codec.decode(frame[:size], back)
    assert (back == chunk).all()


def test_a_lossy_delta_of_parts_of_values_is_refused():
    with pytest.raises(SizeError, match="6 bytes are no whole values"):
        Delta("delta+int8", "float32", 6)
