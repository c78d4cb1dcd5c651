// "pack": floating-point numbers without loss. A block of 1024 values keeps sign and mantissa as
// they are and its exponents as a Window; zeros that are many are kept as a bit each.
//
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
    return nbytes + nbytes / (kPackBlock * kItem) + 1;
  }

  // ``out`` has worst(src.size()) bytes; answers how many were written. Whole values only.
  static std::size_t encode(Bytes src, Bytes out) noexcept {
    std::byte* to = out.data();
    for (std::size_t at = 0; at < src.size(); at += kPackBlock * kItem) {
      const std::size_t size = std::min(kPackBlock * kItem, src.size() - at);
      to = encode_block(src.data() + at, size / kItem, to);
    }
    return static_cast<std::size_t>(to - out.data());
  }

  // Whether ``from`` was a whole encoding of dst.size() bytes. Never reads or writes elsewhere.
  static bool decode(Bytes from, Bytes dst) noexcept {
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
  using Words = std::array<Word, kPackBlock>;

  static constexpr std::size_t beside(std::size_t count) noexcept {
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
  // Whether a value is zero, looked for in whole vectors: few blocks have one.
  WEFT_AVX2 static bool has_zero(const std::byte* src, std::size_t count) noexcept {
    __m256i least = _mm256_set1_epi8(-1), found;
    std::size_t at = 0;
    for (; at + 32 <= count * kItem; at += 32) {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + at));
      if constexpr (kItem == 4) {
        least = _mm256_min_epu32(least, _mm256_add_epi32(words, words));
      } else {
        least = _mm256_min_epu16(least, _mm256_add_epi16(words, words));
      }
    }
    if constexpr (kItem == 4) {
      found = _mm256_cmpeq_epi32(least, _mm256_setzero_si256());
    } else {
      found = _mm256_cmpeq_epi16(least, _mm256_setzero_si256());
    }
    return at < count * kItem || _mm256_movemask_epi8(found) != 0;
  }
  WEFT_AVX2 static Zeros zeros_avx2(const std::byte* src, std::size_t count) noexcept {
    return has_zero(src, count) ? zeros_loop(src, count) : Zeros{};
  }
#endif
  static Zeros zeros(const std::byte* src, std::size_t count) noexcept {
#if defined(__x86_64__)
    if (level() != Level::plain) return zeros_avx2(src, count);
#endif
    return zeros_loop(src, count);
  }

  static std::byte* encode_block(const std::byte* src, std::size_t count, std::byte* to) noexcept {
    const Zeros none = zeros(src, count);
    if (none.all == count && none.negative == 0) {
      *to = std::byte{kZero};
      return to + 1;
    }
    // A bitmap costs a bit a value; below an eighth of zeros it hardly pays.
    const bool sparse = none.all * std::size_t{8} >= count;
    std::byte* end = sparse ? encode_sparse(src, count, none, to) : encode_dense(src, count, to);
    if (end != nullptr) return end;
    *to = std::byte{kRaw};
    std::memcpy(to + 1, src, count * kItem);
    return to + 1 + count * kItem;
  }

  static std::byte* encode_dense(const std::byte* src, std::size_t count, std::byte* to) noexcept {
    *to = std::byte{kDense};
    return encode_values(src, count, to + 1, to + 1 + count * kItem);
  }

  static std::byte* encode_sparse(const std::byte* src, std::size_t count, Zeros none,
                                  std::byte* to) noexcept {
    const std::byte* limit = to + 1 + count * kItem;
    const bool with_signs = none.negative != 0;
    const auto kept = static_cast<std::uint16_t>(count - none.all);
    const std::size_t maps = plane_bytes(count) * (with_signs ? 2 : 1);
    if (1 + maps + 2 + kHead + beside(kept) >= 1 + count * kItem) return nullptr;
    *to++ = std::byte{with_signs ? kSigned : kSparse};
    std::byte* signs = to;
    if (with_signs) to += plane_bytes(count);
    alignas(64) Words values;
    std::size_t found = 0;
    for (std::size_t at = 0; at < count; at += kPlaneGroup, to += 4, signs += 4) {
      std::uint32_t present = 0, negative = 0;
      const std::size_t most = std::min(kPlaneGroup, count - at);
      for (std::size_t i = 0; i < most; ++i) {
        const Word word = word_at<Word>(src, at + i);
        const std::uint32_t something = static_cast<Word>(word << 1) != 0 ? 1 : 0;
        if (found < kept) values[found] = word;
        found += something;
        present |= something << i;
        negative |= static_cast<std::uint32_t>((word & kSign) != 0 ? 1 : 0) << i;
      }
      if (with_signs) std::memcpy(signs, &negative, 4);
      std::memcpy(to, &present, 4);
    }
    std::memcpy(to, &kept, 2);
    if (kept == 0) return to + 2;
    return encode_values(reinterpret_cast<const std::byte*>(values.data()), kept, to + 2, limit);
  }

  // Null where it would not be shorter than up to ``limit``.
  static std::byte* encode_values(const std::byte* src, std::size_t count, std::byte* to,
                                  const std::byte* limit) noexcept {
    if (kHead + beside(count) >= static_cast<std::size_t>(limit - to)) return nullptr;
    alignas(32) BlockBytes exponents, extra;
    std::byte* head = to;
    to += kHead;
    split<Fields>(src, count, exponents.data(), extra.data(), to);
    to += Fields::kRest * count;
    const Window window = best_window(exponents.data(), count);
    const std::size_t more = window.nbytes(count) + Fields::kExtra * plane_bytes(count);
    if (window.bits > kMostBits || more >= static_cast<std::size_t>(limit - to)) return nullptr;
    head[0] = std::byte{window.base};
    head[1] = std::byte{window.bits};
    std::memcpy(head + 2, &window.exceptions, 2);
    if constexpr (Fields::kExtra != 0) {
      std::memset(extra.data() + count, 0, plane_bytes(count) * 8 - count);
      pack_planes(extra.data(), count, Fields::kExtra, to);
      to += Fields::kExtra * plane_bytes(count);
    }
    write_window(exponents.data(), count, window, to);
    return to + window.nbytes(count);
  }

  static bool decode_block(Bytes& from, Bytes dst) noexcept {
    if (from.empty()) return false;
    const auto mode = static_cast<std::uint8_t>(from[0]);
    from = from.subspan(1);
    switch (mode) {
      case kZero:
        std::memset(dst.data(), 0, dst.size());
        return true;
      case kRaw:
        if (from.size() < dst.size()) return false;
        std::memcpy(dst.data(), from.data(), dst.size());
        from = from.subspan(dst.size());
        return true;
      case kDense:
        return decode_values(from, dst);
      case kSparse:
        return decode_sparse(from, dst, {});
      case kSigned: {
        const std::size_t map = plane_bytes(dst.size() / kItem);
        if (from.size() < map) return false;
        const Bytes signs = from.first(map);
        from = from.subspan(map);
        return decode_sparse(from, dst, signs);
      }
      default:
        return false;
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
    std::size_t bits = 0;
    for (std::size_t at = 0; at < count; at += kPlaneGroup) {
      bits += static_cast<std::size_t>(std::popcount(presence(present, at, count)));
    }
    if (bits != kept) return false;
    alignas(64) Words values;
    const Bytes held(reinterpret_cast<std::byte*>(values.data()), kept * kItem);
    if (kept != 0 && !decode_values(from, held)) return false;
    const Word* next = values.data();
    std::memset(dst.data(), 0, dst.size());
    for (std::size_t at = 0; at < count; at += kPlaneGroup) {
      for (std::uint32_t left = signs.empty() ? 0 : presence(signs, at, count); left != 0; left &= left - 1) {
        const std::size_t i = at + static_cast<std::size_t>(std::countr_zero(left));
        std::memcpy(dst.data() + i * kItem, &kSign, kItem);
      }
      for (std::uint32_t left = presence(present, at, count); left != 0; left &= left - 1) {
        const std::size_t i = at + static_cast<std::size_t>(std::countr_zero(left));
        std::memcpy(dst.data() + i * kItem, next++, kItem);
      }
    }
    return true;
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
    const std::size_t size = kHead + window.nbytes(count) + beside(count);
    if (from.size() < size) return false;
    alignas(32) BlockBytes exponents, extra;
    const std::byte* rest = from.data() + kHead;
    const std::byte* planes = rest + Fields::kRest * count;
    if constexpr (Fields::kExtra != 0) {
      unpack_planes(planes, count, Fields::kExtra, extra.data());
      planes += Fields::kExtra * plane_bytes(count);
    }
    if (!read_window(planes, count, window, exponents.data())) return false;
    join<Fields>(exponents.data(), extra.data(), rest, count, dst.data());
    from = from.subspan(size);
    return true;
  }
};

}  // namespace weft
