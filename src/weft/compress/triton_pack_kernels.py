"""Kernels of the codec ``pack``: exponents near a base of their block are stored in few bits.

The same format as ``native/codecs/window.hpp``: blocks of 1024 values, in which the bits of 32
values form one word. ``kind`` is 0 for float32, 1 for bfloat16 and 2 for float16.
"""

import triton
import triton.language as tl

BLOCK = 1024  # values that share a base, as in native/codecs/window.hpp
ZERO, RAW, DENSE, SPARSE, SIGNED = (tl.constexpr(mode) for mode in range(5))
PLAN_FIELDS = 8  # fields of a block's plan: mode, count, base, bits, exceptions, size
SIZE_BYTES = 2  # bytes of a block's size, in front of all blocks


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

    One program a block: sizes stand in front of the blocks, so no program waits for the one before.
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
