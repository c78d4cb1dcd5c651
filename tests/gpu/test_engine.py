from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BoundsError, UsageError
from weft.gpu.sdma import AddressSpace, RingBuffer, SdmaEngine, encode
from weft.gpu.sdma.packets import (
    AtomicAddPacket,
    BroadcastPacket,
    Compare,
    CopyPacket,
    FencePacket,
    FillPacket,
    NopPacket,
    PollPacket,
    SwapPacket,
    TimestampPacket,
    TrapPacket,
    WritePacket,
)


class Rig:
    """An engine and 256 bytes, 0 to 255."""

    def __init__(self, ring_words=64):
        self.memory = AddressSpace()
        self.bytes = np.arange(256).astype(np.uint8)
        self.place = self.memory.map(self.bytes)
        self.engine = SdmaEngine(RingBuffer(ring_words), self.memory)

    def do(self, *packets):
        for packet in packets:
            self.engine.ring.write(encode(packet))
        self.engine.ring.ring()
        while self.engine.step():
            pass
        return self


def test_copies_broadcasts_and_swaps_move_bytes():
    rig = Rig()
    at = rig.place
    rig.do(
        CopyPacket(at, at + 100, 4),
        BroadcastPacket(at + 8, (at + 110, at + 78), 2),
        SwapPacket(at, at + 50, 3),
    )
    assert rig.bytes[100:104].tolist() == [0, 1, 2, 3]
    assert rig.bytes[110:112].tolist() == rig.bytes[78:80].tolist() == [8, 9]
    assert rig.bytes[:3].tolist() == [50, 51, 52]
    assert rig.bytes[50:53].tolist() == [0, 1, 2]


def test_a_broadcast_to_places_that_differ_modulo_32_is_refused():
    rig = Rig()
    with pytest.raises(BoundsError, match="cannot broadcast"):
        rig.do(BroadcastPacket(rig.place, (rig.place + 64, rig.place + 80), 2))


def test_words_fences_fills_and_times_are_written():
    rig = Rig()
    at = rig.place
    rig.do(
        WritePacket(at, (1, 2)),
        FencePacket(at + 8, 3),
        FillPacket(at + 12, 0x0504, 6, 2),
        TimestampPacket(at + 24),
    )
    assert rig.bytes[:12].view("<u4").tolist() == [1, 2, 3]
    assert rig.bytes[12:18].tolist() == [4, 5, 4, 5, 4, 5]
    assert rig.bytes[24:32].view("<u8")[0] == 3  # packets done before it


def test_an_atomic_carries_into_the_upper_word_and_wraps():
    rig = Rig()
    rig.bytes[:8] = 0xFF
    rig.bytes[4:8] = 0
    rig.do(AtomicAddPacket(rig.place, 1))
    assert rig.bytes[:8].view("<u8")[0] == 1 << 32
    rig.do(AtomicAddPacket(rig.place, (1 << 64) - (1 << 32)))
    assert rig.bytes[:8].view("<u8")[0] == 0


@pytest.mark.parametrize(
    ("compare", "passing"),
    [
        (Compare.ALWAYS, {4, 5, 6}),
        (Compare.LESS, {4}),
        (Compare.LESS_EQUAL, {4, 5}),
        (Compare.EQUAL, {5}),
        (Compare.NOT_EQUAL, {4, 6}),
        (Compare.GREATER_EQUAL, {5, 6}),
        (Compare.GREATER, {6}),
    ],
)
def test_a_poll_holds_what_comes_after_it(compare, passing):
    for value in (4, 5, 6):
        rig = Rig()
        rig.memory.put(rig.place, 0xF0 | value)
        rig.do(PollPacket(rig.place, 5, compare, mask=0x0F), TrapPacket(9))
        assert rig.engine.traps == ([9] if value in passing else [])


def test_a_poll_goes_on_when_its_word_changes():
    rig = Rig().do(
        FencePacket(Rig().place, 0), PollPacket(Rig().place, 1, Compare.EQUAL), TrapPacket(1)
    )
    assert rig.engine.traps == []
    rig.memory.put(rig.place, 1)
    assert rig.do().engine.traps == [1]


def test_nothing_is_seen_before_the_doorbell():
    rig = Rig()
    rig.engine.ring.write(encode(TrapPacket(1)))
    assert not rig.engine.step()
    assert rig.do().engine.traps == [1]


def test_an_engine_that_leaves_its_arrays_faults():
    rig = Rig()
    for packet in (CopyPacket(rig.place + 255, rig.place, 2), CopyPacket(0, rig.place, 1)):
        with pytest.raises(BoundsError, match="SDMA engine accessed"):
            Rig().do(packet)


@given(st.lists(st.integers(0, 11), max_size=60))
def test_packets_keep_their_order_round_the_ring(kinds):
    """Packets of 1 to 9 words: every wrap is padded, nothing is lost."""
    rig = Rig(32)
    at, wanted = rig.place, []
    for number, kind in enumerate(kinds):
        longer = [NopPacket(kind % 4), CopyPacket(at, at, 1), BroadcastPacket(at, (at, at), 1)][
            kind % 3
        ]
        rig.do(longer)
        rig.do(TrapPacket(number))
        wanted.append(number)
    assert rig.engine.traps == wanted
    assert rig.engine.ring.read == rig.engine.ring.written >= 2 * len(kinds)


def test_a_full_ring_has_no_room_until_the_engine_has_read():
    ring = RingBuffer(16)
    packet = encode(TrapPacket(1))
    while ring.fits(packet):
        ring.write(packet)
    assert ring.written == 16
    ring.ring()
    SdmaEngine(ring, AddressSpace()).step()
    assert ring.fits(packet)


@pytest.mark.parametrize("size", [0, 8, 24])
def test_a_ring_is_a_power_of_two(size):
    with pytest.raises(UsageError, match=f"num_words is {size}"):
        RingBuffer(size)


def test_a_packet_too_long_for_its_ring_is_refused():
    with pytest.raises(UsageError, match="of 9 words does not fit a ring buffer of 16"):
        RingBuffer(16).fits(encode(BroadcastPacket(0, (0, 0), 1)))
