"""What codecs take, and what they save of copies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator.paper import (
    GB,
    MB,
    US,
    bare,
    close,
    lasted,
    launch,
    machine,
    made,
    move,
    queue,
    spans,
    without_costs,
)
from weft.compress import CODECS
from weft.cost.codec import codec_rates, is_priced
from weft.errors import UnknownNameError
from weft.hardware import Level
from weft.schedule import (
    Copy,
    Decode,
    Encode,
    Reduce,
    Slice,
)

FREE = without_costs()
MOVING = 1000 * US


def x(rank, nbytes=0):
    return Slice(rank, "x", 0, nbytes)


def y(rank, nbytes=0):
    return Slice(rank, "y", 0, nbytes)


@pytest.mark.parametrize("codec", ["pack", "bf16", "zfp:8"])
def test_a_codec_takes_its_rate_for_what_is_encoded_not_for_the_slot(codec):
    rates = codec_rates(codec, None)
    pack = Encode(x(0, 3 * MB), y(0, 4 * MB), codec, "uint8")
    unpack = Decode(y(0, 4 * MB), x(0, 3 * MB), codec, "uint8")
    found = spans(made(2, {0: (queue("nic0", pack, unpack),)}), bare(Level("switch", 2, GB)))
    assert lasted(found, 0, "nic0", 0) == close(2 * US + 3 * MB / rates.encode)
    assert lasted(found, 0, "nic0", 1) == close(2 * US + 3 * MB / rates.decode)


def test_a_codec_on_a_device_takes_what_its_kernels_do():
    """Chunks that fill the device; pack reads three times and writes once, by three launches."""
    nbytes = 100 * (64 << 10) * 10
    pack = Encode(x(0, nbytes), y(0, nbytes), "pack", "uint8")
    found = spans(made(1, {0: (queue("stream0", launch((pack,), units=1)),)}), machine(1))
    assert lasted(found, 0, "stream0", 1) == close(3 * US + 4 * nbytes / (100 * GB))


def test_the_memory_of_a_codec_is_in_its_price():
    """Next to a copy that fills the memory it takes as long as alone, and so does the copy."""
    pack = Encode(x(0, 30 * MB), y(0, 30 * MB), "pack", "uint8")
    queues = queue("stream0", launch((pack,), units=1)), queue("nic0", move(0, 0, 100 * MB))
    found = spans(made(1, {0: queues}), machine(1, device=FREE))
    assert lasted(found, 0, "stream0", 1) == close(4 * 30 * MB / (100 * GB))
    assert lasted(found, 0, "nic0", 0) == close(2000 * US)


def test_only_copies_out_of_slots_are_shorter_by_the_ratio_of_their_codec():
    """Slots in x hold half of what they could; y has none, and so have commands other than Copy."""
    pack = Encode(y(0), x(0), "bf16", "uint8")
    slot, plain = Copy(x(0, 10 * MB), y(1, 10 * MB)), Copy(y(0, 10 * MB), x(1, 10 * MB))
    add = Reduce((x(0, 10 * MB),), y(1, 10 * MB))
    packed = replace(
        made(2, {0: (queue("nic0", pack, slot, plain, add),)}), ratios=(("bf16", 2.0),)
    )
    found = spans(packed, bare(Level("switch", 2, 10 * GB)))
    assert [lasted(found, 0, "nic0", n) for n in (1, 2, 3)] == close([500 * US, MOVING, MOVING])
    other = replace(packed, ratios=(("third", 3.0),))
    found = spans(other, bare(Level("switch", 2, 10 * GB)))
    assert lasted(found, 0, "nic0", 1) == close(MOVING)


def test_what_is_encoded_by_a_codec_that_has_no_price_flows_as_long_as_its_slot():
    pack = Encode(x(0, 10 * MB), y(1, 5 * MB), "none", "uint8")
    found = spans(made(2, {0: (queue("nic0", pack),)}), bare(Level("switch", 2, 10 * GB)))
    assert lasted(found, 0, "nic0", 0) == close(500 * US)


def test_a_slot_on_another_rank_is_written_and_read_over_the_link():
    """20 MB take 2 ms over 10 GB/s, halved 1 ms; what is read from afar is asked for first."""
    encode, decode = (2 * US + 20 * MB / rate for rate in _rates("pack"))
    there = Encode(x(0, 20 * MB), y(1, 30 * MB), "pack", "uint8")
    back = Decode(y(1, 30 * MB), x(0, 20 * MB), "pack", "uint8")
    whole = Encode(x(1, 20 * MB), y(0, 30 * MB), "pack", "uint8")
    schedule = made(2, {0: (queue("nic0", there, back, whole),)})
    found = spans(replace(schedule, ratios=(("pack", 2.0),)), bare(Level("switch", 2, 10 * GB)))
    took = [lasted(found, 0, "nic0", n) for n in range(3)]
    assert took == close([encode + 1000 * US, decode + 1000 * US, encode + 2000 * US])


def _rates(codec):
    rates = codec_rates(codec, None)
    return rates.encode, rates.decode


def test_what_a_codec_saves_is_saved_in_memory_too():
    """Memory of 1 GB/s is what 10 MB wait for; half of them pass it once here and once there."""
    slow = replace(FREE, memory_rate=1 * GB)
    pack, slot = Encode(y(0), x(0), "bf16", "uint8"), Copy(x(0, 10 * MB), y(1, 10 * MB))
    plain = made(2, {0: (queue("nic0", pack, slot),)})
    for ratio, seconds in ((1.0, 10_000 * US), (2.0, 5_000 * US)):
        packed = replace(plain, ratios=(("bf16", ratio),))
        assert lasted(spans(packed, machine(2, device=slow)), 0, "nic0", 1) == close(seconds)


def test_every_codec_has_rates_and_one_without_is_an_error():
    for name in CODECS:
        assert is_priced(name) == (name != "none")
    encode = Encode(x(0, MB), y(0, MB + 64), "snappy", "float32")
    with pytest.raises(UnknownNameError, match=r"'snappy' has no rates.*known: pack, bf16"):
        spans(made(1, {0: (queue("nic0", encode),)}), bare(Level("switch", 1, GB)))
