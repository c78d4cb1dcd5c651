"""Broadcasts of encoded pieces: who holds what afterwards, and what is encoded how often."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arrays import Machine
from weft.collectives import collective
from weft.errors import UnknownNameError, UsageError
from weft.schedule import Decode, Encode
from weft.schedule.check import check

LOSSLESS = ("none", "pack", "blosc2:zstd")
LOSSY = ("int8:64", "bf16", "zfp:8")


def broadcast(algorithm, num_ranks, values, seed=0, **options):
    """Return what every rank holds after two executions."""
    made = collective("broadcast", algorithm, num_ranks=num_ranks, nbytes=values.nbytes, **options)
    check(made)
    machine = Machine(made, seed)
    root = options.get("root", 0)
    for _ in range(2):
        machine.memory[root, "data"][:] = values.view(np.uint8)
        machine.run()
    return [machine.memory[rank, "data"].view(np.float32) for rank in range(num_ranks)]


def weights(count):
    return np.random.default_rng(count).normal(0, 0.02, count).astype(np.float32)


@pytest.mark.parametrize("shape", ["chain", "p2p"])
@pytest.mark.parametrize("codec", LOSSLESS)
@settings(max_examples=12, deadline=None)
@given(num_ranks=st.integers(2, 5), count=st.integers(0, 3000), data=st.data())
def test_without_loss_every_rank_holds_the_roots_bytes(shape, codec, num_ranks, count, data):
    root = data.draw(st.integers(0, num_ranks - 1))
    piece = 4 * data.draw(st.integers(200, 3000))
    values = weights(count)
    held = broadcast(f"{shape}+{codec}", num_ranks, values, count, root=root, piece=piece)
    assert all(np.array_equal(each, values) for each in held)


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_with_loss_all_ranks_hold_the_same_bytes(codec, num_ranks):
    values = weights(5000)
    held = broadcast(f"chain+{codec}", num_ranks, values, piece=4096)
    assert all(np.array_equal(each, held[0]) for each in held)
    assert 0 < np.linalg.norm(held[0] - values) < 0.1 * np.linalg.norm(values)


def test_the_root_may_keep_what_it_had():
    values = weights(5000)
    held = broadcast("chain+int8", 3, values, keep_root=True)
    assert np.array_equal(held[0], values)
    assert np.array_equal(held[1], held[2])
    assert not np.array_equal(held[1], values)


def worked(algorithm, num_ranks=5):
    made = collective(
        "broadcast", algorithm, num_ranks=num_ranks, nbytes=8 * 4096, dtype="float32", piece=4096
    )
    commands = [(place.rank, type(c)) for place, c in made.commands()]
    return Counter(each for each in commands if each[1] in (Encode, Decode))


def test_a_chain_encodes_once_and_decodes_once_a_rank():
    have = worked("chain+int8")
    assert have[0, Encode] == 8
    assert all(have[rank, Decode] == 8 for rank in range(5))
    assert sum(have.values()) == 48
    assert worked("chain+pack")[0, Decode] == 0


def test_messages_are_encoded_on_every_hop():
    have = worked("p2p+pack")
    assert all(have[rank, Encode] == 8 for rank in range(4))
    assert all(have[rank, Decode] == 8 for rank in range(1, 5))
    assert sum(have.values()) == 64


def test_wrong_codecs_are_told():
    with pytest.raises(UnknownNameError, match="codec 'pak'"):
        collective("broadcast", "chain+pak", num_ranks=2, nbytes=64)
    with pytest.raises(UsageError, match="int32"):
        collective("broadcast", "chain+pack", num_ranks=2, nbytes=64, dtype="int32")
    with pytest.raises(UnknownNameError):
        collective("all_gather", "chain+pack", num_ranks=2, nbytes=64)
