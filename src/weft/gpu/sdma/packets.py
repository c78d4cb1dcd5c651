"""The packets of an SDMA queue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

BROADCAST_ALIGNMENT = 32  # bytes: destinations of one packet are equal modulo this (open runtime)


class Compare(IntEnum):
    """The comparison of a poll, from bit 28 of its header on."""

    ALWAYS = 0
    LESS = 1
    LESS_EQUAL = 2
    EQUAL = 3
    NOT_EQUAL = 4
    GREATER_EQUAL = 5
    GREATER = 6


@dataclass(frozen=True, slots=True)
class NopPacket:
    """No operation; ``skip`` more words are ignored."""

    skip: int = 0


@dataclass(frozen=True, slots=True)
class CopyPacket:
    """Copy bytes from one address to another."""

    src: int
    dst: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class BroadcastPacket:
    """Read bytes once and write them to two addresses, equal modulo BROADCAST_ALIGNMENT."""

    src: int
    dsts: tuple[int, int]
    nbytes: int


@dataclass(frozen=True, slots=True)
class SwapPacket:
    """Exchange the bytes at two addresses."""

    a: int
    b: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class WritePacket:
    """Write the words that the packet holds."""

    dst: int
    words: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FencePacket:
    """Write one word once everything before is complete."""

    address: int
    word: int


@dataclass(frozen=True, slots=True)
class TrapPacket:
    """Interrupt the host."""

    context: int = 0


@dataclass(frozen=True, slots=True)
class PollPacket:
    """Wait until a masked word of memory compares with ``value``.

    ``interval`` is in clocks of the engine; 4095 ``retries`` means no limit.
    """

    address: int
    value: int
    compare: Compare = Compare.GREATER_EQUAL
    mask: int = 0xFFFFFFFF
    interval: int = 4
    retries: int = 0xFFF


@dataclass(frozen=True, slots=True)
class AtomicAddPacket:
    """Add to 64 bits of memory once everything before is complete."""

    address: int
    value: int


@dataclass(frozen=True, slots=True)
class FillPacket:
    """Fill memory with ``value``, in items of 1, 2 or 4 bytes."""

    dst: int
    value: int
    nbytes: int
    item: int = 4


@dataclass(frozen=True, slots=True)
class TimestampPacket:
    """Write a 64-bit timestamp."""

    address: int


Packet = (
    NopPacket
    | CopyPacket
    | BroadcastPacket
    | SwapPacket
    | WritePacket
    | FencePacket
    | TrapPacket
    | PollPacket
    | AtomicAddPacket
    | FillPacket
    | TimestampPacket
)
