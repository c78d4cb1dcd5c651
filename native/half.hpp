// Floating point of one and two bytes, computed in float and rounded to nearest even after
// each step.
#pragma once

#include <bit>
#include <cstdint>

namespace weft {

struct Half {
  std::uint16_t bits;

  static Half from(float value) noexcept {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = wide >> 16 & 0x8000;
    const std::uint32_t size = wide & 0x7fffffff;
    if (size > 0x7f800000) return {static_cast<std::uint16_t>(sign | 0x7e00 | (size >> 13 & 0x1ff))};
    if (size >= 0x477ff000) return {static_cast<std::uint16_t>(sign | 0x7c00)};  // rounds to infinity
    if (size < 0x38800000) {  // subnormal: adding 0.5 lets the adder do the rounding
      const float shifted = std::bit_cast<float>(size) + 0.5F;
      return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000))};
    }
    const std::uint32_t odd = size >> 13 & 1;
    return {static_cast<std::uint16_t>(sign | ((size - 0x38000000 + 0xfff + odd) >> 13))};
  }

  explicit operator float() const noexcept {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
    const std::uint32_t size = bits & 0x7fff;
    if (size >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (size & 0x3ff) << 13);
    // Exact for subnormals too: the product is a float whatever the exponent.
    const float value = std::bit_cast<float>(size << 13) * 0x1p112F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
};

struct Brain {
  std::uint16_t bits;

  static Brain from(float value) noexcept {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    // Both, and a choice: a branch would keep the loop from being vectorised.
    const std::uint32_t nothing = wide >> 16 | 0x40;
    const std::uint32_t rounded = (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
    return {static_cast<std::uint16_t>((wide & 0x7fffffff) > 0x7f800000 ? nothing : rounded)};
  }

  explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

// One byte: a sign, ``kExponent`` bits of exponent, the rest mantissa. With infinities as IEEE
// has them, or without ("fn"): all ones is then the only value that is not a number.
template <int kExponent, bool kInfinities>
struct Float8 {
  static constexpr int kMantissa = 7 - kExponent;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr int kDropped = 23 - kMantissa;
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23;
  static constexpr std::uint32_t kTop = kInfinities ? ((1U << kExponent) - 1) << kMantissa : 0x7f;

  std::uint8_t bits;

  static Float8 from(float value) noexcept {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = wide >> 24 & 0x80;
    const std::uint32_t size = wide & 0x7fffffff;
    // All of them, and choices: branches would keep loops from being vectorised.
    constexpr auto kMagic = static_cast<std::uint32_t>(127 + 24 - kBias - kMantissa) << 23;
    const float shifted = std::bit_cast<float>(size) + std::bit_cast<float>(kMagic);
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - kMagic;  // the adder rounds
    const std::uint32_t odd = size >> kDropped & 1;
    const std::uint32_t normal = (size - kRebias + (1U << (kDropped - 1)) - 1 + odd) >> kDropped;
    const std::uint32_t either = size < kRebias + (1U << 23) ? subnormal : normal;
    const std::uint32_t small = either < kTop ? either : kTop;
    return {static_cast<std::uint8_t>(sign | (size > 0x7f800000 ? 0x7f : small))};
  }

  explicit operator float() const noexcept {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80) << 24;
    const std::uint32_t size = bits & 0x7f;
    if (size >= kTop) {
      const std::uint32_t mantissa = kInfinities ? (size - kTop) << kDropped : 0x400000;
      return std::bit_cast<float>(sign | 0x7f800000 | mantissa);
    }
    constexpr auto kFactor = static_cast<std::uint32_t>(127 + 127 - kBias) << 23;
    const float value = std::bit_cast<float>(size << kDropped) * std::bit_cast<float>(kFactor);
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
};
using Float8E4M3 = Float8<4, false>;
using Float8E5M2 = Float8<5, true>;

}  // namespace weft
