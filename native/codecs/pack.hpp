// "pack": floating-point numbers without loss. A block of 1024 values keeps sign and mantissa as
// they are and its exponents as a Window; zeros that are many are kept as a bit each.
//
// First the sizes of all blocks, two bytes each, so that blocks can be decoded at once; then they.
// A block: mode (1 byte), then
//   zero    nothing: every bit of every value is zero
//   raw     the values as they are
//   dense   base, bits, exceptions (4 bytes), the rest, the planes of extra bits, the window
//   sparse  a bitmap of what is not zero, the number of those (2 bytes), then they as dense has it
//   signed  a bitmap of the signs, then as sparse: where some zeros are negative, as masks leave them
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "codecs/fields.hpp"
#include "codecs/window.hpp"
#include "move.hpp"

namespace weft {

template <class Fields>
class Pack {
 public:
  using Word = typename Fields::Word;
  static constexpr std::size_t kItem = sizeof(Word);

  // Room that is always enough.
  static constexpr std::size_t worst(std::size_t nbytes) noexcept {
    return nbytes + (1 + kSize) * (nbytes / (kPackBlock * kItem) + 1);
  }

  // ``out`` has worst(src.size()) bytes; answers how many were written. Whole values only.
  static std::size_t encode(Bytes src, Bytes out) noexcept {
    std::byte* sizes = out.data();
    std::byte* to = sizes + sizes_bytes(src.size());
    for (std::size_t at = 0; at < src.size(); at += kPackBlock * kItem, sizes += kSize) {
      const std::size_t size = std::min(kPackBlock * kItem, src.size() - at);
      std::byte* const end = encode_block(src.data() + at, size / kItem, to);
      const auto taken = static_cast<std::uint16_t>(end - to);
      std::memcpy(sizes, &taken, kSize);
      to = end;
    }
    return static_cast<std::size_t>(to - out.data());
  }

  // Whether ``from`` was a whole encoding of dst.size() bytes. Never reads or writes elsewhere.
  static bool decode(Bytes from, Bytes dst) noexcept {
    const std::size_t table = sizes_bytes(dst.size());
    if (from.size() < table) return false;
    const Bytes sizes = from.first(table);
    Bytes left = from.subspan(table);
    std::size_t sum = 0;
    for (std::size_t at = 0; at < table; at += kSize) sum += word_at<std::uint16_t>(sizes.data(), at / kSize);
    if (sum != left.size() || dst.size() % kItem != 0) return false;
    for (std::size_t at = 0, number = 0; at < dst.size(); at += kPackBlock * kItem, ++number) {
      const std::size_t before = left.size(), size = std::min(kPackBlock * kItem, dst.size() - at);
      if (!decode_block(left, dst.subspan(at, size))) return false;
      if (before - left.size() != word_at<std::uint16_t>(sizes.data(), number)) return false;
    }
    return true;
  }

  // The same of blocks without their sizes.
  static bool decode_blocks(Bytes from, Bytes dst) noexcept {
    if (dst.size() % kItem != 0) return false;
    for (std::size_t at = 0; at < dst.size(); at += kPackBlock * kItem) {
      const std::size_t size = std::min(kPackBlock * kItem, dst.size() - at);
      if (!decode_block(from, dst.subspan(at, size))) return false;
    }
    return from.empty();
  }

 private:
  enum Mode : std::uint8_t { kZero, kRaw, kDense, kSparse, kSigned };
  static constexpr Word kSign = static_cast<Word>(Word{1} << (8 * kItem - 1));
  static constexpr std::size_t kHead = 4;  // base, bits, exceptions
  static constexpr std::size_t kSize = 2;  // of a block: at most its values and a byte
  static constexpr std::size_t sizes_bytes(std::size_t nbytes) noexcept {
    return (nbytes + kPackBlock * kItem - 1) / (kPackBlock * kItem) * kSize;
  }
  static constexpr std::size_t kOftenKept = 4;  // of 32 values, where nine of ten are zero
  using Words = std::array<Word, kPackBlock + kOftenKept>;

  static constexpr std::size_t other_bytes(std::size_t count) noexcept {
    return Fields::kExtra * plane_bytes(count) + Fields::kRest * count;
  }

  // How many values are zero, and how many of these are negative.
  struct Zeros {
    Word all = 0, negative = 0;
  };
  WEFT_INLINE static Zeros zeros_loop(const std::byte* src, std::size_t count) noexcept {
    Word all = 0, positive = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const Word word = word_at<Word>(src, i);
      positive = static_cast<Word>(positive + (word == 0 ? 1 : 0));
      all = static_cast<Word>(all + (static_cast<Word>(word << 1) == 0 ? 1 : 0));
    }
    return {all, static_cast<Word>(all - positive)};
  }
#if defined(__x86_64__)
  WEFT_AVX2 static Zeros zeros_avx2(const std::byte* src, std::size_t count) noexcept {
    return zeros_loop(src, count);
  }
#endif
  static Zeros zeros(const std::byte* src, std::size_t count) noexcept {
#if defined(__x86_64__)
    if (level() != Level::plain) return zeros_avx2(src, count);
#endif
    return zeros_loop(src, count);
  }

  // A bitmap costs a bit a value; below an eighth of zeros it hardly pays.
  static bool many(Zeros none, std::size_t count) noexcept { return none.all * std::size_t{8} >= count; }

  // A guess: blocks with many zeros mostly have one among the first.
  static bool begins_with_zeros(const std::byte* src, std::size_t count) noexcept {
    return zeros_loop(src, std::min<std::size_t>(count, 8)).all != 0;
  }

  static std::byte* encode_block(const std::byte* src, std::size_t count, std::byte* to) noexcept {
    std::byte* end = begins_with_zeros(src, count) ? encode_counted(src, count, zeros(src, count), to)
                                                   : encode_dense(src, count, to);
    if (end != nullptr) return end;
    *to = std::byte{kRaw};
    copy_wide(src, count * kItem, to + 1);
    return to + 1 + count * kItem;
  }

  // Once it is known how many zeros there are.
  static std::byte* encode_counted(const std::byte* src, std::size_t count, Zeros none,
                                   std::byte* to) noexcept {
    if (none.all == count && none.negative == 0) {
      *to = std::byte{kZero};
      return to + 1;
    }
    if (many(none, count)) return encode_sparse(src, count, none, to);
    *to = std::byte{kDense};
    return encode_values(src, count, to + 1, to + 1 + count * kItem);
  }

  // Where there are probably few: the exponents, which are needed anyway, tell whether there are
  // any.
  static std::byte* encode_dense(const std::byte* src, std::size_t count, std::byte* to) noexcept {
    const std::byte* limit = to + 1 + count * kItem;
    if (1 + kHead + other_bytes(count) >= 1 + count * kItem) return nullptr;
    Apart apart;
    split<Fields>(src, count, apart.exponents.data(), apart.extra.data(), to + 1 + kHead);
    if (has_zero(apart.exponents.data(), count)) {
      const Zeros none = zeros(src, count);
      if (many(none, count)) return encode_counted(src, count, none, to);
    }
    *to = std::byte{kDense};
    return encode_apart(apart, count, to + 1, limit);
  }

  static std::byte* encode_sparse(const std::byte* src, std::size_t count, Zeros none,
                                  std::byte* to) noexcept {
    const std::byte* limit = to + 1 + count * kItem;
    const bool with_signs = none.negative != 0;
    const auto kept = static_cast<std::uint16_t>(count - none.all);
    const std::size_t maps = plane_bytes(count) * (with_signs ? 2 : 1);
    if (1 + maps + 2 + kHead + other_bytes(kept) >= 1 + count * kItem) return nullptr;
    *to++ = std::byte{with_signs ? kSigned : kSparse};
    std::byte* signs = to;
    if (with_signs) to += plane_bytes(count);
    alignas(64) Words values;
    take_present(src, count, to, with_signs ? signs : nullptr, values.data());
    to += plane_bytes(count);
    std::memcpy(to, &kept, 2);
    if (kept == 0) return to + 2;
    return encode_values(reinterpret_cast<const std::byte*>(values.data()), kept, to + 2, limit);
  }

  // Bit i of each: value i is something, value i is negative.
  struct Maps {
    std::uint32_t present = 0, negative = 0;
  };
  WEFT_INLINE static Maps maps_of(const std::byte* src, std::size_t count) noexcept {
    Maps maps;
    for (std::size_t i = 0; i < count; ++i) {
      const Word word = word_at<Word>(src, i);
      maps.present |= static_cast<std::uint32_t>(static_cast<Word>(word << 1) != 0 ? 1 : 0) << i;
      maps.negative |= static_cast<std::uint32_t>((word & kSign) != 0 ? 1 : 0) << i;
    }
    return maps;
  }
  static void write_maps(Maps maps, std::byte* present, std::byte* signs, std::size_t at) noexcept {
    std::memcpy(present + at / 8, &maps.present, 4);
    if (signs != nullptr) std::memcpy(signs + at / 8, &maps.negative, 4);
  }
  // Writes the maps of a block, and what is present one after another.
  WEFT_INLINE static void take_from(const std::byte* src, std::size_t first, std::size_t count,
                                    std::byte* present, std::byte* signs, Word* values) noexcept {
    for (std::size_t at = first; at < count; at += kPlaneGroup) {
      const Maps maps = maps_of(src + at * kItem, std::min(kPlaneGroup, count - at));
      write_maps(maps, present, signs, at);
      for (std::uint32_t left = maps.present; left != 0; left &= left - 1) {
        *values++ = word_at<Word>(src, at + static_cast<std::size_t>(std::countr_zero(left)));
      }
    }
  }
#if defined(__x86_64__)
  WEFT_AVX2 static Maps maps_avx2(const std::byte* src) noexcept {
    const __m256i zero = _mm256_setzero_si256();
    __m256i nothing[2], sign[2];
#pragma GCC unroll 2
    for (std::size_t k = 0; k < 2; ++k) {
      if constexpr (kItem == 4) {
        const __m256i a = load_words(src + 64 * k), b = load_words(src + 64 * k + 32);
        nothing[k] = _mm256_packs_epi32(_mm256_cmpeq_epi32(_mm256_add_epi32(a, a), zero),
                                        _mm256_cmpeq_epi32(_mm256_add_epi32(b, b), zero));
        sign[k] = _mm256_packs_epi32(a, b);  // to what is nearest, with its sign
      } else {
        const __m256i word = load_words(src + 32 * k);
        nothing[k] = _mm256_cmpeq_epi16(_mm256_add_epi16(word, word), zero);
        sign[k] = word;
      }
    }
    return {~mask_of(_mm256_packs_epi16(nothing[0], nothing[1])),
            mask_of(_mm256_packs_epi16(sign[0], sign[1]))};
  }
  // The signs of 32 bytes in the order in which packing left them.
  WEFT_AVX2 static std::uint32_t mask_of(__m256i packed) noexcept {
    const __m256i order = kItem == 4 ? _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)  //
                                     : _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_permutevar8x32_epi32(packed, order)));
  }
  // Some are always taken, and counted or not: a branch for each would not be foreseen.
  WEFT_AVX2 static void take_avx2(const std::byte* src, std::size_t count, std::byte* present,
                                  std::byte* signs, Word* values) noexcept {
    std::size_t at = 0;
    for (; at + 2 * kPlaneGroup <= count; at += kPlaneGroup) {  // it may look behind a group
      const Maps maps = maps_avx2(src + at * kItem);
      write_maps(maps, present, signs, at);
      const auto found = static_cast<std::size_t>(std::popcount(maps.present));
      std::uint32_t left = maps.present;
#pragma GCC unroll 4
      for (std::size_t k = 0; k < kOftenKept; ++k, left = _blsr_u32(left)) {
        values[k] = word_at<Word>(src, at + _tzcnt_u32(left));
      }
      for (std::size_t k = kOftenKept; k < found; ++k, left = _blsr_u32(left)) {
        values[k] = word_at<Word>(src, at + _tzcnt_u32(left));
      }
      values += found;
    }
    take_from(src, at, count, present, signs, values);
  }
#endif
  static void take_present(const std::byte* src, std::size_t count, std::byte* present, std::byte* signs,
                           Word* values) noexcept {
#if defined(__x86_64__)
    if (level() != Level::plain) return take_avx2(src, count, present, signs, values);
#endif
    take_from(src, 0, count, present, signs, values);
  }

  struct Apart {
    alignas(32) BlockBytes exponents, extra;
  };

  // Null where it would not be shorter than up to ``limit``.
  static std::byte* encode_values(const std::byte* src, std::size_t count, std::byte* to,
                                  const std::byte* limit) noexcept {
    if (kHead + other_bytes(count) >= static_cast<std::size_t>(limit - to)) return nullptr;
    Apart apart;
    split<Fields>(src, count, apart.exponents.data(), apart.extra.data(), to + kHead);
    return encode_apart(apart, count, to, limit);
  }

  // Everything but the exponents follows the header already.
  static std::byte* encode_apart(Apart& apart, std::size_t count, std::byte* to,
                                 const std::byte* limit) noexcept {
    std::byte* head = to;
    to += kHead + Fields::kRest * count;
    const Window window = best_window(apart.exponents.data(), count);
    const std::size_t more = window.nbytes(count) + Fields::kExtra * plane_bytes(count);
    if (window.bits > kMostBits || more >= static_cast<std::size_t>(limit - to)) return nullptr;
    head[0] = std::byte{window.base};
    head[1] = std::byte{window.bits};
    std::memcpy(head + 2, &window.exceptions, 2);
    if constexpr (Fields::kExtra != 0) {
      std::memset(apart.extra.data() + count, 0, plane_bytes(count) * 8 - count);
      pack_planes(apart.extra.data(), count, Fields::kExtra, to);
      to += Fields::kExtra * plane_bytes(count);
    }
    write_window(apart.exponents.data(), count, window, to);
    return to + window.nbytes(count);
  }

  static bool decode_block(Bytes& from, Bytes dst) noexcept {
    if (from.empty()) return false;
    const auto mode = static_cast<std::uint8_t>(from[0]);
    from = from.subspan(1);
    switch (mode) {
      case kZero: std::memset(dst.data(), 0, dst.size()); return true;
      case kRaw:
        if (from.size() < dst.size()) return false;
        copy_wide(from.data(), dst.size(), dst.data());
        from = from.subspan(dst.size());
        return true;
      case kDense: return decode_values(from, dst);
      case kSparse: return decode_sparse(from, dst, {});
      case kSigned: {
        const std::size_t map = plane_bytes(dst.size() / kItem);
        if (from.size() < map) return false;
        const Bytes signs = from.first(map);
        from = from.subspan(map);
        return decode_sparse(from, dst, signs);
      }
      default: return false;
    }
  }

  // Without signs there are no negative zeros.
  static bool decode_sparse(Bytes& from, Bytes dst, Bytes signs) noexcept {
    const std::size_t count = dst.size() / kItem, map = plane_bytes(count);
    if (from.size() < map + 2) return false;
    std::uint16_t kept;
    std::memcpy(&kept, from.data() + map, 2);
    const Bytes present = from.first(map);
    from = from.subspan(map + 2);
    if (number_of(present, count) != kept) return false;
    alignas(64) Words values;  // what lies behind those that are kept is read, and not used
    const Bytes held(reinterpret_cast<std::byte*>(values.data()), kept * kItem);
    if (kept != 0 && !decode_values(from, held)) return false;
    if (!signs.empty()) {
      place_signed(present, signs, values.data(), count, dst.data());
    } else {
      place(present, values.data(), count, dst.data());
    }
    return true;
  }

  WEFT_INLINE static std::size_t number_loop(Bytes map, std::size_t count) noexcept {
    std::size_t bits = 0;
    for (std::size_t at = 0; at < count; at += kPlaneGroup) {
      bits += static_cast<std::size_t>(std::popcount(presence(map, at, count)));
    }
    return bits;
  }
  // Values at their places, zeros between them, from the first on, which begins a group.
  WEFT_INLINE static void place_from(Bytes present, const Word* next, std::size_t first, std::size_t count,
                                     std::byte* dst) noexcept {
    std::memset(dst + first * kItem, 0, (count - first) * kItem);
    for (std::size_t at = first; at < count; at += kPlaneGroup) {
      for (std::uint32_t left = presence(present, at, count); left != 0; left &= left - 1) {
        const std::size_t i = at + static_cast<std::size_t>(std::countr_zero(left));
        std::memcpy(dst + i * kItem, next++, kItem);
      }
    }
  }
#if defined(__x86_64__)
  WEFT_AVX2 static std::size_t number_avx2(Bytes map, std::size_t count) noexcept {
    return number_loop(map, count);
  }
  // Some are always put, and counted or not, as they were taken: what is none goes behind the group
  // and is written over by the next one.
  WEFT_AVX2 static void place_avx2(Bytes present, const Word* next, std::size_t count,
                                   std::byte* dst) noexcept {
    std::size_t at = 0;
    for (; at + 2 * kPlaneGroup <= count; at += kPlaneGroup) {
      std::byte* to = dst + at * kItem;
      for (std::size_t k = 0; k < kPlaneGroup * kItem; k += 32) store_words(to + k, _mm256_setzero_si256());
      std::uint32_t left = word_at<std::uint32_t>(present.data(), at / kPlaneGroup);
      const auto found = static_cast<std::size_t>(std::popcount(left));
#pragma GCC unroll 4
      for (std::size_t k = 0; k < kOftenKept; ++k, left = _blsr_u32(left)) {
        std::memcpy(to + _tzcnt_u32(left) * kItem, next + k, kItem);
      }
      for (std::size_t k = kOftenKept; k < found; ++k, left = _blsr_u32(left)) {
        std::memcpy(to + _tzcnt_u32(left) * kItem, next + k, kItem);
      }
      next += found;
    }
    place_from(present, next, at, count, dst);
  }
#endif
  static std::size_t number_of(Bytes map, std::size_t count) noexcept {
#if defined(__x86_64__)
    if (level() != Level::plain) return number_avx2(map, count);
#endif
    return number_loop(map, count);
  }
  static void place(Bytes present, const Word* values, std::size_t count, std::byte* dst) noexcept {
#if defined(__x86_64__)
    if (level() != Level::plain) return place_avx2(present, values, count, dst);
#endif
    place_from(present, values, 0, count, dst);
  }
  static void place_signed(Bytes present, Bytes signs, const Word* values, std::size_t count,
                           std::byte* dst) noexcept {
    place(present, values, count, dst);
    for (std::size_t at = 0; at < count; at += kPlaneGroup) {
      const std::uint32_t zeros = presence(signs, at, count) & ~presence(present, at, count);
      for (std::uint32_t left = zeros; left != 0; left &= left - 1) {
        const std::size_t i = at + static_cast<std::size_t>(std::countr_zero(left));
        std::memcpy(dst + i * kItem, &kSign, kItem);
      }
    }
  }

  static std::uint32_t presence(Bytes map, std::size_t at, std::size_t count) noexcept {
    const auto word = word_at<std::uint32_t>(map.data(), at / kPlaneGroup);
    const std::size_t left = count - at;
    return left < kPlaneGroup ? word & ((1U << left) - 1) : word;
  }

  static bool decode_values(Bytes& from, Bytes dst) noexcept {
    const std::size_t count = dst.size() / kItem;
    if (from.size() < kHead) return false;
    Window window{static_cast<std::uint8_t>(from[0]), static_cast<std::uint8_t>(from[1]), 0};
    std::memcpy(&window.exceptions, from.data() + 2, 2);
    if (window.bits > kMostBits) return false;
    const std::size_t size = kHead + window.nbytes(count) + other_bytes(count);
    if (from.size() < size) return false;
    const std::byte* rest = from.data() + kHead;
    const std::byte* planes = rest + Fields::kRest * count;
#if defined(__x86_64__)
    if constexpr (std::is_same_v<Fields, Single>) {
      if (count == kPackBlock && window.bits != 0 && level() != Level::plain) {
        from = from.subspan(size);
        return by_bits<JoinCodes>(window.bits, rest, planes, window, dst.data());
      }
    }
#endif
    alignas(32) BlockBytes exponents, extra;
    if constexpr (Fields::kExtra != 0) {
      unpack_planes(planes, count, Fields::kExtra, extra.data());
      planes += Fields::kExtra * plane_bytes(count);
    }
    if (!read_window(planes, count, window, exponents.data())) return false;
    join<Fields>(exponents.data(), extra.data(), rest, from.size() - kHead - Fields::kRest * count, count,
                 dst.data());
    from = from.subspan(size);
    return true;
  }
};

}  // namespace weft
