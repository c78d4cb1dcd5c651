from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import FormatError, UsageError
from weft.gpu.sdma import decode, encode
from weft.gpu.sdma.packets import (
    AtomicAddPacket,
    BroadcastPacket,
    Compare,
    CopyPacket,
    FencePacket,
    FillPacket,
    NopPacket,
    Packet,
    PollPacket,
    SwapPacket,
    TimestampPacket,
    TrapPacket,
    WritePacket,
)

SRC, DST, MORE = 0x1122334455667788, 0x99AABBCCDDEEFF00, 0x0102030405060708

# Each word as the driver's and the runtime's headers lay it out.
WORDS = {
    NopPacket(): [0x00000000],
    NopPacket(2): [0x00020000, 0, 0],
    CopyPacket(SRC, DST, 4096): [
        0x00000001,
        4095,
        0,
        0x55667788,
        0x11223344,
        0xDDEEFF00,
        0x99AABBCC,
    ],
    BroadcastPacket(SRC, (DST, MORE), 1): [
        *(0x08000001, 0, 0, 0x55667788, 0x11223344),
        *(0xDDEEFF00, 0x99AABBCC, 0x05060708, 0x01020304),
    ],
    SwapPacket(SRC, DST, 64): [0x00000901, 63, 0, 0x55667788, 0x11223344, 0xDDEEFF00, 0x99AABBCC],
    WritePacket(DST, (7, 8)): [0x00000002, 0xDDEEFF00, 0x99AABBCC, 1, 7, 8],
    FencePacket(DST, 0xCAFE): [0x00000005, 0xDDEEFF00, 0x99AABBCC, 0xCAFE],
    TrapPacket(5): [0x00000006, 5],
    PollPacket(DST, 3, Compare.GREATER_EQUAL, 0xFFFFFFFF, 4, 0xFFF): [
        *(0xD0000008, 0xDDEEFF00, 0x99AABBCC, 3, 0xFFFFFFFF, 0x0FFF0004),
    ],
    PollPacket(DST, 1, Compare.EQUAL): [
        0xB0000008,
        0xDDEEFF00,
        0x99AABBCC,
        1,
        0xFFFFFFFF,
        0x0FFF0004,
    ],
    AtomicAddPacket(DST, 1 << 32 | 2): [0x5E00000A, 0xDDEEFF00, 0x99AABBCC, 2, 1, 0, 0, 0],
    FillPacket(DST, 0xAB, 12): [0x8000000B, 0xDDEEFF00, 0x99AABBCC, 0xAB, 11],
    TimestampPacket(DST): [0x0000020D, 0xDDEEFF00, 0x99AABBCC],
}


@pytest.mark.parametrize("packet", WORDS, ids=lambda packet: type(packet).__name__)
def test_a_packet_is_these_words(packet):
    data = b"".join(word.to_bytes(4, "little") for word in WORDS[packet])
    assert encode(packet) == data
    assert decode(data) == [packet]


def addresses(align=1):
    return st.integers(0, (1 << 64) // align - 1).map(lambda n: n * align)


counts = st.integers(1, 1 << 22)
word = st.integers(0, (1 << 32) - 1)
packets: st.SearchStrategy[Packet] = st.one_of(
    st.builds(NopPacket, st.integers(0, 40)),
    st.builds(CopyPacket, addresses(), addresses(), counts),
    st.builds(BroadcastPacket, addresses(), st.tuples(addresses(), addresses()), counts),
    st.builds(SwapPacket, addresses(), addresses(), counts),
    st.builds(WritePacket, addresses(4), st.lists(word, min_size=1, max_size=9).map(tuple)),
    st.builds(FencePacket, addresses(4), word),
    st.builds(TrapPacket, st.integers(0, (1 << 28) - 1)),
    st.builds(
        PollPacket,
        addresses(4),
        word,
        st.sampled_from(Compare),
        word,
        st.integers(0, 0xFFFF),
        st.integers(0, 0xFFF),
    ),
    st.builds(AtomicAddPacket, addresses(8), st.integers(0, (1 << 64) - 1)),
    st.builds(FillPacket, addresses(4), word, st.integers(1, 1 << 20).map(lambda n: 4 * n)),
    st.builds(TimestampPacket, addresses(8)),
)


@given(st.lists(packets, max_size=20))
def test_packets_are_read_back_as_they_were(written):
    assert decode(b"".join(map(encode, written))) == written


@given(packets)
def test_a_packet_that_is_cut_off_is_refused(packet):
    data = encode(packet)
    if len(data) > 4:
        with pytest.raises(FormatError, match="the packet at word"):
            decode(data[:-4])


@pytest.mark.parametrize(("bits", "most"), [(22, 4 << 20), (30, 1 << 30)])
def test_the_largest_packet_depends_on_the_generation(bits, most):
    (packet,) = decode(encode(CopyPacket(0, 0, most), count_bits=bits))
    assert packet == CopyPacket(0, 0, most)
    for wrong in (0, most + 1):
        with pytest.raises(UsageError, match=f"cannot hold {wrong} bytes"):
            encode(CopyPacket(0, 0, wrong), count_bits=bits)


@pytest.mark.parametrize(
    "packet",
    [
        FencePacket(2, 0),
        AtomicAddPacket(4, 1),
        TrapPacket(1 << 28),
        WritePacket(0, (1 << 32,)),
        WritePacket(0, ()),
        NopPacket(1 << 14),
        FillPacket(0, 1, 6),
        FillPacket(0, 1, 6, 3),
        FillPacket(0, 256, 6, 1),
        CopyPacket(1 << 64, 0, 1),
    ],
)
def test_what_does_not_fit_is_refused(packet):
    with pytest.raises(UsageError):
        encode(packet)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((3,), "op code 3"),
        ((0x0401, *(0,) * 6), "COPY with sub-op 4"),
        ((8, *(0,) * 5), "POLL_REGMEM"),
        ((8 | 0xF << 28, *(0,) * 5), "POLL_REGMEM"),
        ((11 | 3 << 30, *(0,) * 4), "CONST_FILL"),
        ((10, *(0,) * 7), "ATOMIC"),
    ],
)
def test_what_is_no_packet_is_refused(words, said):
    with pytest.raises(FormatError, match=said):
        decode(b"".join(word.to_bytes(4, "little") for word in words))


def test_bytes_must_be_whole_words():
    with pytest.raises(FormatError, match="5 bytes"):
        decode(bytes(5))
