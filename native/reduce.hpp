// Reductions: dst = srcs[0] op srcs[1] op .., element by element and in that order.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "half.hpp"
#include "move.hpp"
#include "operators.hpp"
#include "wide.hpp"

namespace weft {

// What happens to elements besides the operator: an average divides at the end, a sum of
// products multiplies every source first.
struct Scale {
  enum class When : std::uint8_t { never, before, after };
  When when = When::never;
  double factor = 1;
};

inline constexpr std::size_t kReduceBlock = 4096;  // three of them fit the first-level cache

template <class T>
T load(const std::byte* from, std::size_t i) noexcept {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

// ivdep: out is a or b, or far from both, so element i depends on no other.
template <class T, class Op, Level kLevel>
WEFT_INLINE void merge(const std::byte* a, const std::byte* b, std::byte* out, std::size_t count) noexcept {
  if constexpr (std::is_same_v<T, Half> && kLevel != Level::plain) {
    return merge_halves<Op>(a, b, out, count);
  }
  if constexpr (std::is_same_v<T, Brain>) {
    if constexpr (kLevel == Level::avx512_bf16) return merge_brains_avx512_bf16<Op>(a, b, out, count);
    if constexpr (kLevel == Level::avx512) return merge_brains_avx512<Op>(a, b, out, count);
    return merge_brains<Op>(a, b, out, count);
  }
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    const T value = combine<Op>(load<T>(a, i), load<T>(b, i));
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

template <class T>
WEFT_INLINE T scaled(T value, const Scale& scale, std::size_t num_sources) noexcept {
  if constexpr (kIsComplex<T>) {
    return value;  // its parts are scaled one by one
  } else if constexpr (std::is_integral_v<T>) {
    if (scale.when == Scale::When::before) return static_cast<T>(static_cast<double>(value) * scale.factor);
    return static_cast<T>(value / static_cast<std::int64_t>(num_sources));
  } else if constexpr (std::is_floating_point_v<T>) {
    if (scale.when == Scale::When::before) return value * static_cast<T>(scale.factor);
    return value / static_cast<T>(num_sources);
  } else {
    return T::from(scaled(static_cast<float>(value), scale, num_sources));
  }
}

template <class T>
WEFT_INLINE void rescale(const std::byte* from, std::byte* to, std::size_t count, const Scale& scale,
                         std::size_t num_sources) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const T value = scaled(load<T>(from, i), scale, num_sources);
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
}

// A block of each source in turn is combined in the first-level cache and written once, so
// dst may be one of the sources. Sources need no alignment.
template <class T, class Op, Level kLevel>
WEFT_INLINE void reduce_blocks(std::span<const Bytes> srcs, Bytes dst, const Scale& scale) noexcept {
  alignas(64) std::array<std::byte, kReduceBlock> held, other;
  const bool before = scale.when == Scale::When::before;
  const bool after = scale.when == Scale::When::after;
  for (std::size_t at = 0; at < dst.size(); at += kReduceBlock) {
    const std::size_t size = std::min(kReduceBlock, dst.size() - at), count = size / sizeof(T);
    const auto source = [&](std::size_t i, std::byte* room) {
      const std::byte* from = srcs[i].data() + at;
      if (!before) return from;
      rescale<T>(from, room, count, scale, srcs.size());
      return static_cast<const std::byte*>(room);
    };
    const std::byte* left = source(0, held.data());
    for (std::size_t i = 1; i < srcs.size(); ++i) {
      const bool last = i + 1 == srcs.size() && !after;
      std::byte* out = last ? dst.data() + at : held.data();
      merge<T, Op, kLevel>(left, source(i, other.data()), out, count);
      left = out;
    }
    if (after) {
      rescale<T>(left, dst.data() + at, count, scale, srcs.size());
    } else if (srcs.size() == 1) {
      std::memmove(dst.data() + at, left, size);
    }
  }
}

using Reducer = void (*)(std::span<const Bytes> srcs, Bytes dst, const Scale& scale) noexcept;

template <class T, class Op>
void reduce_plain(std::span<const Bytes> srcs, Bytes dst, const Scale& scale) noexcept {
  reduce_blocks<T, Op, Level::plain>(srcs, dst, scale);
}
#if defined(__x86_64__)
template <class T, class Op>
WEFT_AVX2 void reduce_avx2(std::span<const Bytes> srcs, Bytes dst, const Scale& scale) noexcept {
  reduce_blocks<T, Op, Level::avx2>(srcs, dst, scale);
}
template <class T, class Op>
WEFT_AVX512 void reduce_avx512(std::span<const Bytes> srcs, Bytes dst, const Scale& scale) noexcept {
  reduce_blocks<T, Op, Level::avx512>(srcs, dst, scale);
}
template <class T, class Op>
WEFT_AVX512_BF16 void reduce_avx512_bf16(std::span<const Bytes> srcs, Bytes dst,
                                         const Scale& scale) noexcept {
  reduce_blocks<T, Op, Level::avx512_bf16>(srcs, dst, scale);
}
#endif

// The widest that this machine has; all of them round alike.
template <class T, class Op>
Reducer reducer_of() {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, Brain>) {
    if (has_avx512_bf16()) return &reduce_avx512_bf16<T, Op>;
  }
  if (level() == Level::avx512) return &reduce_avx512<T, Op>;
  if (level() == Level::avx2) return &reduce_avx2<T, Op>;
#endif
  return &reduce_plain<T, Op>;
}

struct Reduction {
  Reducer apply = nullptr;
  std::size_t item_bytes = 1;
  Scale scale;

  void run(std::span<const Bytes> srcs, Bytes dst) const noexcept { apply(srcs, dst, scale); }
};

}  // namespace weft
