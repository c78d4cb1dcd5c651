"""Encodes packets as 32-bit little-endian words, and decodes them.

Layouts: the packet headers of AMD's open Linux driver and of its open runtime. The lowest byte of a
word is the op code, the next the sub-op; a count is the number of bytes (of words in a Write) minus
one. Generations differ in the width of a count: 22 bits (4 MiB per packet) or 30 (1 GiB).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from weft.errors import FormatError, UsageError
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

if TYPE_CHECKING:
    from collections.abc import Sequence

    Words = tuple[int, ...]

COUNT_BITS = (22, 30)
_WORD = 0xFFFFFFFF


class OpCode(IntEnum):
    """The op codes."""

    NOP = 0
    COPY = 1
    WRITE = 2
    FENCE = 5
    TRAP = 6
    POLL_REGMEM = 8
    ATOMIC = 10
    CONST_FILL = 11
    TIMESTAMP = 13


SWAP_LINEAR = 9  # sub-op of COPY
BROADCAST = 1 << 27  # in the header of a linear copy
MEM_POLL = 1 << 31  # POLL_REGMEM of memory, not of a register
ADD64 = 47  # operation of an ATOMIC, from bit 25 on
GET_GLOBAL = 2  # sub-op of TIMESTAMP: the clock that all engines share


def encode(packet: Packet, *, count_bits: int = COUNT_BITS[0]) -> bytes:
    """Return the encoded bytes of a packet."""
    words = _words(packet, _Counter(count_bits))
    return struct.pack(f"<{len(words)}I", *words)


@dataclass(frozen=True, slots=True)
class _Counter:
    """Encodes the counts of a hardware generation: count minus one, in so many bits."""

    bits: int

    def __call__(self, count: int, what: str = "bytes") -> int:
        if not 1 <= count <= 1 << self.bits:
            raise UsageError(
                f"a packet cannot hold {count} {what}: its count has {self.bits} bits.",
                f"Split it into packets of 1 to {1 << self.bits} {what}.",
            )
        return count - 1


def _field(value: int, bits: int, what: str) -> int:
    if not 0 <= value < 1 << bits:
        raise UsageError(f"{what} {value} of a packet does not fit in {bits} bits.")
    return value


def _address(address: int, align: int = 1) -> Words:
    _field(address, 64, "address")
    if address % align:
        raise UsageError(f"address {address:#x} of a packet is not a multiple of {align}.")
    return address & _WORD, address >> 32


def _words(packet: Packet, count: _Counter) -> Words:  # noqa: PLR0911 - one case a packet
    match packet:
        case NopPacket(skip):
            return (OpCode.NOP | _field(skip, 14, "skip") << 16, *(0,) * skip)
        case CopyPacket(src, dst, nbytes):
            return (OpCode.COPY, count(nbytes), 0, *_address(src), *_address(dst))
        case BroadcastPacket(src, dsts, nbytes):
            ends = (word for dst in dsts for word in _address(dst))
            return (OpCode.COPY | BROADCAST, count(nbytes), 0, *_address(src), *ends)
        case SwapPacket(a, b, nbytes):
            return (OpCode.COPY | SWAP_LINEAR << 8, count(nbytes), 0, *_address(a), *_address(b))
        case WritePacket(dst, words):
            values = (_field(word, 32, "word") for word in words)
            return (OpCode.WRITE, *_address(dst, 4), _Counter(20)(len(words), "words"), *values)
        case FencePacket(address, word):
            return (OpCode.FENCE, *_address(address, 4), _field(word, 32, "word"))
        case _:
            return _more_words(packet, count)


def _more_words(packet: Packet, count: _Counter) -> Words:
    match packet:
        case TrapPacket(context):
            return (OpCode.TRAP, _field(context, 28, "context"))
        case PollPacket(address, value, compare, mask, interval, retries):
            head = OpCode.POLL_REGMEM | compare << 28 | MEM_POLL
            words = (_field(value, 32, "value"), _field(mask, 32, "mask"))
            tries = _field(interval, 16, "interval") | _field(retries, 12, "retries") << 16
            return (head, *_address(address, 4), *words, tries)
        case AtomicAddPacket(address, value):
            added = (_field(value, 64, "value") & _WORD, value >> 32)
            return (OpCode.ATOMIC | ADD64 << 25, *_address(address, 8), *added, 0, 0, 0)
        case FillPacket(dst, value, nbytes, item):
            size = _fill_size(item, nbytes)
            head = OpCode.CONST_FILL | size << 30
            return (head, *_address(dst, item), _field(value, 8 * item, "value"), count(nbytes))
        case TimestampPacket(address):
            return (OpCode.TIMESTAMP | GET_GLOBAL << 8, *_address(address, 8))
        case _:
            raise AssertionError(packet)


def _fill_size(item: int, nbytes: int) -> int:
    sizes = {1: 0, 2: 1, 4: 2}
    if item not in sizes or nbytes % item:
        raise UsageError(
            f"a packet cannot fill {nbytes} bytes with items of {item}.",
            "Use items of 1, 2 or 4 bytes that divide the size.",
        )
    return sizes[item]


_LENGTHS = {  # in words; NOP and WRITE store their own length
    OpCode.COPY: 7,
    OpCode.FENCE: 4,
    OpCode.TRAP: 2,
    OpCode.POLL_REGMEM: 6,
    OpCode.ATOMIC: 8,
    OpCode.CONST_FILL: 5,
    OpCode.TIMESTAMP: 3,
}


def length_of(words: Sequence[int], at: int = 0) -> int:
    """Return the number of words of the packet that starts at ``at``."""
    head = words[at]
    try:
        op = OpCode(head & 0xFF)
    except ValueError:
        raise FormatError(f"word {at}: unknown op code {head & 0xFF}.") from None
    if op == OpCode.NOP:
        return 1 + (head >> 16 & 0x3FFF)
    if op == OpCode.WRITE:
        return 4 + ((words[at + 3] & 0xFFFFF) + 1 if at + 3 < len(words) else 1)
    return _LENGTHS[op] + (2 if op == OpCode.COPY and head & BROADCAST else 0)


def decode(data: bytes) -> list[Packet]:
    """Decode packets from their bytes."""
    if len(data) % 4:
        raise FormatError(f"{len(data)} bytes are not a whole number of words.")
    words = struct.unpack(f"<{len(data) // 4}I", data)
    packets, at = [], 0
    while at < len(words):
        length = length_of(words, at)
        if at + length > len(words):
            raise FormatError(
                f"the packet at word {at} is truncated after {len(words) - at} words."
            )
        packets.append(decode_one(words[at : at + length]))
        at += length
    return packets


def decode_one(words: Sequence[int]) -> Packet:  # noqa: C901, PLR0911 - one case a packet
    """Decode one packet from exactly its words."""
    head, sub = words[0], words[0] >> 8 & 0xFF

    def address(at: int) -> int:
        return words[at] | words[at + 1] << 32

    match OpCode(head & 0xFF), sub:
        case OpCode.NOP, _:
            return NopPacket(len(words) - 1)
        case OpCode.COPY, 0 if head & BROADCAST:
            return BroadcastPacket(address(3), (address(5), address(7)), words[1] + 1)
        case OpCode.COPY, 0:
            return CopyPacket(address(3), address(5), words[1] + 1)
        case OpCode.COPY, 9:
            return SwapPacket(address(3), address(5), words[1] + 1)
        case OpCode.WRITE, 0:
            return WritePacket(address(1), tuple(words[4:]))
        case OpCode.FENCE, 0:
            return FencePacket(address(1), words[3])
        case OpCode.TRAP, 0:
            return TrapPacket(words[1])
        case OpCode.POLL_REGMEM, 0 if head & MEM_POLL and head >> 28 & 7 < 7:
            compare, tries = Compare(head >> 28 & 7), words[5]
            return PollPacket(address(1), words[3], compare, words[4], tries & 0xFFFF, tries >> 16)
        case OpCode.ATOMIC, 0 if head >> 25 == ADD64:
            return AtomicAddPacket(address(1), address(3))
        case OpCode.CONST_FILL, 0 if head >> 30 < 3:
            return FillPacket(address(1), words[3], words[4] + 1, 1 << (head >> 30))
        case OpCode.TIMESTAMP, 2:
            return TimestampPacket(address(1))
        case op, _:
            raise FormatError(f"unknown packet: {op.name} with sub-op {sub}.")
