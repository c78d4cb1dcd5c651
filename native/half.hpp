// Two-byte floating point, computed in float and rounded to nearest even after each step.
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
    if ((wide & 0x7fffffff) > 0x7f800000) return {static_cast<std::uint16_t>(wide >> 16 | 0x40)};
    return {static_cast<std::uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16)};
  }

  explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

}  // namespace weft
