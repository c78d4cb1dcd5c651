"""The payloads of ``bf16``, ``int8`` and ``pack`` on a GPU, bit-identical to the CPU's.

Blocks have different encoded lengths, so encoding takes two passes around a prefix sum: plan each
block, then write its bytes. Arithmetic is done on bits wherever rounding or fused operations could
differ between devices; elsewhere products and sums are not fused. Decoding finds blocks by the
sizes in front of them, all at once.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from weft.errors import UsageError

BLOCK = 1024  # values that share a base, as in native/codecs/window.hpp
GROUP = 32  # values whose bits form one word
ZERO, RAW, DENSE, SPARSE, SIGNED = (tl.constexpr(mode) for mode in range(5))
_PLAN = 8  # fields of a block's plan: mode, count, base, bits, exceptions, size
_FLOAT32, _BFLOAT16, _FLOAT16 = 0, 1, 2
_SIZE = 2  # bytes of a block's size, in front of all blocks
_INT8_BLOCK = 256
CODEC_DTYPES = {
    "pack": (torch.float32, torch.bfloat16, torch.float16),
    "bf16": (torch.float32,),
    "int8": (torch.float32,),
}
_KINDS = {torch.float32: _FLOAT32, torch.bfloat16: _BFLOAT16, torch.float16: _FLOAT16}


@triton.jit
def _base(block):
    """Return the first value of a block, in 64 bits."""
    return tl.cast(block, tl.int64) * 1024


@triton.jit
def _item(kind: tl.constexpr):
    return 4 if kind == 0 else 2


@triton.jit
def _rest(kind: tl.constexpr):
    return 3 if kind == 0 else 1


@triton.jit
def _extra(kind: tl.constexpr):
    return 3 if kind == 2 else 0


@triton.jit
def _plane_bytes(count):
    return (count + 31) // 32 * 4


@triton.jit
def _words(source, offset, mask, kind: tl.constexpr):
    loaded = tl.load(source + offset, mask=mask, other=0)
    if kind == 0:
        word = loaded.to(tl.uint32, bitcast=True)
    else:
        word = loaded.to(tl.uint16, bitcast=True).to(tl.uint32)
    return word


@triton.jit
def _turned(word, kind: tl.constexpr):
    """Return the word with its exponent in the top byte."""
    if kind == 0:
        turned = (word << 1) | (word >> 31)
    else:
        turned = ((word << 1) | (word >> 15)) & 0xFFFF
    return turned


@triton.jit
def _exponent(word, kind: tl.constexpr):
    if kind == 2:
        exponent = (word >> 10) & 31
    else:
        exponent = _turned(word, kind) >> (24 if kind == 0 else 8)
    return exponent


@triton.jit
def _is_zero(word, kind: tl.constexpr):
    return (word << (1 if kind == 0 else 17)) == 0


@triton.jit
def _planes(bits):
    """Return one word per 32 values, one bit each."""
    lane = tl.arange(0, 32).to(tl.uint32)
    return tl.sum(tl.reshape(bits.to(tl.uint32), (32, 32)) << lane[None, :], axis=1).to(tl.uint32)


@triton.jit
def _store_words(out, words, stride, groups):
    group = tl.arange(0, 32)
    for byte in tl.static_range(4):
        value = ((words >> (8 * byte)) & 0xFF).to(tl.uint8)
        tl.store(out + group * stride + byte, value, mask=group < groups)


@triton.jit
def _load_word(source, groups, stride):
    group = tl.arange(0, 32)
    word = tl.zeros((32,), tl.uint32)
    for byte in tl.static_range(4):
        value = tl.load(source + group * stride + byte, mask=group < groups, other=0)
        word |= value.to(tl.uint32) << (8 * byte)
    return word


@triton.jit
def _bits_of(words):
    """Return one bit per value, from one word per 32 values."""
    lane = tl.arange(0, 32).to(tl.uint32)
    return tl.reshape((words[:, None] >> lane[None, :]) & 1, (1024,))


@triton.jit
def compact_kernel(source, values, plan, total, kind: tl.constexpr):
    """Choose the encoding of a block, and compact its nonzero values."""
    block = tl.program_id(0)
    i = tl.arange(0, 1024)
    count = tl.minimum(total - block * 1024, 1024)
    inside = i < count
    word = _words(source, _base(block) + i, inside, kind)
    none = _is_zero(word, kind) & inside
    zeros = tl.sum(none.to(tl.int32), axis=0)
    negative = tl.sum((none & (word != 0)).to(tl.int32), axis=0)
    sparse = zeros * 8 >= count
    maps = _plane_bytes(count) * tl.where(negative > 0, 2, 1)
    kept = count - zeros
    extra = _extra(kind) * _plane_bytes(kept) + _rest(kind) * kept
    too_long = maps + 2 + 4 + extra >= count * _item(kind)
    mode = tl.where(sparse, tl.where(negative > 0, SIGNED, SPARSE), DENSE)
    mode = tl.where(sparse & too_long, RAW, mode)
    mode = tl.where((zeros == count) & (negative == 0), ZERO, mode)
    taken = inside & ((none & sparse) == 0)
    place = tl.cumsum(taken.to(tl.int32), axis=0) - 1
    tl.store(values + _base(block) + place, word.to(tl.int32, bitcast=True), mask=taken)
    tl.store(plan + block * 8, mode)
    tl.store(plan + block * 8 + 1, tl.where(sparse, kept, count))


@triton.jit
def window_kernel(values, plan, total, kind: tl.constexpr):
    """Choose base and bits of a block's exponents, and compute its encoded size."""
    block = tl.program_id(0)
    count = tl.minimum(total - block * 1024, 1024)
    mode = tl.load(plan + block * 8)
    kept = tl.load(plan + block * 8 + 1)
    i = tl.arange(0, 1024)
    inside = i < kept
    word = tl.load(values + _base(block) + i, mask=inside, other=0).to(tl.uint32, bitcast=True)
    exponent = tl.where(inside, _exponent(word, kind), 0).to(tl.int32)
    lanes = tl.max(tl.reshape(exponent, (32, 32)), axis=0)
    most, least = tl.max(lanes, axis=0), tl.min(lanes, axis=0)
    planes = _plane_bytes(kept)
    base, bits, exceptions, best = (
        most,
        tl.full((), 8, tl.int32),
        tl.full((), 0, tl.int32),
        8 * planes,
    )
    for second in tl.static_range(2):
        each = least if second else most
        distance = (each - exponent) & 0xFF
        for tried in tl.static_range(6):
            beyond = 1 if tried == 0 else (1 << tried) - 1
            outside = tl.sum(((distance >= beyond) & inside).to(tl.int32), axis=0)
            cost = tried * planes + outside
            better = (cost < best) & ((outside == 0) if tried == 0 else True)
            base, bits = tl.where(better, each, base), tl.where(better, tried, bits)
            exceptions, best = tl.where(better, outside, exceptions), tl.where(better, cost, best)
    maps = tl.where(mode == DENSE, 0, _plane_bytes(count) * tl.where(mode == SIGNED, 2, 1) + 2)
    extra = _extra(kind) * planes + _rest(kind) * kept
    room = count * _item(kind) - maps
    fits = (4 + extra < room) & (bits <= 7) & (4 + extra + best < room)
    fits = fits | ((kept == 0) & (mode != DENSE))
    coded = (mode >= DENSE) & fits
    mode = tl.where(mode == ZERO, ZERO, tl.where(coded, mode, RAW))
    size = 1 + maps + tl.where(kept > 0, 4 + extra + best, 0)
    size = tl.where(mode == RAW, 1 + count * _item(kind), tl.where(mode == ZERO, 1, size))
    tl.store(plan + block * 8, mode)
    tl.store(plan + block * 8 + 2, base)
    tl.store(plan + block * 8 + 3, bits)
    tl.store(plan + block * 8 + 4, exceptions)
    tl.store(plan + block * 8 + 5, size)


@triton.jit
def _store_head(out, base, bits, exceptions):
    tl.store(out, base.to(tl.uint8))
    tl.store(out + 1, bits.to(tl.uint8))
    tl.store(out + 2, (exceptions & 0xFF).to(tl.uint8))
    tl.store(out + 3, (exceptions >> 8).to(tl.uint8))


@triton.jit
def _store_rest(out, word, inside, kind: tl.constexpr):
    i = tl.arange(0, 1024)
    low = _turned(word, kind) if kind < 2 else word
    for byte in tl.static_range(_rest(kind)):
        value = ((low >> (8 * byte)) & 0xFF).to(tl.uint8)
        tl.store(out + i * _rest(kind) + byte, value, mask=inside)


@triton.jit
def _store_values(out, word, count, base, bits, exceptions, kind: tl.constexpr):
    """Store header, mantissas, extra planes and window of the values of a block."""
    i = tl.arange(0, 1024)
    inside = i < count
    groups = _plane_bytes(count) // 4
    _store_head(out, base, bits, exceptions)
    _store_rest(out + 4, word, inside, kind)
    out += 4 + _rest(kind) * count
    if kind == 2:
        extra = tl.where(inside, (word >> 15 << 2) | ((word >> 8) & 3), 0)
        for bit in tl.static_range(3):
            _store_words(out + 4 * bit, _planes((extra >> bit) & 1), 12, groups)
        out += 12 * groups
    exponent = _exponent(word, kind).to(tl.int32)
    beyond = tl.where(bits == 0, 1, (1 << bits) - 1)
    code = tl.where(inside, tl.minimum((base - exponent) & 0xFF, beyond), 0)
    for bit in tl.static_range(7):
        _store_words(
            out + 4 * bit, _planes((code >> bit) & 1), 4 * bits, tl.where(bit < bits, groups, 0)
        )
    out += 4 * bits * groups
    beyond_them = (i < tl.where(bits > 0, count, 0)) & (code == beyond)
    place = tl.cumsum(beyond_them.to(tl.int32), axis=0) - 1
    tl.store(out + place, exponent.to(tl.uint8), mask=beyond_them)


@triton.jit
def write_kernel(source, values, plan, starts, out, total, kind: tl.constexpr):
    """Write a block according to its plan."""
    block = tl.program_id(0)
    i = tl.arange(0, 1024)
    count = tl.minimum(total - block * 1024, 1024)
    mode = tl.load(plan + block * 8)
    kept = tl.load(plan + block * 8 + 1)
    out += tl.load(starts + block)
    tl.store(out, mode.to(tl.uint8))
    out += 1
    word = _words(source, _base(block) + i, i < count, kind)
    if mode == RAW:
        for byte in tl.static_range(_item(kind)):
            value = ((word >> (8 * byte)) & 0xFF).to(tl.uint8)
            tl.store(out + i * _item(kind) + byte, value, mask=i < count)
    if mode == SIGNED:
        sign = (word >> (8 * _item(kind) - 1)) & 1
        _store_words(out, _planes(sign), 4, _plane_bytes(count) // 4)
        out += _plane_bytes(count)
    if mode >= SPARSE:
        present = ((i < count) & (_is_zero(word, kind) == 0)).to(tl.uint32)
        _store_words(out, _planes(present), 4, _plane_bytes(count) // 4)
        out += _plane_bytes(count)
        tl.store(out, (kept & 0xFF).to(tl.uint8))
        tl.store(out + 1, (kept >> 8).to(tl.uint8))
        out += 2
    if (mode >= DENSE) & (kept > 0):
        held = tl.load(values + _base(block) + i, mask=i < kept, other=0)
        base = tl.load(plan + block * 8 + 2)
        bits = tl.load(plan + block * 8 + 3)
        exceptions = tl.load(plan + block * 8 + 4)
        _store_values(out, held.to(tl.uint32, bitcast=True), kept, base, bits, exceptions, kind)


@triton.jit
def check_kernel(payload, starts, sizes, wrong, length, total, kind: tl.constexpr):
    """Check that every block is as long as its header says, reading only inside the payload.

    One program a block: sizes stand in front of the blocks, so nobody waits for the one before.
    """
    block = tl.program_id(0)
    at = tl.load(starts + block)
    size = tl.load(sizes + block)
    count = tl.minimum(total - block * 1024, 1024)
    good = (size > 0) & (at + size <= length)
    mode = tl.load(payload + at, mask=good, other=255).to(tl.int32)
    sparse = (mode == SPARSE) | (mode == SIGNED)
    maps = tl.where(mode == SIGNED, 2, tl.where(mode == SPARSE, 1, 0)) * _plane_bytes(count)
    head = 1 + maps
    there = good & sparse & (head + 2 <= size)
    low = tl.load(payload + at + head, mask=there, other=0).to(tl.int32)
    kept = low | tl.load(payload + at + head + 1, mask=there, other=0).to(tl.int32) << 8
    kept = tl.where(sparse, kept, count)
    head += tl.where(sparse, 2, 0)
    coded = good & ((mode == DENSE) | sparse) & (kept > 0) & (head + 4 <= size)
    bits = tl.load(payload + at + head + 1, mask=coded, other=0).to(tl.int32)
    low = tl.load(payload + at + head + 2, mask=coded, other=0).to(tl.int32)
    exceptions = low | tl.load(payload + at + head + 3, mask=coded, other=0).to(tl.int32) << 8
    planes = _plane_bytes(kept)
    values = 4 + (bits + _extra(kind)) * planes + exceptions + _rest(kind) * kept
    stated = head + tl.where(kept > 0, values, 0)
    stated = tl.where(mode == ZERO, 1, stated)
    stated = tl.where(mode == RAW, 1 + count * _item(kind), stated)
    good = good & (mode <= SIGNED) & (bits <= 7) & (kept <= count) & (stated == size)
    tl.store(wrong, 1, mask=good == 0)


@triton.jit
def values_kernel(payload, starts, values, total, kind: tl.constexpr):
    """Decode the nonzero values of a block into contiguous memory."""
    block = tl.program_id(0)
    i = tl.arange(0, 1024)
    count = tl.minimum(total - block * 1024, 1024)
    source = payload + tl.load(starts + block)
    mode = tl.load(source).to(tl.int32)
    source += 1
    kept = count
    if mode >= SPARSE:
        source += _plane_bytes(count) * tl.where(mode == SIGNED, 2, 1)
        low = tl.load(source).to(tl.int32)
        kept = low | (tl.load(source + 1).to(tl.int32) << 8)
        source += 2
    word = tl.zeros((1024,), tl.uint32)
    if mode == RAW:
        for byte in tl.static_range(_item(kind)):
            value = tl.load(source + i * _item(kind) + byte, mask=i < count, other=0)
            word |= value.to(tl.uint32) << (8 * byte)
    if (mode >= DENSE) & (kept > 0):
        word = _load_values(source, kept, kind)
    tl.store(values + _base(block) + i, word.to(tl.int32, bitcast=True), mask=i < kept)


@triton.jit
def _load_values(source, count, kind: tl.constexpr):
    i = tl.arange(0, 1024)
    inside = i < count
    groups = _plane_bytes(count) // 4
    base = tl.load(source).to(tl.int32)
    bits = tl.load(source + 1).to(tl.int32)
    source += 4
    rest = tl.zeros((1024,), tl.uint32)
    for byte in tl.static_range(_rest(kind)):
        value = tl.load(source + i * _rest(kind) + byte, mask=inside, other=0)
        rest |= value.to(tl.uint32) << (8 * byte)
    source += _rest(kind) * count
    extra = tl.zeros((1024,), tl.uint32)
    if kind == 2:
        for bit in tl.static_range(3):
            extra |= _bits_of(_load_word(source + 4 * bit, groups, 12)) << bit
        source += 12 * groups
    code = tl.zeros((1024,), tl.uint32)
    for bit in tl.static_range(7):
        there = tl.where(bit < bits, groups, 0)
        code |= _bits_of(_load_word(source + 4 * bit, there, 4 * bits)) << bit
    source += 4 * bits * groups
    coded = i < tl.where(bits > 0, count, 0)
    beyond = coded & (code.to(tl.int32) == (1 << bits) - 1)
    place = tl.cumsum(beyond.to(tl.int32), axis=0) - 1
    exception = tl.load(source + place, mask=beyond, other=0).to(tl.int32)
    exponent = tl.where(beyond, exception, (base - code.to(tl.int32)) & 0xFF).to(tl.uint32)
    if kind == 0:
        turned = rest | (exponent << 24)
        word = (turned >> 1) | (turned << 31)
    elif kind == 1:
        turned = rest | (exponent << 8)
        word = ((turned >> 1) | (turned << 15)) & 0xFFFF
    else:
        word = ((extra >> 2) << 15) | ((exponent & 31) << 10) | ((extra & 3) << 8) | rest
    return word


@triton.jit
def spread_kernel(payload, starts, values, out, total, kind: tl.constexpr):
    """Scatter the values of a block to their positions, with zeros in between."""
    block = tl.program_id(0)
    i = tl.arange(0, 1024)
    count = tl.minimum(total - block * 1024, 1024)
    source = payload + tl.load(starts + block)
    mode = tl.load(source).to(tl.int32)
    source += 1
    groups = _plane_bytes(count) // 4
    present = ((i < count) & (mode != ZERO)).to(tl.int32)
    sign = tl.zeros((1024,), tl.uint32)
    if mode == SIGNED:
        sign = _bits_of(_load_word(source, groups, 4)) << (8 * _item(kind) - 1)
        source += 4 * groups
    if mode >= SPARSE:
        present = _bits_of(_load_word(source, groups, 4)).to(tl.int32)
    place = tl.cumsum(present, axis=0) - 1
    held = tl.load(values + _base(block) + place, mask=present != 0, other=0)
    word = tl.where(present != 0, held.to(tl.uint32, bitcast=True), sign)
    if kind == 0:
        tl.store(out + _base(block) + i, word.to(tl.int32, bitcast=True), mask=i < count)
    else:
        short = word.to(tl.uint16).to(tl.int16, bitcast=True)
        tl.store(out + _base(block) + i, short, mask=i < count)


@triton.jit
def int8_kernel(source, starts, sizes, out, total, block: tl.constexpr, write: tl.constexpr):
    """Compute the size of a block of float32 (``write`` false), or write its bytes and scale."""
    number = tl.program_id(0)
    i = tl.arange(0, block)
    count = tl.minimum(total - number * block, block)
    word = tl.load(source + number * block + i, mask=i < count, other=0)
    size_bits = word & 0x7FFFFFFF
    most = tl.max(size_bits, axis=0)
    kept = tl.where((most >= 0x7F800000) | ((most != 0) & (most < (27 << 23))), 1, 0)
    if not write:
        tl.store(sizes + number, 4 + tl.where(kept != 0, 4 * count, count))
        return
    out += tl.load(starts + number)
    size = most.to(tl.float32, bitcast=True)
    scale = tl.where(kept != 0, 0x7FC00000, tl.div_rn(size, 127.0).to(tl.int32, bitcast=True))
    for byte in tl.static_range(4):
        tl.store(out + byte, ((scale >> (8 * byte)) & 0xFF).to(tl.uint8))
    factor = tl.where(most == 0, 0.0, tl.div_rn(127.0, tl.where(most == 0, 1.0, size)))
    rounded = word.to(tl.float32, bitcast=True) * factor + 12582912.0
    integer = rounded.to(tl.int32, bitcast=True) & 0xFF
    tl.store(out + 4 + i, integer.to(tl.uint8), mask=i < tl.where(kept != 0, 0, count))
    for byte in tl.static_range(4):
        value = ((word >> (8 * byte)) & 0xFF).to(tl.uint8)
        tl.store(out + 4 + 4 * i + byte, value, mask=i < tl.where(kept != 0, count, 0))


@triton.jit
def int8_starts_kernel(payload, starts, length, total, block: tl.constexpr):
    """Find the offset of each block and the end of the last, or -1: only if some kept values."""
    at = tl.full((), 0, tl.int64)
    num_blocks = (total + block - 1) // block
    for number in range(num_blocks):
        tl.store(starts + number, at)
        count = tl.minimum(total - number * block, block)
        good = (at >= 0) & (at + 4 <= length)
        scale = tl.full((), 0, tl.int32)
        for byte in tl.static_range(4):
            value = tl.load(payload + at + byte, mask=good, other=0).to(tl.int32)
            scale |= value << (8 * byte)
        kept = (scale & 0x7FFFFFFF) > 0x7F800000
        after = at + 4 + tl.where(kept, 4 * count, count)
        at = tl.where(good & (after <= length), after, -1)
    tl.store(starts + num_blocks, at)


@triton.jit
def int8_decode_kernel(
    payload, starts, out, wrong, total, regular: tl.constexpr, block: tl.constexpr
):
    """Decode a block: integers times the scale, or the values as they are after a NaN.

    ``regular``: no block keeps its values, so that offsets follow from its number.
    """
    number = tl.program_id(0)
    i = tl.arange(0, block)
    count = tl.minimum(total - number * block, block)
    if regular:
        source = payload + tl.cast(number, tl.int64) * (block + 4)
    else:
        source = payload + tl.load(starts + number)
    scale = tl.full((), 0, tl.int32)
    for byte in tl.static_range(4):
        scale |= tl.load(source + byte).to(tl.int32) << (8 * byte)
    kept = (scale & 0x7FFFFFFF) > 0x7F800000
    if regular:
        tl.store(wrong, 1, mask=kept)
        kept = kept & False
    integer = tl.load(source + 4 + i, mask=i < tl.where(kept, 0, count), other=0)
    number_of = integer.to(tl.int8, bitcast=True).to(tl.float32)
    value = number_of * scale.to(tl.float32, bitcast=True)
    word = value.to(tl.int32, bitcast=True)
    as_it_is = tl.zeros((block,), tl.int32)
    for byte in tl.static_range(4):
        part = tl.load(source + 4 + 4 * i + byte, mask=i < tl.where(kept, count, 0), other=0)
        as_it_is |= part.to(tl.int32) << (8 * byte)
    at = tl.cast(number, tl.int64) * block + i
    tl.store(out + at, tl.where(kept, as_it_is, word), mask=i < count)


@triton.jit
def bf16_kernel(source, out, total, block: tl.constexpr):
    """Round float32 to bfloat16, ties to even; NaN stays NaN."""
    i = tl.cast(tl.program_id(0), tl.int64) * block + tl.arange(0, block)
    word = tl.load(source + i, mask=i < total, other=0).to(tl.uint32, bitcast=True)
    rounded = (word + 0x7FFF + ((word >> 16) & 1)) >> 16
    nothing = (word & 0x7FFFFFFF) > 0x7F800000
    short = tl.where(nothing, (word >> 16) | 0x40, rounded)
    tl.store(out + i, short.to(tl.uint16).to(tl.int16, bitcast=True), mask=i < total)


@triton.jit
def bf16_decode_kernel(source, out, total, block: tl.constexpr):
    """Widen bfloat16 to float32."""
    i = tl.cast(tl.program_id(0), tl.int64) * block + tl.arange(0, block)
    short = tl.load(source + i, mask=i < total, other=0).to(tl.uint16, bitcast=True)
    tl.store(out + i, (short.to(tl.uint32) << 16).to(tl.int32, bitcast=True), mask=i < total)


# Products and sums are not fused: a multiply-add rounds once where the CPU rounds twice.
_LAUNCH: dict[str, Any] = {"enable_fp_fusion": False}


def encode(name: str, values: torch.Tensor) -> torch.Tensor:
    """Return the payload of a codec by name (pack, bf16, int8, int8:64) as bytes on the device."""
    kind, _, parameter = name.partition(":")
    if values.dtype not in CODEC_DTYPES.get(kind, ()):
        raise UsageError(
            f"codec {name!r}: cannot encode {values.dtype} on a GPU.",
            f"Use {', '.join(CODEC_DTYPES)}; bf16 and int8 take float32.",
        )
    if kind == "pack":
        return pack(values)
    return bf16(values) if kind == "bf16" else int8(values, int(parameter or _INT8_BLOCK))


def decode(name: str, payload: torch.Tensor, values: torch.Tensor) -> bool:
    """Decode a payload of ``encode`` into ``values``; return False if it is invalid."""
    kind, _, parameter = name.partition(":")
    if kind == "pack":
        return unpack(payload, values)
    if kind == "bf16":
        return from_bf16(payload, values)
    return from_int8(payload, values, int(parameter or _INT8_BLOCK))


def pack(values: torch.Tensor) -> torch.Tensor:
    """Return the payload of codec ``pack`` as bytes on the same device."""
    kind, words = _KINDS[values.dtype], _as_words(values)
    total, blocks = words.numel(), triton.cdiv(words.numel(), BLOCK)
    if not total:
        return torch.empty(0, dtype=torch.uint8, device=values.device)
    held = torch.empty(blocks * BLOCK, dtype=torch.int32, device=values.device)
    plan = torch.zeros(blocks, _PLAN, dtype=torch.int32, device=values.device)
    compact_kernel[(blocks,)](words, held, plan, total, kind, **_LAUNCH)
    window_kernel[(blocks,)](held, plan, total, kind, **_LAUNCH)
    sizes = plan[:, 5]
    starts = sizes.long().cumsum(0) - sizes + _SIZE * blocks
    out = torch.empty(int(starts[-1]) + int(sizes[-1]), dtype=torch.uint8, device=values.device)
    out[0 : _SIZE * blocks : 2] = (sizes & 0xFF).to(torch.uint8)
    out[1 : _SIZE * blocks : 2] = (sizes >> 8).to(torch.uint8)
    write_kernel[(blocks,)](words, held, plan, starts, out, total, kind, **_LAUNCH)
    return out


def unpack(payload: torch.Tensor, values: torch.Tensor) -> bool:
    """Decode a payload of codec ``pack`` into ``values``; return False if it is invalid."""
    kind, words = _KINDS[values.dtype], _as_words(values)
    total, blocks = words.numel(), triton.cdiv(words.numel(), BLOCK)
    if not total:
        return payload.numel() == 0
    if payload.numel() < _SIZE * blocks:
        return False
    table = payload[: _SIZE * blocks].long()
    sizes = table[0::2] | table[1::2] << 8
    starts = sizes.cumsum(0) - sizes + _SIZE * blocks
    wrong = (starts[-1:] + sizes[-1:] != payload.numel()).int()
    check_kernel[(blocks,)](payload, starts, sizes, wrong, payload.numel(), total, kind, **_LAUNCH)
    if int(wrong):
        return False
    held = torch.empty(blocks * BLOCK, dtype=torch.int32, device=values.device)
    values_kernel[(blocks,)](payload, starts, held, total, kind, **_LAUNCH)
    spread_kernel[(blocks,)](payload, starts, held, words, total, kind, **_LAUNCH)
    return True


def int8(values: torch.Tensor, block: int = _INT8_BLOCK) -> torch.Tensor:
    """Return the payload of codec ``int8`` for float32 values; ``block`` is a power of two."""
    words, total = _as_words(values), values.numel()
    blocks = triton.cdiv(total, block)
    sizes = torch.zeros(max(blocks, 1), dtype=torch.int64, device=values.device)
    if not total:
        return torch.empty(0, dtype=torch.uint8, device=values.device)
    int8_kernel[(blocks,)](words, sizes, sizes, words, total, block, False, **_LAUNCH)
    ends = sizes.cumsum(0)
    out = torch.empty(int(ends[-1]), dtype=torch.uint8, device=values.device)
    int8_kernel[(blocks,)](words, ends - sizes, sizes, out, total, block, True, **_LAUNCH)
    return out


def from_int8(payload: torch.Tensor, values: torch.Tensor, block: int = _INT8_BLOCK) -> bool:
    """Decode a payload of codec ``int8`` into float32; return False if it is invalid.

    A payload of the shortest length keeps no block as it is, and all blocks are decoded at once;
    otherwise one program looks for their starts first.
    """
    words, total, blocks = _as_words(values), values.numel(), triton.cdiv(values.numel(), block)
    regular = payload.numel() == total + 4 * blocks
    wrong = torch.zeros(1, dtype=torch.int32, device=values.device)
    starts = torch.zeros(blocks + 1, dtype=torch.int64, device=values.device)
    if not total:
        return payload.numel() == 0
    if not regular:
        int8_starts_kernel[(1,)](payload, starts, payload.numel(), total, block, **_LAUNCH)
        if int(starts[-1]) != payload.numel():
            return False
    int8_decode_kernel[(blocks,)](payload, starts, words, wrong, total, regular, block, **_LAUNCH)
    return not int(wrong)


def bf16(values: torch.Tensor) -> torch.Tensor:
    """Return the payload of codec ``bf16`` for float32 values."""
    words, total = _as_words(values), values.numel()
    out = torch.empty(total, dtype=torch.int16, device=values.device)
    if total:
        bf16_kernel[(triton.cdiv(total, BLOCK),)](words, out, total, BLOCK, **_LAUNCH)
    return out.view(torch.uint8)


def from_bf16(payload: torch.Tensor, values: torch.Tensor) -> bool:
    """Decode a payload of codec ``bf16`` into float32; return False if it is invalid."""
    words, total = _as_words(values), values.numel()
    if payload.numel() != 2 * total:
        return False
    if total:
        source = payload.contiguous().view(torch.int16)
        bf16_decode_kernel[(triton.cdiv(total, BLOCK),)](source, words, total, BLOCK, **_LAUNCH)
    return True


def _as_words(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(-1).view(torch.int32 if values.element_size() == 4 else torch.int16)
