// A checksum of every chunk, which must take less time than its codec.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "wide.hpp"

namespace weft {

using EightWords [[gnu::vector_size(32)]] = std::uint32_t;

WEFT_INLINE void take_words(const std::byte* from, EightWords& sum) noexcept {
  EightWords words;
  std::memcpy(&words, from, sizeof(words));
  sum = sum * 0x9e3779b1U + words;
}

// Four-byte words spread over 32 lanes; each lane is a polynomial in an odd number, so a changed,
// a moved and a missing word all show. Not against an adversary: against wires and bugs. Written
// with vectors, because the loop over lanes does not become them by itself.
WEFT_INLINE std::uint64_t checksum_loop(const std::byte* from, std::size_t size) noexcept {
  EightWords a{}, b{}, c{}, d{};
  std::size_t at = 0;
  for (; at + 128 <= size; at += 128) {
    take_words(from + at, a);
    take_words(from + at + 32, b);
    take_words(from + at + 64, c);
    take_words(from + at + 96, d);
  }
  for (; at < size; at += 32) {
    std::byte last[32]{};
    std::memcpy(last, from + at, std::min<std::size_t>(32, size - at));
    take_words(last, a);
  }
  std::uint64_t all = size * 0x9e3779b97f4a7c15ULL;
  for (const EightWords& part : {a, b, c, d}) {
    for (int i = 0; i < 8; ++i) {
      all = (all ^ part[i]) * 0xff51afd7ed558ccdULL;
      all ^= all >> 32;
    }
  }
  return all;
}

inline std::uint64_t checksum_plain(const std::byte* from, std::size_t size) noexcept {
  return checksum_loop(from, size);
}
#if defined(__x86_64__)
WEFT_AVX2 inline std::uint64_t checksum_avx2(const std::byte* from, std::size_t size) noexcept {
  return checksum_loop(from, size);
}
#endif

inline std::uint64_t checksum(const std::byte* from, std::size_t size) noexcept {
#if defined(__x86_64__)
  if (level() != Level::plain) return checksum_avx2(from, size);
#endif
  return checksum_plain(from, size);
}

}  // namespace weft
