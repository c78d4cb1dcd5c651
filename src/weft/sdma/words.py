"""Packets as words of 32 bits, little end first, and back.

Layouts: the packet headers of AMD's open Linux driver and of its open runtime. A word's lowest
byte is the op code, the next the sub-op; a count is the number of bytes (of words in a Write)
less one. Generations differ in the bits of a count: 22, so 4 MiB a packet, or 30, so 1 GiB.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from weft.errors import FormatError, UsageError
from weft.sdma.packets import (
    AtomicAdd,
    Broadcast,
    Compare,
    Copy,
    Fence,
    Fill,
    Nop,
    Packet,
    Poll,
    Swap,
    Timestamp,
    Trap,
    Write,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    Words = tuple[int, ...]

COUNT_BITS = (22, 30)
_WORD = 0xFFFFFFFF


class Op(IntEnum):
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
ADD64 = 47  # what an ATOMIC does, from bit 25 on
GET_GLOBAL = 2  # sub-op of TIMESTAMP: the clock that all engines share


def encode(packet: Packet, *, count_bits: int = COUNT_BITS[0]) -> bytes:
    """Give the bytes of a packet."""
    words = _words(packet, _Counter(count_bits))
    return struct.pack(f"<{len(words)}I", *words)


@dataclass(frozen=True, slots=True)
class _Counter:
    """Counts of a generation: bytes less one, in so many bits."""

    bits: int

    def __call__(self, count: int, what: str = "bytes") -> int:
        if not 1 <= count <= 1 << self.bits:
            raise UsageError(
                f"a packet cannot hold {count} {what}; its count has {self.bits} bits.",
                f"Split it into packets of 1 to {1 << self.bits} {what}.",
            )
        return count - 1


def _field(value: int, bits: int, what: str) -> int:
    if not 0 <= value < 1 << bits:
        raise UsageError(f"{what} {value} of a packet does not fit its {bits} bits.")
    return value


def _address(address: int, align: int = 1) -> Words:
    _field(address, 64, "address")
    if address % align:
        raise UsageError(f"address {address:#x} of a packet is not a multiple of {align}.")
    return address & _WORD, address >> 32


def _words(packet: Packet, count: _Counter) -> Words:  # noqa: PLR0911 - one case a packet
    match packet:
        case Nop(skip):
            return (Op.NOP | _field(skip, 14, "skip") << 16, *(0,) * skip)
        case Copy(src, dst, nbytes):
            return (Op.COPY, count(nbytes), 0, *_address(src), *_address(dst))
        case Broadcast(src, dsts, nbytes):
            ends = (word for dst in dsts for word in _address(dst))
            return (Op.COPY | BROADCAST, count(nbytes), 0, *_address(src), *ends)
        case Swap(a, b, nbytes):
            return (Op.COPY | SWAP_LINEAR << 8, count(nbytes), 0, *_address(a), *_address(b))
        case Write(dst, words):
            values = (_field(word, 32, "word") for word in words)
            return (Op.WRITE, *_address(dst, 4), _Counter(20)(len(words), "words"), *values)
        case Fence(address, word):
            return (Op.FENCE, *_address(address, 4), _field(word, 32, "word"))
        case _:
            return _more_words(packet, count)


def _more_words(packet: Packet, count: _Counter) -> Words:
    match packet:
        case Trap(context):
            return (Op.TRAP, _field(context, 28, "context"))
        case Poll(address, value, compare, mask, interval, retries):
            head = Op.POLL_REGMEM | compare << 28 | MEM_POLL
            words = (_field(value, 32, "value"), _field(mask, 32, "mask"))
            tries = _field(interval, 16, "interval") | _field(retries, 12, "retries") << 16
            return (head, *_address(address, 4), *words, tries)
        case AtomicAdd(address, value):
            added = (_field(value, 64, "value") & _WORD, value >> 32)
            return (Op.ATOMIC | ADD64 << 25, *_address(address, 8), *added, 0, 0, 0)
        case Fill(dst, value, nbytes, item):
            size = _fill_size(item, nbytes)
            head = Op.CONST_FILL | size << 30
            return (head, *_address(dst, item), _field(value, 8 * item, "value"), count(nbytes))
        case Timestamp(address):
            return (Op.TIMESTAMP | GET_GLOBAL << 8, *_address(address, 8))
        case _:
            raise AssertionError(packet)


def _fill_size(item: int, nbytes: int) -> int:
    sizes = {1: 0, 2: 1, 4: 2}
    if item not in sizes or nbytes % item:
        raise UsageError(
            f"a packet cannot fill {nbytes} bytes with items of {item}.",
            "Use items of 1, 2 or 4 bytes that divide them.",
        )
    return sizes[item]


_LENGTHS = {  # in words; NOP and WRITE hold their own
    Op.COPY: 7,
    Op.FENCE: 4,
    Op.TRAP: 2,
    Op.POLL_REGMEM: 6,
    Op.ATOMIC: 8,
    Op.CONST_FILL: 5,
    Op.TIMESTAMP: 3,
}


def length_of(words: Sequence[int], at: int = 0) -> int:
    """How many words the packet that starts at ``at`` has."""
    head = words[at]
    try:
        op = Op(head & 0xFF)
    except ValueError:
        raise FormatError(f"word {at} starts no packet: op code {head & 0xFF}.") from None
    if op == Op.NOP:
        return 1 + (head >> 16 & 0x3FFF)
    if op == Op.WRITE:
        return 4 + ((words[at + 3] & 0xFFFFF) + 1 if at + 3 < len(words) else 1)
    return _LENGTHS[op] + (2 if op == Op.COPY and head & BROADCAST else 0)


def decode(data: bytes) -> list[Packet]:
    """Read packets back from their bytes."""
    if len(data) % 4:
        raise FormatError(f"{len(data)} bytes are no whole number of words.")
    words = struct.unpack(f"<{len(data) // 4}I", data)
    packets, at = [], 0
    while at < len(words):
        length = length_of(words, at)
        if at + length > len(words):
            raise FormatError(f"the packet at word {at} is cut off after {len(words) - at} words.")
        packets.append(decode_one(words[at : at + length]))
        at += length
    return packets


def decode_one(words: Sequence[int]) -> Packet:  # noqa: C901, PLR0911 - one case a packet
    """Read one packet from exactly its words."""
    head, sub = words[0], words[0] >> 8 & 0xFF

    def address(at: int) -> int:
        return words[at] | words[at + 1] << 32

    match Op(head & 0xFF), sub:
        case Op.NOP, _:
            return Nop(len(words) - 1)
        case Op.COPY, 0 if head & BROADCAST:
            return Broadcast(address(3), (address(5), address(7)), words[1] + 1)
        case Op.COPY, 0:
            return Copy(address(3), address(5), words[1] + 1)
        case Op.COPY, 9:
            return Swap(address(3), address(5), words[1] + 1)
        case Op.WRITE, 0:
            return Write(address(1), tuple(words[4:]))
        case Op.FENCE, 0:
            return Fence(address(1), words[3])
        case Op.TRAP, 0:
            return Trap(words[1])
        case Op.POLL_REGMEM, 0 if head & MEM_POLL and head >> 28 & 7 < 7:
            compare, tries = Compare(head >> 28 & 7), words[5]
            return Poll(address(1), words[3], compare, words[4], tries & 0xFFFF, tries >> 16)
        case Op.ATOMIC, 0 if head >> 25 == ADD64:
            return AtomicAdd(address(1), address(3))
        case Op.CONST_FILL, 0 if head >> 30 < 3:
            return Fill(address(1), words[3], words[4] + 1, 1 << (head >> 30))
        case Op.TIMESTAMP, 2:
            return Timestamp(address(1))
        case op, _:
            raise FormatError(f"{op.name} with sub-op {sub} is no packet of this engine.")
