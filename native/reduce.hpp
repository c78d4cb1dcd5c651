// Reductions: dst = srcs[0] op srcs[1] op .., element by element and in that order.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "half.hpp"
#include "move.hpp"

namespace weft {

// Integers wrap around. That is defined for unsigned ones, of which the short ones would be
// promoted to int again.
template <class T, bool = std::is_integral_v<T>>
struct WrappingOf {
  using type = std::common_type_t<unsigned, std::make_unsigned_t<T>>;
};
template <class T>
struct WrappingOf<T, false> {
  using type = T;
};
template <class T>
using Wrapping = typename WrappingOf<T>::type;

struct Sum {
  template <class T>
  static T apply(T a, T b) noexcept {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
};

struct Product {
  template <class T>
  static T apply(T a, T b) noexcept {
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  }
};

// Not-a-number wins, whichever side it is on.
struct Minimum {
  template <class T>
  static T apply(T a, T b) noexcept {
    return a < b || a != a ? a : b;
  }
};

struct Maximum {
  template <class T>
  static T apply(T a, T b) noexcept {
    return a > b || a != a ? a : b;
  }
};

template <class Op, class T>
T combine(T a, T b) noexcept {
  if constexpr (std::is_arithmetic_v<T>) {
    return Op::apply(a, b);
  } else {
    return T::from(Op::apply(static_cast<float>(a), static_cast<float>(b)));
  }
}

// A block of each source in turn is combined in the first-level cache and written once, so
// dst may be one of the sources. Sources need no alignment.
template <class T, class Op>
void reduce(std::span<const Bytes> srcs, Bytes dst) noexcept {
  constexpr std::size_t kBlock = 4096;
  alignas(64) std::array<T, kBlock / sizeof(T)> held;
  for (std::size_t at = 0; at < dst.size(); at += kBlock) {
    const std::size_t size = std::min(kBlock, dst.size() - at);
    std::memcpy(held.data(), srcs[0].data() + at, size);
    for (const Bytes src : srcs.subspan(1)) {
      const std::byte* from = src.data() + at;
      for (std::size_t i = 0; i < size / sizeof(T); ++i) {
        T value;
        std::memcpy(&value, from + i * sizeof(T), sizeof(T));
        held[i] = combine<Op>(held[i], value);
      }
    }
    std::memcpy(dst.data() + at, held.data(), size);
  }
}

struct Reduction {
  void (*apply)(std::span<const Bytes> srcs, Bytes dst) noexcept = nullptr;
  std::size_t item_bytes = 1;
};

template <class T>
Reduction reduction_of(std::string_view op) {
  if (op == "sum") return {&reduce<T, Sum>, sizeof(T)};
  if (op == "prod") return {&reduce<T, Product>, sizeof(T)};
  if (op == "min") return {&reduce<T, Minimum>, sizeof(T)};
  if (op == "max") return {&reduce<T, Maximum>, sizeof(T)};
  throw std::invalid_argument("no reduction is called '" + std::string(op) + "'");
}

inline Reduction reduction_of(std::string_view dtype, std::string_view op) {
  if (dtype == "float64") return reduction_of<double>(op);
  if (dtype == "float32") return reduction_of<float>(op);
  if (dtype == "float16") return reduction_of<Half>(op);
  if (dtype == "bfloat16") return reduction_of<Brain>(op);
  if (dtype == "int64") return reduction_of<std::int64_t>(op);
  if (dtype == "int32") return reduction_of<std::int32_t>(op);
  if (dtype == "int16") return reduction_of<std::int16_t>(op);
  if (dtype == "int8") return reduction_of<std::int8_t>(op);
  if (dtype == "uint8") return reduction_of<std::uint8_t>(op);
  throw std::invalid_argument("no reduction knows dtype '" + std::string(dtype) + "'");
}

}  // namespace weft
