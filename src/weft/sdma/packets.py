"""The packets of an SDMA queue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Compare(IntEnum):
    """What a poll holds for, from bit 28 of its header on."""

    ALWAYS = 0
    LESS = 1
    LESS_EQUAL = 2
    EQUAL = 3
    NOT_EQUAL = 4
    GREATER_EQUAL = 5
    GREATER = 6


@dataclass(frozen=True, slots=True)
class Nop:
    """Nothing, and ``skip`` more words that are not looked at."""

    skip: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """Move bytes from one address to another."""

    src: int
    dst: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Read bytes once and write them to two addresses."""

    src: int
    dsts: tuple[int, int]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Swap:
    """Exchange the bytes at two addresses."""

    a: int
    b: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Write:
    """Write the words that the packet holds."""

    dst: int
    words: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fence:
    """Write one word when everything before has landed."""

    address: int
    word: int


@dataclass(frozen=True, slots=True)
class Trap:
    """Interrupt the host."""

    context: int = 0


@dataclass(frozen=True, slots=True)
class Poll:
    """Hold until a word of memory, masked, compares with ``value``.

    ``interval`` is in clocks of the engine; 4095 ``retries`` are without end.
    """

    address: int
    value: int
    compare: Compare = Compare.GREATER_EQUAL
    mask: int = 0xFFFFFFFF
    interval: int = 4
    retries: int = 0xFFF


@dataclass(frozen=True, slots=True)
class AtomicAdd:
    """Add to 64 bits of memory when everything before has landed."""

    address: int
    value: int


@dataclass(frozen=True, slots=True)
class Fill:
    """Write ``value`` over and over: items of 1, 2 or 4 bytes."""

    dst: int
    value: int
    nbytes: int
    item: int = 4


@dataclass(frozen=True, slots=True)
class Timestamp:
    """Write the time, 64 bits of it."""

    address: int


Packet = Nop | Copy | Broadcast | Swap | Write | Fence | Trap | Poll | AtomicAdd | Fill | Timestamp
