// Floats from and to narrower ones, and to integers of a byte, many at a time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "half.hpp"
#include "wide.hpp"

namespace weft {

// Where it lies does not matter: chunks begin anywhere.
using Loose [[gnu::aligned(1)]] = float;

// float as a value type like Half, Brain and Float8.
struct Plain {
  float value;
  static Plain from(float value) noexcept { return {value}; }
  explicit operator float() const noexcept { return value; }
};

// Adding this leaves the nearest integer, ties to even, in the low bits.
inline constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23

// Every function here has a loop that serves any machine, and for the rest of what was done in
// vectors: both round alike.
template <class T>
WEFT_INLINE void widen_from(const std::byte* from, std::size_t first, std::size_t count, Loose* to) noexcept {
  for (std::size_t i = first; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    to[i] = static_cast<float>(value);
  }
}

template <class T>
WEFT_INLINE void narrow_from(const Loose* from, std::size_t first, std::size_t count,
                             std::byte* to) noexcept {
  for (std::size_t i = first; i < count; ++i) {
    const T value = T::from(from[i]);
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
}

inline void to_integers_from(const Loose* values, std::size_t first, std::size_t count, float factor,
                             std::int8_t* to) noexcept {
  for (std::size_t i = first; i < count; ++i) {
    to[i] = static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(values[i] * factor + kRounder));
  }
}

inline void from_integers_from(const std::int8_t* from, std::size_t first, std::size_t count, float scale,
                               Loose* to) noexcept {
  for (std::size_t i = first; i < count; ++i) to[i] = static_cast<float>(from[i]) * scale;
}

// The size of the largest, as bits: these order sizes as numbers do, what is not finite on top.
inline std::uint32_t largest_from(const Loose* values, std::size_t first, std::size_t count) noexcept {
  std::uint32_t most = 0;
  for (std::size_t i = first; i < count; ++i) {
    most = std::max(most, std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffU);
  }
  return most;
}

#if defined(__x86_64__)
template <class T>
WEFT_AVX2 void widen_avx2(const std::byte* from, std::size_t count, Loose* to) noexcept {
  widen_from<T>(from, 0, count, to);
}
template <class T>
WEFT_AVX2 void narrow_avx2(const Loose* from, std::size_t count, std::byte* to) noexcept {
  narrow_from<T>(from, 0, count, to);
}

template <>
WEFT_AVX2 inline void widen_avx2<Half>(const std::byte* from, std::size_t count, Loose* to) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i));
    _mm256_storeu_ps(reinterpret_cast<float*>(to + i), _mm256_cvtph_ps(eight));
  }
  widen_from<Half>(from, i, count, to);
}
template <>
WEFT_AVX2 inline void narrow_avx2<Half>(const Loose* from, std::size_t count, std::byte* to) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i eight =
        _mm256_cvtps_ph(_mm256_loadu_ps(reinterpret_cast<const float*>(from + i)), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * i), eight);
  }
  narrow_from<Half>(from, i, count, to);
}

template <>
WEFT_AVX2 inline void widen_avx2<Brain>(const std::byte* from, std::size_t count, Loose* to) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i));
    const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16);
    _mm256_storeu_ps(reinterpret_cast<float*>(to + i), _mm256_castsi256_ps(wide));
  }
  widen_from<Brain>(from, i, count, to);
}

// What is not a number loses its lowest bits only, and stays none; the others are rounded.
WEFT_AVX2 inline __m256i rounded_brains(__m256i wide) noexcept {
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(wide, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(_mm256_add_epi32(wide, _mm256_set1_epi32(0x7fff)), odd);
  return _mm256_srli_epi32(up, 16);
}
template <>
WEFT_AVX2 inline void narrow_avx2<Brain>(const Loose* from, std::size_t count, std::byte* to) noexcept {
  const auto load = [&](std::size_t at) __attribute__((target("avx2"))) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(from + at));
  };
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m256 value[4] = {load(i), load(i + 8), load(i + 16), load(i + 24)};
    // One comparison of two finds what is not a number in either.
    const __m256 odd = _mm256_or_ps(_mm256_cmp_ps(value[0], value[1], _CMP_UNORD_Q),
                                    _mm256_cmp_ps(value[2], value[3], _CMP_UNORD_Q));
    if (_mm256_movemask_ps(odd) != 0) [[unlikely]] {
      narrow_from<Brain>(from, i, i + 32, to);
      continue;
    }
#pragma GCC unroll 2
    for (std::size_t k = 0; k < 4; k += 2) {
      const __m256i both = _mm256_packus_epi32(rounded_brains(_mm256_castps_si256(value[k])),
                                               rounded_brains(_mm256_castps_si256(value[k + 1])));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 2 * (i + 8 * k)),
                          _mm256_permute4x64_epi64(both, 0xd8));
    }
  }
  narrow_from<Brain>(from, i, count, to);
}

WEFT_AVX2 inline __m256i integers_of(const Loose* from, __m256 factor) noexcept {
  return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(reinterpret_cast<const float*>(from)), factor));
}
WEFT_AVX2 inline void to_integers_avx2(const Loose* values, std::size_t count, float factor,
                                       std::int8_t* to) noexcept {
  const __m256 by = _mm256_set1_ps(factor);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m256i low = _mm256_packs_epi32(integers_of(values + i, by), integers_of(values + i + 8, by));
    const __m256i high =
        _mm256_packs_epi32(integers_of(values + i + 16, by), integers_of(values + i + 24, by));
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), bytes);
  }
  to_integers_from(values, i, count, factor, to);
}

WEFT_AVX2 inline void from_integers_avx2(const std::int8_t* from, std::size_t count, float scale,
                                         Loose* to) noexcept {
  const __m256 by = _mm256_set1_ps(scale);
  std::size_t i = 0;
  const auto eight = [&](std::size_t at) __attribute__((target("avx2"))) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + at));
    const __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    _mm256_storeu_ps(reinterpret_cast<float*>(to + at), _mm256_mul_ps(values, by));
  };
  for (; i + 32 <= count; i += 32) {  // so many at once: a block's end is then foreseen
    eight(i), eight(i + 8), eight(i + 16), eight(i + 24);
  }
  for (; i + 8 <= count; i += 8) eight(i);
  from_integers_from(from, i, count, scale, to);
}

WEFT_AVX2 inline std::uint32_t largest_avx2(const Loose* values, std::size_t count) noexcept {
  const __m256i no_sign = _mm256_set1_epi32(0x7fffffff);
  __m256i most[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (std::size_t k = 0; k < 2; ++k) {
      const auto* from = reinterpret_cast<const __m256i*>(values + i + 8 * k);
      most[k] = _mm256_max_epu32(most[k], _mm256_and_si256(_mm256_loadu_si256(from), no_sign));
    }
  }
  alignas(32) std::uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), _mm256_max_epu32(most[0], most[1]));
  return std::max(*std::max_element(lanes, lanes + 8), largest_from(values, i, count));
}
#endif

template <class T>
void widen(const std::byte* from, std::size_t count, Loose* to) noexcept {
#if defined(__x86_64__)
  if (level() != Level::plain) return widen_avx2<T>(from, count, to);
#endif
  widen_from<T>(from, 0, count, to);
}

template <class T>
void narrow(const Loose* from, std::size_t count, std::byte* to) noexcept {
#if defined(__x86_64__)
  if (level() != Level::plain) return narrow_avx2<T>(from, count, to);
#endif
  narrow_from<T>(from, 0, count, to);
}

// Each value times ``factor``, which must leave it within a byte.
inline void to_integers(const Loose* values, std::size_t count, float factor, std::int8_t* to) noexcept {
#if defined(__x86_64__)
  if (level() != Level::plain) return to_integers_avx2(values, count, factor, to);
#endif
  to_integers_from(values, 0, count, factor, to);
}

inline void from_integers(const std::int8_t* from, std::size_t count, float scale, Loose* to) noexcept {
#if defined(__x86_64__)
  if (level() != Level::plain) return from_integers_avx2(from, count, scale, to);
#endif
  from_integers_from(from, 0, count, scale, to);
}

inline std::uint32_t largest(const Loose* values, std::size_t count) noexcept {
#if defined(__x86_64__)
  if (level() != Level::plain) return largest_avx2(values, count);
#endif
  return largest_from(values, 0, count);
}

}  // namespace weft
