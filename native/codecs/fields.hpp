// Floating-point numbers taken apart: the exponent, in which neighbours agree, and the rest.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "wide.hpp"

namespace weft {

template <class Word>
WEFT_INLINE Word word_at(const std::byte* from, std::size_t i) noexcept {
  Word word;
  std::memcpy(&word, from + i * sizeof(Word), sizeof(Word));
  return word;
}

// Bytes that do not overlap. The C library's copy goes by the processor's own instruction for
// strings, which on some is ten times slower where the places in their pages are close.
WEFT_INLINE void copy_loop(const std::byte* from, std::size_t size, std::byte* to) noexcept {
  using Line [[gnu::vector_size(32)]] = std::uint8_t;
  std::size_t at = 0;
  for (; at + 64 <= size; at += 64) {
    Line lines[2];
    std::memcpy(&lines[0], from + at, 32);
    std::memcpy(&lines[1], from + at + 32, 32);
    std::memcpy(to + at, &lines[0], 32);
    std::memcpy(to + at + 32, &lines[1], 32);
  }
  if (at < size) std::memcpy(to + at, from + at, size - at);
}
#if defined(__x86_64__)
WEFT_AVX2 inline void copy_avx2(const std::byte* from, std::size_t size, std::byte* to) noexcept {
  copy_loop(from, size, to);
}
#endif
inline void copy_wide(const std::byte* from, std::size_t size, std::byte* to) noexcept {
#if defined(__x86_64__)
  if (level() != Level::plain) return copy_avx2(from, size, to);
#endif
  copy_loop(from, size, to);
}

// float32. Turned left by one the exponent is the top byte; mantissa and sign are the other three.
struct Single {
  using Word = std::uint32_t;
  static constexpr std::size_t kRest = 3;   // bytes of a value without its exponent
  static constexpr int kExtra = 0;          // bits of it that are kept as planes

  static void split_one(Word word, std::uint8_t& exponent, std::uint8_t&, std::byte* rest) noexcept {
    const Word turned = std::rotl(word, 1);
    exponent = static_cast<std::uint8_t>(turned >> 24);
    std::memcpy(rest, &turned, 3);
  }
  static Word join_one(std::uint8_t exponent, std::uint8_t, const std::byte* rest) noexcept {
    // Byte by byte: what is written to memory in parts cannot be read at once soon after.
    const auto part = [&](int i) { return static_cast<Word>(rest[i]) << (8 * i); };
    return std::rotr(part(0) | part(1) | part(2) | static_cast<Word>(exponent) << 24, 1);
  }
};

// bfloat16: as float32, with one byte besides the exponent.
struct BrainFields {
  using Word = std::uint16_t;
  static constexpr std::size_t kRest = 1;
  static constexpr int kExtra = 0;

  WEFT_INLINE static void split_one(Word word, std::uint8_t& exponent, std::uint8_t&,
                                    std::byte* rest) noexcept {
    const auto turned = static_cast<Word>(word << 1 | word >> 15);
    exponent = static_cast<std::uint8_t>(turned >> 8);
    *rest = static_cast<std::byte>(turned & 0xff);
  }
  WEFT_INLINE static Word join_one(std::uint8_t exponent, std::uint8_t, const std::byte* rest) noexcept {
    const auto turned = static_cast<Word>(exponent << 8 | static_cast<unsigned>(*rest));
    return static_cast<Word>(turned >> 1 | turned << 15);
  }
};

// float16: five bits of exponent; the sign and two bits of mantissa become planes.
struct HalfFields {
  using Word = std::uint16_t;
  static constexpr std::size_t kRest = 1;
  static constexpr int kExtra = 3;

  WEFT_INLINE static void split_one(Word word, std::uint8_t& exponent, std::uint8_t& extra,
                                    std::byte* rest) noexcept {
    exponent = static_cast<std::uint8_t>(word >> 10 & 31);
    extra = static_cast<std::uint8_t>(word >> 15 << 2 | (word >> 8 & 3));
    *rest = static_cast<std::byte>(word & 0xff);
  }
  WEFT_INLINE static Word join_one(std::uint8_t exponent, std::uint8_t extra,
                                   const std::byte* rest) noexcept {
    return static_cast<Word>((extra >> 2 & 1) << 15 | (exponent & 31) << 10 | (extra & 3) << 8 |
                             static_cast<unsigned>(*rest));
  }
};

template <class Fields>
WEFT_INLINE void split_from(const std::byte* src, std::size_t first, std::size_t count,
                            std::uint8_t* exponents, std::uint8_t* extra, std::byte* rest) noexcept {
  std::uint8_t unused = 0;
  for (std::size_t i = first; i < count; ++i) {
    Fields::split_one(word_at<typename Fields::Word>(src, i), exponents[i],
                      Fields::kExtra != 0 ? extra[i] : unused, rest + i * Fields::kRest);
  }
}

template <class Fields>
WEFT_INLINE void join_from(const std::uint8_t* exponents, const std::uint8_t* extra, const std::byte* rest,
                           std::size_t first, std::size_t count, std::byte* dst) noexcept {
  for (std::size_t i = first; i < count; ++i) {
    const auto word =
        Fields::join_one(exponents[i], Fields::kExtra != 0 ? extra[i] : 0, rest + i * Fields::kRest);
    std::memcpy(dst + i * sizeof(word), &word, sizeof(word));
  }
}

#if defined(__x86_64__)
template <class Fields>
WEFT_AVX2 void split_avx2(const std::byte* src, std::size_t count, std::uint8_t* exponents,
                          std::uint8_t* extra, std::byte* rest) noexcept {
  split_from<Fields>(src, 0, count, exponents, extra, rest);  // becomes vectors by itself
}
template <class Fields>
WEFT_AVX2 void join_avx2(const std::uint8_t* exponents, const std::uint8_t* extra, const std::byte* rest,
                         std::size_t, std::size_t count, std::byte* dst) noexcept {
  join_from<Fields>(exponents, extra, rest, 0, count, dst);
}

WEFT_AVX2 inline __m256i load_words(const void* from) noexcept {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
WEFT_AVX2 inline void store_words(void* to, __m256i words) noexcept {
  _mm256_storeu_si256(static_cast<__m256i*>(to), words);
}

// Three bytes of four do not become vectors by themselves. Of 32 values they fill three vectors:
// each of four goes to its place among these, so that nothing is written twice.
template <>
WEFT_AVX2 inline void split_avx2<Single>(const std::byte* src, std::size_t count, std::uint8_t* exponents,
                                         std::uint8_t* extra, std::byte* rest) noexcept {
  const __m256i low = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1,  //
                                       0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  const __m256i places[4] = {
      _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 7, 7), _mm256_setr_epi32(2, 4, 5, 6, 7, 7, 0, 1),
      _mm256_setr_epi32(5, 6, 7, 7, 0, 1, 2, 4), _mm256_setr_epi32(7, 7, 0, 1, 2, 4, 5, 6)};
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    __m256i top[4], three[4];
#pragma GCC unroll 4
    for (std::size_t k = 0; k < 4; ++k) {
      const __m256i word = load_words(src + 4 * (i + 8 * k));
      const __m256i turned = _mm256_or_si256(_mm256_add_epi32(word, word), _mm256_srli_epi32(word, 31));
      three[k] = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(turned, low), places[k]);
      top[k] = _mm256_srli_epi32(turned, 24);
    }
    store_words(rest + 3 * i, _mm256_blend_epi32(three[0], three[1], 0xc0));
    store_words(rest + 3 * i + 32, _mm256_blend_epi32(three[1], three[2], 0xf0));
    store_words(rest + 3 * i + 64, _mm256_blend_epi32(three[2], three[3], 0xfc));
    const __m256i bytes =
        _mm256_packus_epi16(_mm256_packus_epi32(top[0], top[1]), _mm256_packus_epi32(top[2], top[3]));
    store_words(exponents + i, _mm256_permutevar8x32_epi32(bytes, order));
  }
  split_from<Single>(src, i, count, exponents, extra, rest);
}

template <>
WEFT_AVX2 inline void split_avx2<BrainFields>(const std::byte* src, std::size_t count,
                                              std::uint8_t* exponents, std::uint8_t* extra,
                                              std::byte* rest) noexcept {
  const __m256i low = _mm256_set1_epi16(0xff);
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    __m256i bytes[2], top[2];
#pragma GCC unroll 2
    for (std::size_t k = 0; k < 2; ++k) {
      const __m256i word = load_words(src + 2 * (i + 16 * k));
      const __m256i twice = _mm256_add_epi16(word, word);
      bytes[k] = _mm256_or_si256(_mm256_and_si256(twice, low), _mm256_srli_epi16(word, 15));
      top[k] = _mm256_srli_epi16(twice, 8);
    }
    store_words(rest + i, _mm256_permute4x64_epi64(_mm256_packus_epi16(bytes[0], bytes[1]), 0xd8));
    store_words(exponents + i, _mm256_permute4x64_epi64(_mm256_packus_epi16(top[0], top[1]), 0xd8));
  }
  split_from<BrainFields>(src, i, count, exponents, extra, rest);
}

// Eight values from the i-th on. Loaded from four bytes before, the middle of 24 bytes is where
// halves of a vector meet: shuffles do not cross it. What stands there is the head of a block. Four
// bytes behind the 24 are read as well.
WEFT_AVX2 inline void join_eight(const std::uint8_t* exponents, const std::byte* rest, std::size_t i,
                                 std::byte* dst) noexcept {
  const __m256i low = _mm256_setr_epi8(4, 5, 6, -1, 7, 8, 9, -1, 10, 11, 12, -1, 13, 14, 15, -1,  //
                                       0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
  const __m256i top = _mm256_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3,  //
                                       -1, -1, -1, 4, -1, -1, -1, 5, -1, -1, -1, 6, -1, -1, -1, 7);
  const __m256i three = load_words(rest + 3 * i - 4);
  const __m256i eight =
      _mm256_set1_epi64x(word_at<long long>(reinterpret_cast<const std::byte*>(exponents), i / 8));
  const __m256i turned = _mm256_or_si256(_mm256_shuffle_epi8(three, low), _mm256_shuffle_epi8(eight, top));
  store_words(dst + 4 * i, _mm256_or_si256(_mm256_srli_epi32(turned, 1), _mm256_slli_epi32(turned, 31)));
}

template <>
WEFT_AVX2 inline void join_avx2<Single>(const std::uint8_t* exponents, const std::uint8_t* extra,
                                        const std::byte* rest, std::size_t behind, std::size_t count,
                                        std::byte* dst) noexcept {
  std::size_t i = 0;
  for (; 3 * i + 28 <= 3 * count + behind && i + 8 <= count; i += 8) join_eight(exponents, rest, i, dst);
  join_from<Single>(exponents, extra, rest, i, count, dst);
}

template <>
WEFT_AVX2 inline void join_avx2<BrainFields>(const std::uint8_t* exponents, const std::uint8_t* extra,
                                             const std::byte* rest, std::size_t, std::size_t count,
                                             std::byte* dst) noexcept {
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m256i top = _mm256_permute4x64_epi64(load_words(exponents + i), 0xd8);
    const __m256i low = _mm256_permute4x64_epi64(load_words(rest + i), 0xd8);
    const __m256i turned[2] = {_mm256_unpacklo_epi8(low, top), _mm256_unpackhi_epi8(low, top)};
#pragma GCC unroll 2
    for (std::size_t k = 0; k < 2; ++k) {
      const __m256i word = _mm256_or_si256(_mm256_srli_epi16(turned[k], 1), _mm256_slli_epi16(turned[k], 15));
      store_words(dst + 2 * (i + 16 * k), word);
    }
  }
  join_from<BrainFields>(exponents, extra, rest, i, count, dst);
}
#endif

template <class Fields>
void split(const std::byte* src, std::size_t count, std::uint8_t* exponents, std::uint8_t* extra,
           std::byte* rest) noexcept {
#if defined(__x86_64__)
  if (level() != Level::plain) return split_avx2<Fields>(src, count, exponents, extra, rest);
#endif
  split_from<Fields>(src, 0, count, exponents, extra, rest);
}

// ``rest`` may be read ``behind`` bytes beyond its end, and four before it.
template <class Fields>
void join(const std::uint8_t* exponents, const std::uint8_t* extra, const std::byte* rest, std::size_t behind,
          std::size_t count, std::byte* dst) noexcept {
#if defined(__x86_64__)
  if (level() != Level::plain) return join_avx2<Fields>(exponents, extra, rest, behind, count, dst);
#else
  (void)behind;
#endif
  join_from<Fields>(exponents, extra, rest, 0, count, dst);
}

}  // namespace weft
