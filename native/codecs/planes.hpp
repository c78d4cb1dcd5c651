// Small numbers as bit planes: bit j of 32 numbers is one word. Taking bits from bytes and
// putting them back is then one instruction a plane where there are vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "wide.hpp"

namespace weft {

inline constexpr std::size_t kPlaneGroup = 32;

constexpr std::size_t plane_bytes(std::size_t count) noexcept {
  return (count + kPlaneGroup - 1) / kPlaneGroup * 4;
}

inline std::uint32_t word_of_plane(const std::byte* from) noexcept {
  std::uint32_t plane;
  std::memcpy(&plane, from, 4);
  return plane;
}

// ``codes`` has room for whole groups; what lies behind ``count`` must be zero.
inline void pack_planes_plain(const std::uint8_t* codes, std::size_t count, int bits,
                              std::byte* out) noexcept {
  for (std::size_t at = 0; at < count; at += kPlaneGroup) {
    for (int j = 0; j < bits; ++j, out += 4) {
      std::uint32_t plane = 0;
      for (std::size_t i = 0; i < kPlaneGroup; ++i) {
        plane |= static_cast<std::uint32_t>(codes[at + i] >> j & 1) << i;
      }
      std::memcpy(out, &plane, 4);
    }
  }
}

inline void unpack_planes_plain(const std::byte* from, std::size_t count, int bits,
                                std::uint8_t* codes) noexcept {
  for (std::size_t at = 0; at < count; at += kPlaneGroup) {
    std::memset(codes + at, 0, kPlaneGroup);
    for (int j = 0; j < bits; ++j, from += 4) {
      const std::uint32_t plane = word_of_plane(from);
      for (std::size_t i = 0; i < kPlaneGroup; ++i) {
        codes[at + i] |= static_cast<std::uint8_t>((plane >> i & 1) << j);
      }
    }
  }
}

#if defined(__x86_64__)
WEFT_AVX2 inline void pack_planes_avx2(const std::uint8_t* codes, std::size_t count, int bits,
                                       std::byte* out) noexcept {
  for (std::size_t at = 0; at < count; at += kPlaneGroup) {
    const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + at));
    for (int j = 0; j < bits; ++j, out += 4) {
      const __m256i top = _mm256_sll_epi16(code, _mm_cvtsi32_si128(7 - j));
      const int plane = _mm256_movemask_epi8(top);
      std::memcpy(out, &plane, 4);
    }
  }
}

// Every byte of the result looks at its own bit of the word.
WEFT_AVX2 inline __m256i bytes_of_plane(const std::byte* from) noexcept {
  const auto plane = static_cast<std::int32_t>(word_of_plane(from));
  const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
  const __m256i mine = _mm256_shuffle_epi8(_mm256_set1_epi32(plane), spread);
  return _mm256_cmpeq_epi8(_mm256_and_si256(mine, bit), bit);
}

WEFT_AVX2 inline void unpack_planes_avx2(const std::byte* from, std::size_t count, int bits,
                                         std::uint8_t* codes) noexcept {
  for (std::size_t at = 0; at < count; at += kPlaneGroup) {
    __m256i code = _mm256_setzero_si256();
    for (int j = 0; j < bits; ++j, from += 4) {
      const __m256i one = _mm256_set1_epi8(static_cast<char>(1 << j));
      code = _mm256_or_si256(code, _mm256_and_si256(bytes_of_plane(from), one));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + at), code);
  }
}
#endif

inline void pack_planes(const std::uint8_t* codes, std::size_t count, int bits, std::byte* out) noexcept {
#if defined(__x86_64__)
  if (level() != Level::plain) return pack_planes_avx2(codes, count, bits, out);
#endif
  pack_planes_plain(codes, count, bits, out);
}

inline void unpack_planes(const std::byte* from, std::size_t count, int bits, std::uint8_t* codes) noexcept {
#if defined(__x86_64__)
  if (level() != Level::plain) return unpack_planes_avx2(from, count, bits, codes);
#endif
  unpack_planes_plain(from, count, bits, codes);
}

}  // namespace weft
