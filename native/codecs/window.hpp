// Exponents of a block as few bits: how far each lies below a base, kept as bit planes. What lies
// too far, or above the base, is an exception: its bits are all ones and it is kept whole.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codecs/planes.hpp"

namespace weft {

inline constexpr std::size_t kPackBlock = 1024;  // values of which the exponents share a base
inline constexpr int kMostBits = 7;              // eight would be no shorter than the exponents
inline constexpr int kMostTried = 5;             // a spread of 31 binades is more than weights have
using BlockBytes = std::array<std::uint8_t, kPackBlock>;

// The code of an exception, one above those that say a distance; without bits there is none.
constexpr std::uint8_t beyond(int bits) noexcept {
  return static_cast<std::uint8_t>(bits == 0 ? 1 : (1 << bits) - 1);
}

struct Window {
  std::uint8_t base = 0;
  std::uint8_t bits = kMostBits + 1;  // so many: none that pays
  std::uint16_t exceptions = 0;

  [[nodiscard]] std::size_t nbytes(std::size_t count) const noexcept {
    return bits * plane_bytes(count) + exceptions;
  }
};

// Of the exponents below each base: how many distances reach beyond(bits), for bits from 0 on.
using Outside = std::array<std::uint16_t, kMostTried + 1>;

// The largest, and the least of the largest of 32 lanes: single outliers do not move the second.
struct Bases {
  std::uint8_t most, least;
};

inline Bases bases_of(const std::array<std::uint8_t, kPlaneGroup>& lanes) noexcept {
  Bases found{0, 255};
  for (const std::uint8_t each : lanes) {
    found = {std::max(found.most, each), std::min(found.least, each)};
  }
  return found;
}

inline Bases bases_plain(const std::uint8_t* exponents, std::size_t count) noexcept {
  std::array<std::uint8_t, kPlaneGroup> lanes{};
  for (std::size_t i = 0; i < count; ++i) {
    lanes[i % kPlaneGroup] = std::max(lanes[i % kPlaneGroup], exponents[i]);
  }
  return bases_of(lanes);
}

inline void count_outside(const std::uint8_t* exponents, std::size_t count, std::uint8_t base,
                          Outside& outside) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const auto distance = static_cast<std::uint8_t>(base - exponents[i]);
    for (int bits = 0; bits <= kMostTried; ++bits) outside[bits] += distance >= beyond(bits) ? 1 : 0;
  }
}

// Codes of whole groups of 32; answers behind the last exception written.
inline std::byte* write_codes_plain(const std::uint8_t* exponents, std::size_t count, Window window,
                                    std::byte* planes, std::byte* exceptions) noexcept {
  std::array<std::uint8_t, kPlaneGroup> codes;
  for (std::size_t at = 0; at < count; at += kPlaneGroup, planes += 4 * window.bits) {
    for (std::size_t i = 0; i < kPlaneGroup; ++i) {
      codes[i] = std::min(static_cast<std::uint8_t>(window.base - exponents[at + i]), beyond(window.bits));
      if (codes[i] == beyond(window.bits)) *exceptions++ = static_cast<std::byte>(exponents[at + i]);
    }
    pack_planes_plain(codes.data(), kPlaneGroup, window.bits, planes);
  }
  return exceptions;
}

#if defined(__x86_64__)
WEFT_AVX2 inline __m256i load32(const std::uint8_t* from) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
WEFT_AVX2 inline void store32(std::uint8_t* to, __m256i value) noexcept {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}

WEFT_AVX2 inline Bases bases_avx2(const std::uint8_t* exponents, std::size_t count) noexcept {
  __m256i lanes = _mm256_setzero_si256();
  std::size_t at = 0;
  for (; at + kPlaneGroup <= count; at += kPlaneGroup) {
    lanes = _mm256_max_epu8(lanes, load32(exponents + at));
  }
  std::array<std::uint8_t, kPlaneGroup> found;
  store32(found.data(), lanes);
  for (std::size_t i = 0; at + i < count; ++i) found[i] = std::max(found[i], exponents[at + i]);
  return bases_of(found);
}

// A lane counts at most 32 of a block's values, so bytes are wide enough.
WEFT_AVX2 inline void outside_avx2(const std::uint8_t* exponents, std::size_t count,
                                   std::uint8_t base, Outside& outside) noexcept {
  const __m256i from = _mm256_set1_epi8(static_cast<char>(base)), zero = _mm256_setzero_si256();
  __m256i sums[kMostTried + 1];
  for (__m256i& sum : sums) sum = zero;
  std::size_t at = 0;
  for (; at + kPlaneGroup <= count; at += kPlaneGroup) {
    const __m256i distance = _mm256_sub_epi8(from, load32(exponents + at));
#pragma GCC unroll 8
    for (int bits = 0; bits <= kMostTried; ++bits) {
      const __m256i limit = _mm256_set1_epi8(static_cast<char>(beyond(bits)));
      const __m256i far = _mm256_cmpeq_epi8(_mm256_max_epu8(distance, limit), distance);
      sums[bits] = _mm256_sub_epi8(sums[bits], far);
    }
  }
  for (int bits = 0; bits <= kMostTried; ++bits) {
    std::array<std::uint64_t, 4> parts;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts.data()), _mm256_sad_epu8(sums[bits], zero));
    outside[bits] = static_cast<std::uint16_t>(parts[0] + parts[1] + parts[2] + parts[3]);
  }
  count_outside(exponents + at, count - at, base, outside);
}

template <int kBits>
WEFT_AVX2 std::byte* write_codes_avx2(const std::uint8_t* exponents, std::size_t count,
                                      std::uint8_t base, std::byte* planes,
                                      std::byte* exceptions) noexcept {
  const __m256i from = _mm256_set1_epi8(static_cast<char>(base));
  const __m256i limit = _mm256_set1_epi8(static_cast<char>(beyond(kBits)));
  for (std::size_t at = 0; at < count; at += kPlaneGroup) {
    const __m256i code = _mm256_min_epu8(_mm256_sub_epi8(from, load32(exponents + at)), limit);
    std::uint32_t all = ~0U;
#pragma GCC unroll 8
    for (int j = 0; j < kBits; ++j, planes += 4) {
      const auto plane = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_slli_epi16(code, 7 - j)));
      std::memcpy(planes, &plane, 4);
      all &= plane;
    }
    for (; all != 0; all &= all - 1) {
      *exceptions++ = static_cast<std::byte>(exponents[at + static_cast<std::size_t>(std::countr_zero(all))]);
    }
  }
  return exceptions;
}

template <int kBits>
WEFT_AVX2 std::size_t read_codes_avx2(const std::byte* planes, std::size_t groups,
                                      std::uint8_t base, std::uint8_t* exponents,
                                      std::uint32_t* beyond_of) noexcept {
  const __m256i from = _mm256_set1_epi8(static_cast<char>(base));
  std::size_t found = 0;
  for (std::size_t g = 0; g < groups; ++g) {
    __m256i exponent = from;
    std::uint32_t all = ~0U;
#pragma GCC unroll 8
    for (int j = 0; j < kBits; ++j, planes += 4) {
      const __m256i one = _mm256_set1_epi8(static_cast<char>(1 << j));
      exponent = _mm256_sub_epi8(exponent, _mm256_and_si256(bytes_of_plane(planes), one));
      all &= word_of_plane(planes);
    }
    store32(exponents + g * kPlaneGroup, exponent);
    beyond_of[g] = all;
    found += all != 0 ? 1 : 0;
  }
  return found;
}
#endif

inline std::size_t read_codes_plain(const std::byte* planes, std::size_t groups, Window window,
                                    std::uint8_t* exponents, std::uint32_t* beyond_of) noexcept {
  unpack_planes_plain(planes, groups * kPlaneGroup, window.bits, exponents);
  for (std::size_t g = 0; g < groups; ++g) {
    beyond_of[g] = ~0U;
    for (int j = 0; j < window.bits; ++j, planes += 4) beyond_of[g] &= word_of_plane(planes);
    for (std::size_t i = 0; i < kPlaneGroup; ++i) {
      std::uint8_t& each = exponents[g * kPlaneGroup + i];
      each = static_cast<std::uint8_t>(window.base - each);
    }
  }
  return groups;
}

// Calls F<bits>() for bits from 1 to 7.
template <template <int> class F, class... Arguments>
auto by_bits(int bits, Arguments... arguments) {
  switch (bits) {
    case 1: return F<1>::call(arguments...);
    case 2: return F<2>::call(arguments...);
    case 3: return F<3>::call(arguments...);
    case 4: return F<4>::call(arguments...);
    case 5: return F<5>::call(arguments...);
    case 6: return F<6>::call(arguments...);
    default: return F<7>::call(arguments...);
  }
}
#if defined(__x86_64__)
template <int kBits>
struct WriteCodes {
  static std::byte* call(const std::uint8_t* exponents, std::size_t count, std::uint8_t base,
                         std::byte* planes, std::byte* exceptions) noexcept {
    return write_codes_avx2<kBits>(exponents, count, base, planes, exceptions);
  }
};
template <int kBits>
struct ReadCodes {
  static std::size_t call(const std::byte* planes, std::size_t groups, std::uint8_t base,
                          std::uint8_t* exponents, std::uint32_t* beyond_of) noexcept {
    return read_codes_avx2<kBits>(planes, groups, base, exponents, beyond_of);
  }
};
#endif

inline Window best_window(const std::uint8_t* exponents, std::size_t count) noexcept {
#if defined(__x86_64__)
  const bool wide = level() != Level::plain;
  const Bases bases = wide ? bases_avx2(exponents, count) : bases_plain(exponents, count);
#else
  const Bases bases = bases_plain(exponents, count);
#endif
  Window best{bases.most, kMostBits + 1, 0};
  for (const std::uint8_t base : {bases.most, bases.least}) {
    Outside outside{};
#if defined(__x86_64__)
    if (wide) {
      outside_avx2(exponents, count, base, outside);
    } else
#endif
      count_outside(exponents, count, base, outside);
    for (int bits = 0; bits <= kMostTried; ++bits) {
      const Window each{base, static_cast<std::uint8_t>(bits), outside[bits]};
      if (bits == 0 && each.exceptions != 0) continue;
      if (each.nbytes(count) < best.nbytes(count)) best = each;
    }
    if (bases.most == bases.least) break;
  }
  return best;
}

// Writes planes, then exceptions: window.nbytes(count) in all. The exponents have room for whole
// groups: what lies behind ``count`` becomes the base, which is no exception.
inline void write_window(std::uint8_t* exponents, std::size_t count, Window window,
                         std::byte* out) noexcept {
  if (window.bits == 0) return;
  std::memset(exponents + count, window.base, plane_bytes(count) * 8 - count);
  std::byte* exceptions = out + window.bits * plane_bytes(count);
#if defined(__x86_64__)
  if (level() != Level::plain) {
    by_bits<WriteCodes>(window.bits, exponents, count, window.base, out, exceptions);
    return;
  }
#endif
  write_codes_plain(exponents, count, window, out, exceptions);
}

// The other way; ``from`` has window.nbytes(count). False where the exceptions do not add up.
inline bool read_window(const std::byte* from, std::size_t count, Window window,
                        std::uint8_t* exponents) noexcept {
  if (window.bits == 0) {
    std::memset(exponents, window.base, count);
    return window.exceptions == 0;
  }
  std::array<std::uint32_t, kPackBlock / kPlaneGroup> beyond_of;
  const std::size_t groups = plane_bytes(count) / 4;
#if defined(__x86_64__)
  if (level() != Level::plain) {
    by_bits<ReadCodes>(window.bits, from, groups, window.base, exponents, beyond_of.data());
  } else
#endif
    read_codes_plain(from, groups, window, exponents, beyond_of.data());
  const std::byte* next = from + window.bits * plane_bytes(count);
  const std::byte* end = next + window.exceptions;
  for (std::size_t g = 0; g < groups; ++g) {
    for (std::uint32_t left = beyond_of[g]; left != 0; left &= left - 1) {
      if (next == end) return false;
      const auto bit = static_cast<std::size_t>(std::countr_zero(left));
      exponents[g * kPlaneGroup + bit] = static_cast<std::uint8_t>(*next++);
    }
  }
  return next == end;
}

}  // namespace weft
