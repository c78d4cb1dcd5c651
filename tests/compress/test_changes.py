"""Lists of changed values: exact, short where few changed, and safe against wrong input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft._core import (
    FRAME_HEAD,
    FrameStatus,
    apply_changes,
    changes_room,
    check_changes,
    encode_changes,
)
from weft.compress import Delta

WORDS = {2: np.uint16, 4: np.uint32}
COUNT = 100_003  # several blocks, and a rest


def changed(seed, count, share, word, *, by_one):
    """Return random words before and after a change."""
    rng = np.random.default_rng(seed)
    before = rng.integers(0, 1 << 16, count).astype(WORDS[word])
    mask = rng.random(count) < share
    by = rng.choice([1, -1], count) if by_one else rng.integers(1, 1 << 15, count)
    after = np.where(mask, before + by, before).astype(WORDS[word])
    return before.view(np.uint8), after.view(np.uint8)


def frame_of(before, after, word):
    held, out = before.copy(), np.zeros(changes_room(len(before)), np.uint8)
    size = encode_changes(after, held, out, word)
    assert not size or np.array_equal(held, after)
    assert size or np.array_equal(held, before)
    return out[:size].copy()


@given(
    seed=st.integers(0, 1000),
    count=st.integers(0, 70_000),
    share=st.sampled_from([0, 1e-4, 0.01, 0.03, 0.2, 0.6, 1]),
    word=st.sampled_from([2, 4]),
    by_one=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_what_is_applied_is_what_changed(seed, count, share, word, by_one):
    before, after = changed(seed, count, share, word, by_one=by_one)
    frame = frame_of(before, after, word)
    if not len(frame):  # too much: nothing was done
        assert share >= 0.2
        return
    words = before.copy()
    assert check_changes(frame, words, word) == FrameStatus.GOOD
    assert np.array_equal(words, before)
    assert apply_changes(frame, words, word) == FrameStatus.GOOD
    assert np.array_equal(words, after)


def test_blocks_of_which_much_changed_are_stored_whole():
    before, after = changed(1, COUNT, 0.0, 2, by_one=True)
    after[: 2 * 40_000] ^= 0xFF  # few_changed() looks at samples of all of it
    frame, words = frame_of(before, after, 2), before.copy()
    if len(frame):
        apply_changes(frame, words, 2)
        assert np.array_equal(words, after)
    dense = np.concatenate([before] * 9)
    after = dense.copy()
    after[: 2 * 50_000] ^= 0x55
    frame, words = frame_of(dense, after, 2), dense.copy()
    assert 0 < len(frame) < len(dense)
    assert apply_changes(frame, words, 2) == FrameStatus.GOOD
    assert np.array_equal(words, after)


@pytest.mark.parametrize(("share", "by_one", "least"), [(0.01, True, 90), (0.03, True, 32)])
def test_few_small_changes_take_two_bytes_each(share, by_one, least):
    before, after = changed(2, 1 << 20, share, 2, by_one=by_one)
    assert len(before) / len(frame_of(before, after, 2)) > least


@pytest.mark.parametrize(("share", "least"), [(0.01, 60), (0.03, 21)])
def test_few_changes_of_any_size_take_three_bytes_each(share, least):
    before, after = changed(2, 1 << 20, share, 2, by_one=False)
    assert len(before) / len(frame_of(before, after, 2)) > least


def test_other_words_than_the_frame_starts_from_are_found():
    before, after = changed(3, COUNT, 0.01, 2, by_one=True)
    frame = frame_of(before, after, 2)
    at = int(np.flatnonzero(before != after)[5])
    words = before.copy()
    words[at] ^= 1
    kept = words.copy()
    assert check_changes(frame, words, 2) == FrameStatus.BASE
    assert check_changes(frame, after, 2) == FrameStatus.BASE  # applied twice
    assert np.array_equal(words, kept)


def test_every_flipped_bit_of_a_frame_is_found():
    before, after = changed(4, 500, 0.05, 2, by_one=False)
    frame = frame_of(before, after, 2)
    for byte in range(len(frame)):
        spoilt = frame.copy()
        spoilt[byte] ^= 1 << (byte % 8)
        assert check_changes(spoilt, before, 2) != FrameStatus.GOOD
    assert check_changes(frame[:-1], before, 2) == FrameStatus.CUT
    assert check_changes(frame[:10], before, 2) == FrameStatus.CUT
    assert check_changes(frame, before[:-2], 2) == FrameStatus.SIZE
    assert check_changes(frame, before, 4) == FrameStatus.CODEC


@given(seed=st.integers(0, 100_000))
@settings(max_examples=200, deadline=None)
def test_random_content_never_writes_outside(seed):
    before, after = changed(5, 40_000, 0.02, 2, by_one=False)
    frame, rng = frame_of(before, after, 2), np.random.default_rng(seed)
    spoilt = frame.copy()
    places = FRAME_HEAD + rng.integers(0, len(frame) - FRAME_HEAD, 20)
    spoilt[places] = rng.integers(0, 256, 20)
    guarded = np.full(len(before) + 128, 7, np.uint8)
    guarded[64:-64] = before
    apply_changes(spoilt, guarded[64:-64], 2)
    assert (guarded[:64] == 7).all()
    assert (guarded[-64:] == 7).all()


@pytest.mark.parametrize("word", [1, 3, 8])
def test_words_of_other_sizes_are_refused(word):
    octets = np.zeros(24, np.uint8)
    with pytest.raises(ValueError, match="2 or 4 bytes"):
        check_changes(octets, octets, word)
    with pytest.raises(ValueError, match="too little room"):
        encode_changes(octets, octets.copy(), octets.copy(), 2)


def test_delta_pack_lists_changes_and_restores_them():
    before, after = changed(6, COUNT, 0.01, 2, by_one=True)
    sender, receiver = (Delta("delta+pack", "bfloat16", len(before)) for _ in range(2))
    out, chunk = np.zeros(sender.room(len(before)), np.uint8), np.zeros_like(before)
    for want in (before, after):
        size = sender.encode(want, out)
        receiver.decode(out[:size].copy(), chunk)
        assert np.array_equal(chunk, want)
    assert size < len(before) / 50
