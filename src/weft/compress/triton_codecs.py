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

from weft.compress.triton_pack_kernels import (
    BLOCK,
    PLAN_FIELDS,
    SIZE_BYTES,
    check_kernel,
    compact_kernel,
    spread_kernel,
    values_kernel,
    window_kernel,
    write_kernel,
)
from weft.errors import UsageError

_INT8_BLOCK = 256
CODEC_DTYPES = {
    "pack": (torch.float32, torch.bfloat16, torch.float16),
    "bf16": (torch.float32,),
    "int8": (torch.float32,),
}
_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # of the kernels


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
    # A scale that is NaN marks a block that keeps its values: no scale is one otherwise.
    scale = tl.where(kept != 0, 0x7FC00000, tl.div_rn(size, 127.0).to(tl.int32, bitcast=True))
    for byte in tl.static_range(4):
        tl.store(out + byte, ((scale >> (8 * byte)) & 0xFF).to(tl.uint8))
    factor = tl.where(most == 0, 0.0, tl.div_rn(127.0, tl.where(most == 0, 1.0, size)))
    # 1.5 * 2^23: the sum is rounded to an integer, which stands in its low bits.
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
    plan = torch.zeros(blocks, PLAN_FIELDS, dtype=torch.int32, device=values.device)
    compact_kernel[(blocks,)](words, held, plan, total, kind, **_LAUNCH)
    window_kernel[(blocks,)](held, plan, total, kind, **_LAUNCH)
    sizes = plan[:, 5]
    starts = sizes.long().cumsum(0) - sizes + SIZE_BYTES * blocks
    out = torch.empty(int(starts[-1]) + int(sizes[-1]), dtype=torch.uint8, device=values.device)
    out[0 : SIZE_BYTES * blocks : 2] = (sizes & 0xFF).to(torch.uint8)
    out[1 : SIZE_BYTES * blocks : 2] = (sizes >> 8).to(torch.uint8)
    write_kernel[(blocks,)](words, held, plan, starts, out, total, kind, **_LAUNCH)
    return out


def unpack(payload: torch.Tensor, values: torch.Tensor) -> bool:
    """Decode a payload of codec ``pack`` into ``values``; return False if it is invalid."""
    kind, words = _KINDS[values.dtype], _as_words(values)
    total, blocks = words.numel(), triton.cdiv(words.numel(), BLOCK)
    if not total:
        return payload.numel() == 0
    if payload.numel() < SIZE_BYTES * blocks:
        return False
    table = payload[: SIZE_BYTES * blocks].long()
    sizes = table[0::2] | table[1::2] << 8
    starts = sizes.cumsum(0) - sizes + SIZE_BYTES * blocks
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
