// Code for the vectors this machine has, chosen when it runs: one build serves all machines.
// Without fused multiply-add, so that every level rounds alike.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "half.hpp"
#include "operators.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#define WEFT_AVX2 [[gnu::target("avx2,f16c,bmi,popcnt")]]
#define WEFT_AVX512 [[gnu::target("avx2,f16c,bmi,popcnt,avx512f,avx512bw,avx512dq,avx512vl")]]
#define WEFT_AVX512_BF16 [[gnu::target("avx2,f16c,bmi,popcnt,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]]
#endif
#define WEFT_INLINE [[gnu::always_inline]] inline

namespace weft {

enum class Level : std::uint8_t { plain, avx2, avx512, avx512_bf16 };

// At most avx512: only reductions of bfloat16 look for more.
inline Level level() noexcept {
#if defined(__x86_64__)
  static const Level found = [] {
    for (const bool has : {bool(__builtin_cpu_supports("avx2")), bool(__builtin_cpu_supports("f16c")),
                           bool(__builtin_cpu_supports("bmi")), bool(__builtin_cpu_supports("popcnt"))}) {
      if (!has) return Level::plain;
    }
    for (const bool has :
         {bool(__builtin_cpu_supports("avx512f")), bool(__builtin_cpu_supports("avx512bw")),
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

// Whether the machine has instructions that round to bfloat16.
inline bool has_avx512_bf16() noexcept {
#if defined(__x86_64__)
  static const bool found = level() == Level::avx512 && bool(__builtin_cpu_supports("avx512bf16"));
  return found;
#else
  return false;
#endif
}

// Pairs of bfloat16 in words of 32 bits: the upper one is a float when the lower one is masked, the lower
// one when it is shifted. So a loop over words needs no instructions that widen and narrow vectors. ivdep:
// out is a or b, or far from both.
template <class Op>
WEFT_INLINE void merge_brains(const std::byte* a, const std::byte* b, std::byte* out,
                              std::size_t count) noexcept {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count / 2; ++i) {
    std::uint32_t left, right;
    std::memcpy(&left, a + 4 * i, 4);
    std::memcpy(&right, b + 4 * i, 4);
    const auto of = [](std::uint32_t bits) { return std::bit_cast<float>(bits); };
    const Brain low = Brain::from(Op::apply(of(left << 16), of(right << 16)));
    const Brain high = Brain::from(Op::apply(of(left & 0xffff0000U), of(right & 0xffff0000U)));
    const std::uint32_t both = static_cast<std::uint32_t>(high.bits) << 16 | low.bits;
    std::memcpy(out + 4 * i, &both, 4);
  }
  for (std::size_t i = count / 2 * 2; i < count; ++i) {
    Brain left, right;
    std::memcpy(&left, a + 2 * i, 2);
    std::memcpy(&right, b + 2 * i, 2);
    left = combine<Op>(left, right);
    std::memcpy(out + 2 * i, &left, 2);
  }
}

#if defined(__x86_64__)
// A vector whose shifts are operators: those of immintrin.h warn in GCC 12 (its bug 105593).
using Words [[gnu::vector_size(64)]] = std::uint32_t;

template <class Op>
WEFT_AVX512 WEFT_INLINE Words combined(Words left, Words right) noexcept {
  std::array<float, 16> x, y;
  std::memcpy(x.data(), &left, sizeof(Words));
  std::memcpy(y.data(), &right, sizeof(Words));
  for (std::size_t k = 0; k < 16; ++k) x[k] = Op::apply(x[k], y[k]);
  std::memcpy(&left, x.data(), sizeof(Words));
  return left;
}

// The same with all 32 of a vector rounded at once: the upper halves of the results are kept, and grow by
// one where the lower halves are more than a half, or a half and the kept one is odd. That takes half the
// instructions of rounding word by word: 128 KiB in the second-level cache 14.0 us, 16.9 us before. Vectors
// with NaNs, whose payload could overflow, take the other way.
template <class Op>
WEFT_AVX512 void merge_brains_avx512(const std::byte* a, const std::byte* b, std::byte* out,
                                     std::size_t count) noexcept {
  constexpr __mmask32 kOdd = 0xaaaaaaaaU;
  const __m512i one = _mm512_set1_epi16(1), half = _mm512_set1_epi16(static_cast<short>(0x8000));
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const auto left = reinterpret_cast<Words>(_mm512_loadu_si512(a + 2 * i));
    const auto right = reinterpret_cast<Words>(_mm512_loadu_si512(b + 2 * i));
    const Words low = combined<Op>(left << 16, right << 16);
    const Words high = combined<Op>(left & 0xffff0000U, right & 0xffff0000U);
    if (_mm512_cmp_ps_mask(reinterpret_cast<__m512>(low), reinterpret_cast<__m512>(high), _CMP_UNORD_Q) !=
        0) {
      merge_brains<Op>(a + 2 * i, b + 2 * i, out + 2 * i, 32);
      continue;
    }
    const __m512i kept =
        _mm512_mask_blend_epi16(kOdd, reinterpret_cast<__m512i>(low >> 16), reinterpret_cast<__m512i>(high));
    const __m512i dropped =
        _mm512_mask_blend_epi16(kOdd, reinterpret_cast<__m512i>(low), reinterpret_cast<__m512i>(high << 16));
    const __m512i tied = _mm512_adds_epu16(dropped, _mm512_and_si512(kept, one));  // saturates: no overflow
    const __mmask32 grows = _mm512_cmpgt_epu16_mask(tied, half);
    _mm512_storeu_si512(out + 2 * i, _mm512_mask_add_epi16(kept, grows, kept, one));
  }
  merge_brains<Op>(a + 2 * i, b + 2 * i, out + 2 * i, count - i);
}

// The same by the instructions that round. They flush subnormal numbers to zero, which the other levels
// keep; so vectors that have any take the other way.
template <class Op>
WEFT_AVX512_BF16 void merge_brains_avx512_bf16(const std::byte* a, const std::byte* b, std::byte* out,
                                               std::size_t count) noexcept {
  constexpr int kSubnormal = 0x20;
  alignas(64) std::array<std::uint16_t, 32> places;
  for (std::uint16_t i = 0; i < 16; ++i) {
    places[2U * i] = i;
    places[2U * i + 1] = static_cast<std::uint16_t>(16 + i);
  }
  const __m512i interleaved = _mm512_load_si512(places.data());
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const auto left = reinterpret_cast<Words>(_mm512_loadu_si512(a + 2 * i));
    const auto right = reinterpret_cast<Words>(_mm512_loadu_si512(b + 2 * i));
    const auto low = reinterpret_cast<__m512>(combined<Op>(left << 16, right << 16));
    const auto high = reinterpret_cast<__m512>(combined<Op>(left & 0xffff0000U, right & 0xffff0000U));
    if ((_mm512_fpclass_ps_mask(low, kSubnormal) | _mm512_fpclass_ps_mask(high, kSubnormal)) != 0) {
      merge_brains<Op>(a + 2 * i, b + 2 * i, out + 2 * i, 32);
      continue;
    }
    const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    _mm512_storeu_si512(out + 2 * i, _mm512_permutexvar_epi16(interleaved, rounded));
  }
  merge_brains<Op>(a + 2 * i, b + 2 * i, out + 2 * i, count - i);
}

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
void merge_brains_avx512(const std::byte*, const std::byte*, std::byte*, std::size_t) noexcept {}
template <class Op>
void merge_brains_avx512_bf16(const std::byte*, const std::byte*, std::byte*, std::size_t) noexcept {}
template <class Op>
void merge_halves(const std::byte*, const std::byte*, std::byte*, std::size_t) noexcept {}
#endif

}  // namespace weft
