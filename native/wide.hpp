// Code for the vectors this machine has, chosen when it runs: one build serves all machines.
// Without fused multiply-add, so that every level rounds alike.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "half.hpp"
#include "operators.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#define WEFT_AVX2 [[gnu::target("avx2,f16c,bmi,popcnt")]]
#define WEFT_AVX512 [[gnu::target("avx2,f16c,bmi,popcnt,avx512f,avx512bw,avx512dq,avx512vl")]]
#endif
#define WEFT_INLINE [[gnu::always_inline]] inline

namespace weft {

enum class Level : std::uint8_t { plain, avx2, avx512 };

inline Level level() noexcept {
#if defined(__x86_64__)
  static const Level found = [] {
    for (const bool has : {bool(__builtin_cpu_supports("avx2")), bool(__builtin_cpu_supports("f16c")),
                           bool(__builtin_cpu_supports("bmi")), bool(__builtin_cpu_supports("popcnt"))}) {
      if (!has) return Level::plain;
    }
    for (const bool has : {bool(__builtin_cpu_supports("avx512f")), bool(__builtin_cpu_supports("avx512bw")),
                           bool(__builtin_cpu_supports("avx512dq")), bool(__builtin_cpu_supports("avx512vl"))}) {
      if (!has) return Level::avx2;
    }
    return Level::avx512;
  }();
  return found;
#else
  return Level::plain;
#endif
}

#if defined(__x86_64__)
// Eight at a time by the instructions that convert them; the rest one by one, alike.
template <class Op>
WEFT_AVX2 void merge_halves(const std::byte* a, const std::byte* b, std::byte* out,
                            std::size_t count) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    std::array<float, 8> left, right;
    const __m128i narrow_left = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + 2 * i));
    const __m128i narrow_right = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 2 * i));
    _mm256_storeu_ps(left.data(), _mm256_cvtph_ps(narrow_left));
    _mm256_storeu_ps(right.data(), _mm256_cvtph_ps(narrow_right));
    for (std::size_t k = 0; k < 8; ++k) left[k] = Op::apply(left[k], right[k]);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(left.data()), _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < count; ++i) {
    Half left, right;
    std::memcpy(&left, a + 2 * i, 2);
    std::memcpy(&right, b + 2 * i, 2);
    left = combine<Op>(left, right);
    std::memcpy(out + 2 * i, &left, 2);
  }
}
#else
template <class Op>
void merge_halves(const std::byte*, const std::byte*, std::byte*, std::size_t) noexcept {}
#endif

}  // namespace weft
