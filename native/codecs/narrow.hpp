// "bf16", "fp16", "fp8": values rounded to a narrower type, ties to even.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "codecs/convert.hpp"
#include "move.hpp"

namespace weft {

// From is what the values are, To what they become.
template <class From, class To>
class Narrow {
 public:
  static constexpr std::size_t worst(std::size_t nbytes) noexcept {
    return nbytes / sizeof(From) * sizeof(To);
  }

  static std::size_t encode(Bytes src, Bytes out) noexcept {
    const std::size_t count = src.size() / sizeof(From);
    convert<From, To>(src.data(), count, out.data());
    return count * sizeof(To);
  }

  static bool decode(Bytes from, Bytes dst) noexcept {
    const std::size_t count = dst.size() / sizeof(From);
    if (dst.size() % sizeof(From) != 0 || from.size() != count * sizeof(To)) return false;
    convert<To, From>(from.data(), count, dst.data());
    return true;
  }

 private:
  template <class A, class B>
  static void convert(const std::byte* from, std::size_t count, std::byte* to) noexcept {
    if constexpr (sizeof(A) == sizeof(float)) {
      narrow<B>(reinterpret_cast<const Loose*>(from), count, to);
    } else if constexpr (sizeof(B) == sizeof(float)) {
      widen<A>(from, count, reinterpret_cast<Loose*>(to));
    } else {
      alignas(64) std::array<float, 1024> held;
      for (std::size_t at = 0; at < count; at += held.size()) {
        const std::size_t some = std::min(held.size(), count - at);
        widen<A>(from + at * sizeof(A), some, held.data());
        narrow<B>(held.data(), some, to + at * sizeof(B));
      }
    }
  }
};

}  // namespace weft
