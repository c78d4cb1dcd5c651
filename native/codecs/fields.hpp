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

// float32. Turned left by one the exponent is the top byte; mantissa and sign are the other three.
struct Single {
  using Word = std::uint32_t;
  static constexpr std::size_t kRest = 3;   // bytes of a value beside its exponent
  static constexpr int kExtra = 0;          // bits of it that are kept as planes

  static void split_one(Word word, std::uint8_t& exponent, std::uint8_t&, std::byte* rest) noexcept {
    const Word turned = std::rotl(word, 1);
    exponent = static_cast<std::uint8_t>(turned >> 24);
    std::memcpy(rest, &turned, 3);
  }
  static Word join_one(std::uint8_t exponent, std::uint8_t, const std::byte* rest) noexcept {
    Word turned = 0;
    std::memcpy(&turned, rest, 3);
    return std::rotr(turned | static_cast<Word>(exponent) << 24, 1);
  }
};

// bfloat16: as float32, with one byte beside the exponent.
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

// float16: five bits of exponent; the sign and two bits of mantissa beside it become planes.
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
                            std::uint8_t* exponents, std::uint8_t* extra,
                            std::byte* rest) noexcept {
  std::uint8_t unused = 0;
  for (std::size_t i = first; i < count; ++i) {
    Fields::split_one(word_at<typename Fields::Word>(src, i), exponents[i],
                      Fields::kExtra != 0 ? extra[i] : unused, rest + i * Fields::kRest);
  }
}

template <class Fields>
WEFT_INLINE void join_from(const std::uint8_t* exponents, const std::uint8_t* extra,
                           const std::byte* rest, std::size_t first, std::size_t count,
                           std::byte* dst) noexcept {
  for (std::size_t i = first; i < count; ++i) {
    const auto word = Fields::join_one(exponents[i], Fields::kExtra != 0 ? extra[i] : 0,
                                       rest + i * Fields::kRest);
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
WEFT_AVX2 void join_avx2(const std::uint8_t* exponents, const std::uint8_t* extra,
                         const std::byte* rest, std::size_t count, std::byte* dst) noexcept {
  join_from<Fields>(exponents, extra, rest, 0, count, dst);
}

// Three bytes of four do not become vectors by themselves. A store writes eight bytes more than
// it means to, so the last values are left to the loop above.
template <>
WEFT_AVX2 inline void split_avx2<Single>(const std::byte* src, std::size_t count,
                                         std::uint8_t* exponents, std::uint8_t* extra,
                                         std::byte* rest) noexcept {
  const __m256i low = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1,  //
                                       0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  const __m256i close = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 7, 7);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  std::size_t i = 0;
  for (; i + 40 <= count; i += 32) {
    __m256i top[4];
    for (std::size_t k = 0; k < 4; ++k) {
      const auto* from = reinterpret_cast<const __m256i*>(src + 4 * (i + 8 * k));
      const __m256i word = _mm256_loadu_si256(from);
      const __m256i turned = _mm256_or_si256(_mm256_slli_epi32(word, 1), _mm256_srli_epi32(word, 31));
      const __m256i three = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(turned, low), close);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(rest + 3 * (i + 8 * k)), three);
      top[k] = _mm256_srli_epi32(turned, 24);
    }
    const __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(top[0], top[1]),
                                              _mm256_packus_epi32(top[2], top[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(exponents + i),
                        _mm256_permutevar8x32_epi32(bytes, order));
  }
  split_from<Single>(src, i, count, exponents, extra, rest);
}

template <>
WEFT_AVX2 inline void join_avx2<Single>(const std::uint8_t* exponents, const std::uint8_t* extra,
                                        const std::byte* rest, std::size_t count,
                                        std::byte* dst) noexcept {
  const __m256i low = _mm256_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1,  //
                                       0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
  std::size_t i = 0;
  const auto load16 = [](const std::byte* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  };
  for (; i + 16 <= count; i += 8) {  // a load reads four bytes more than it needs
    // Two halves loaded apart: moving them apart would take the one port that all shuffles need.
    const __m256i three = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(rest + 3 * i)),
                                                  load16(rest + 3 * i + 12), 1);
    const __m256i wide = _mm256_shuffle_epi8(three, low);
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(exponents + i));
    const __m256i top = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 24);
    const __m256i turned = _mm256_or_si256(wide, top);
    const __m256i word = _mm256_or_si256(_mm256_srli_epi32(turned, 1), _mm256_slli_epi32(turned, 31));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + 4 * i), word);
  }
  join_from<Single>(exponents, extra, rest, i, count, dst);
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

template <class Fields>
void join(const std::uint8_t* exponents, const std::uint8_t* extra, const std::byte* rest,
          std::size_t count, std::byte* dst) noexcept {
#if defined(__x86_64__)
  if (level() != Level::plain) return join_avx2<Fields>(exponents, extra, rest, count, dst);
#endif
  join_from<Fields>(exponents, extra, rest, 0, count, dst);
}

}  // namespace weft
