// Exponents of a block as few bits: how far each lies below a base, kept as bit planes. What lies
// too far, or above the base, is an exception: its bits are all ones and it is kept whole.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codecs/fields.hpp"
#include "codecs/planes.hpp"

namespace weft {

inline constexpr std::size_t kPackBlock = 1024;  // values of which the exponents share a base
inline constexpr int kMostBits = 7;              // eight would be no shorter than the exponents
inline constexpr int kMostTried = 5;             // a spread of 31 binades is more than weights have
// A group more than a block has: what looks for a value behind the last finds room there.
using BlockBytes = std::array<std::uint8_t, kPackBlock + kPlaneGroup>;

// The code of an exception, one above those that say a distance; without bits there is none.
constexpr std::uint8_t beyond(int bits) noexcept {
  return static_cast<std::uint8_t>(bits == 0 ? 1 : (1 << bits) - 1);
}

struct Window {
  std::uint8_t base = 0;
  std::uint8_t bits = kMostBits + 1;  // more than any that pays
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

// The limits that differ: one bit reaches as far as none.
inline constexpr int kLimits = kMostTried;

// Four sums of 32 lanes each, as four numbers of 16 bits.
WEFT_AVX2 inline std::array<std::uint16_t, 4> sums_of(__m256i a, __m256i b, __m256i c, __m256i d) noexcept {
  const __m256i zero = _mm256_setzero_si256();
  const auto placed = [&](__m256i lanes, int place) __attribute__((target("avx2"))) {
    return _mm256_slli_epi64(_mm256_sad_epu8(lanes, zero), 16 * place);
  };
  const __m256i parts = _mm256_or_si256(_mm256_or_si256(placed(a, 0), placed(b, 1)),
                                        _mm256_or_si256(placed(c, 2), placed(d, 3)));
  const __m128i half = _mm_add_epi16(_mm256_castsi256_si128(parts), _mm256_extracti128_si256(parts, 1));
  return std::bit_cast<std::array<std::uint16_t, 4>>(
      _mm_cvtsi128_si64(_mm_add_epi16(half, _mm_unpackhi_epi64(half, half))));
}

WEFT_AVX2 inline bool has_zero_avx2(const std::uint8_t* exponents, std::size_t count) noexcept {
  __m256i least = _mm256_set1_epi8(-1);
  std::size_t at = 0;
  for (; at + kPlaneGroup <= count; at += kPlaneGroup) {
    least = _mm256_min_epu8(least, load32(exponents + at));
  }
  const __m256i found = _mm256_cmpeq_epi8(least, _mm256_setzero_si256());
  return _mm256_movemask_epi8(found) != 0 || std::count(exponents + at, exponents + count, 0) != 0;
}

// For one base or two at once. A lane counts at most 32 of a block's values, so bytes are wide
// enough. Distances are moved by 128, so that a comparison of signed bytes orders them.
template <int kBases>
WEFT_AVX2 void outside_avx2(const std::uint8_t* exponents, std::size_t count, const std::uint8_t* bases,
                            Outside* outside) noexcept {
  __m256i sums[kBases][kLimits], from[kBases], limits[kLimits];
#pragma GCC unroll 8
  for (int i = 0; i < kLimits; ++i) {
    limits[i] = _mm256_set1_epi8(static_cast<char>(beyond(i + 1) + 127));
    asm("" : "+x"(limits[i]));  // known ones the compiler would compare by two instructions
  }
#pragma GCC unroll 2
  for (int k = 0; k < kBases; ++k) {
    from[k] = _mm256_set1_epi8(static_cast<char>(bases[k] + 128));
#pragma GCC unroll 8
    for (__m256i& sum : sums[k]) sum = _mm256_setzero_si256();
  }
  std::size_t at = 0;
  for (; at + kPlaneGroup <= count; at += kPlaneGroup) {
    const __m256i exponent = load32(exponents + at);
#pragma GCC unroll 2
    for (int k = 0; k < kBases; ++k) {
      const __m256i distance = _mm256_sub_epi8(from[k], exponent);
#pragma GCC unroll 8
      for (int i = 0; i < kLimits; ++i) {
        sums[k][i] = _mm256_sub_epi8(sums[k][i], _mm256_cmpgt_epi8(distance, limits[i]));
      }
    }
  }
  for (int k = 0; k < kBases; ++k) {
    const auto& sum = sums[k];
    const auto near = sums_of(sum[0], sum[1], sum[2], sum[3]);
    outside[k] = {
        near[0], near[0],
        near[1], near[2],
        near[3], sums_of(sum[4], _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256())[0]};
    count_outside(exponents + at, count - at, bases[k], outside[k]);
  }
}

// Nearly all groups have at most two exceptions: these are always written, and counted or not.
// The branch for more is then foreseen; one for each would not be.
inline constexpr int kOften = 2;

// The values at the marked places, one after another; ``to`` has room for two more.
WEFT_AVX2 inline std::uint8_t* take_marked(const std::uint8_t* values, std::uint32_t marked,
                                           std::uint8_t* to) noexcept {
  const int found = std::popcount(marked);
#pragma GCC unroll 4
  for (int k = 0; k < kOften; ++k, marked = _blsr_u32(marked)) to[k] = values[_tzcnt_u32(marked)];
  for (int k = kOften; k < found; ++k, marked = _blsr_u32(marked)) to[k] = values[_tzcnt_u32(marked)];
  return to + found;
}

// The other way. What is not marked goes behind the 32 values.
WEFT_AVX2 inline std::size_t put_marked(const std::uint8_t* from, std::uint32_t marked,
                                        std::uint8_t* values) noexcept {
  const int found = std::popcount(marked);
#pragma GCC unroll 4
  for (int k = 0; k < kOften; ++k, marked = _blsr_u32(marked)) values[_tzcnt_u32(marked)] = from[k];
  for (int k = kOften; k < found; ++k, marked = _blsr_u32(marked)) values[_tzcnt_u32(marked)] = from[k];
  return static_cast<std::size_t>(found);
}

template <int kBits>
WEFT_AVX2 void write_codes_avx2(const std::uint8_t* exponents, std::size_t count, Window window,
                                std::byte* planes) noexcept {
  const __m256i from = _mm256_set1_epi8(static_cast<char>(window.base));
  const __m256i limit = _mm256_set1_epi8(static_cast<char>(beyond(kBits)));
  BlockBytes exceptions;
  std::uint8_t* next = exceptions.data();
  for (std::size_t at = 0; at < count; at += kPlaneGroup) {
    const __m256i code = _mm256_min_epu8(_mm256_sub_epi8(from, load32(exponents + at)), limit);
    std::uint32_t all = ~0U;
#pragma GCC unroll 8
    for (int j = 0; j < kBits; ++j, planes += 4) {
      const auto plane = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_slli_epi16(code, 7 - j)));
      std::memcpy(planes, &plane, 4);
      all &= plane;
    }
    next = take_marked(exponents + at, all, next);
  }
  std::memcpy(planes, exceptions.data(), window.exceptions);
}

// The planes of a group, each four bytes, so that a shuffle finds any of them: loaded at once.
// Two loads overlap, and three planes are loaded with what stands before them: nothing behind
// them is read.
template <int kBits>
struct PlaneWords {
  static constexpr int kBefore = kBits == 3 ? 4 : 0;
  __m256i low, high;

  WEFT_AVX2 static __m256i both(const std::byte* from) noexcept {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  WEFT_AVX2 explicit PlaneWords(const std::byte* planes) noexcept {
    if constexpr (kBits == 1) {
      low = _mm256_set1_epi32(word_at<int>(planes, 0));
    } else if constexpr (kBits == 2) {
      low = _mm256_set1_epi64x(word_at<long long>(planes, 0));
    } else {
      low = both(planes - kBefore);
    }
    high = kBits > 4 ? both(planes + 4 * (kBits - 4)) : low;
  }
  // Every byte looks at its own bit of plane j: all ones or none.
  WEFT_AVX2 [[nodiscard]] __m256i bytes(int j) const noexcept {
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
    const int first = j < 4 ? 4 * j + kBefore : 4 * (j - (kBits - 4));
    const __m256i place = _mm256_add_epi8(spread, _mm256_set1_epi8(static_cast<char>(first)));
    const __m256i mine = _mm256_shuffle_epi8(j < 4 ? low : high, place);
    return _mm256_cmpeq_epi8(_mm256_and_si256(mine, bit), bit);
  }
};

// Reads one group of codes after another. A window has no more exceptions than a block has values.
template <int kBits>
class CodeReader {
 public:
  WEFT_AVX2 CodeReader(const std::byte* planes, std::size_t groups, Window window) noexcept
      : planes_(planes), from_(_mm256_set1_epi8(static_cast<char>(window.base))), held_(window.exceptions) {
    std::memcpy(exceptions_.data(), planes + groups * 4 * kBits, held_);
    std::memset(exceptions_.data() + held_, 0, kPlaneGroup);
  }
  // What it writes behind the group the next one writes over.
  WEFT_AVX2 void read(std::uint8_t* exponents) noexcept {
    __m256i exponent = from_;
    std::uint32_t all = ~0U;
    const PlaneWords<kBits> words(planes_);
#pragma GCC unroll 8
    for (int j = 0; j < kBits; ++j, planes_ += 4) {
      const __m256i one = _mm256_set1_epi8(static_cast<char>(1 << j));
      exponent = _mm256_sub_epi8(exponent, _mm256_and_si256(words.bytes(j), one));
      all &= word_of_plane(planes_);
    }
    store32(exponents, exponent);
    used_ += put_marked(exceptions_.data() + std::min(used_, held_), all, exponents);
  }
  // Whether there were as many exceptions as the window says.
  [[nodiscard]] bool whole() const noexcept { return used_ == held_; }

 private:
  const std::byte* planes_;
  __m256i from_;
  std::size_t held_, used_ = 0;
  BlockBytes exceptions_;
};

template <int kBits>
WEFT_AVX2 bool read_codes_avx2(const std::byte* planes, std::size_t groups, Window window,
                               std::uint8_t* exponents) noexcept {
  if (window.exceptions > kPackBlock) return false;
  CodeReader<kBits> reader(planes, groups, window);
  for (std::size_t g = 0; g < groups; ++g) reader.read(exponents + g * kPlaneGroup);
  return reader.whole();
}

// A whole block of float32: exponents and what they are joined with take turns, since each alone
// leaves half of the core idle. Some groups apart: a vector that was patched can be loaded only when
// it has left the queue of stores. bfloat16, which has less to join, gained nothing.
inline constexpr std::size_t kBetween = 3;

template <int kBits>
WEFT_AVX2 bool join_codes_avx2(const std::byte* rest, const std::byte* planes, Window window,
                               std::byte* dst) noexcept {
  constexpr std::size_t kGroups = kPackBlock / kPlaneGroup;
  if (window.exceptions > kPackBlock) return false;
  alignas(32) BlockBytes exponents;
  CodeReader<kBits> reader(planes, kGroups, window);
  const auto join = [&](std::size_t group) __attribute__((target("avx2"), always_inline)) {
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kPlaneGroup; k += 8)
      join_eight(exponents.data(), rest, group * kPlaneGroup + k, dst);
  };
  for (std::size_t g = 0; g < kGroups; ++g) {
    reader.read(exponents.data() + g * kPlaneGroup);
    if (g >= kBetween) join(g - kBetween);
  }
  for (std::size_t g = kGroups - kBetween; g < kGroups; ++g) join(g);
  return reader.whole();
}
#endif

inline bool read_codes_plain(const std::byte* planes, std::size_t groups, Window window,
                             std::uint8_t* exponents) noexcept {
  const std::byte* next = planes + groups * 4 * window.bits;
  const std::byte* end = next + window.exceptions;
  unpack_planes_plain(planes, groups * kPlaneGroup, window.bits, exponents);
  for (std::size_t i = 0; i < groups * kPlaneGroup; ++i) {
    if (exponents[i] != beyond(window.bits)) {
      exponents[i] = static_cast<std::uint8_t>(window.base - exponents[i]);
    } else if (next == end) {
      return false;
    } else {
      exponents[i] = static_cast<std::uint8_t>(*next++);
    }
  }
  return next == end;
}

// Calls F<bits>::call for bits from 1 to 7.
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
  static void call(const std::uint8_t* exponents, std::size_t count, Window window,
                   std::byte* planes) noexcept {
    write_codes_avx2<kBits>(exponents, count, window, planes);
  }
};
template <int kBits>
struct ReadCodes {
  static bool call(const std::byte* planes, std::size_t groups, Window window,
                   std::uint8_t* exponents) noexcept {
    return read_codes_avx2<kBits>(planes, groups, window, exponents);
  }
};
template <int kBits>
struct JoinCodes {
  static bool call(const std::byte* rest, const std::byte* planes, Window window, std::byte* dst) noexcept {
    return join_codes_avx2<kBits>(rest, planes, window, dst);
  }
};
#endif

inline bool has_zero(const std::uint8_t* exponents, std::size_t count) noexcept {
#if defined(__x86_64__)
  if (level() != Level::plain) return has_zero_avx2(exponents, count);
#endif
  return std::count(exponents, exponents + count, 0) != 0;
}

// The exponents that lie outside, below one or two bases.
inline void count_outside_of(const std::uint8_t* exponents, std::size_t count,
                             const std::array<std::uint8_t, 2>& bases, int num_bases,
                             std::array<Outside, 2>& outside) noexcept {
#if defined(__x86_64__)
  if (level() != Level::plain) {
    if (num_bases == 2) return outside_avx2<2>(exponents, count, bases.data(), outside.data());
    return outside_avx2<1>(exponents, count, bases.data(), outside.data());
  }
#endif
  for (int k = 0; k < num_bases; ++k) count_outside(exponents, count, bases[k], outside[k]);
}

inline Window best_window(const std::uint8_t* exponents, std::size_t count) noexcept {
#if defined(__x86_64__)
  const bool wide = level() != Level::plain;
  const Bases found = wide ? bases_avx2(exponents, count) : bases_plain(exponents, count);
#else
  const Bases found = bases_plain(exponents, count);
#endif
  const std::array<std::uint8_t, 2> bases{found.most, found.least};
  const int num_bases = found.most == found.least ? 1 : 2;
  std::array<Outside, 2> outside{};
  count_outside_of(exponents, count, bases, num_bases, outside);
  Window best{found.most, kMostBits + 1, 0};
  for (int k = 0; k < num_bases; ++k) {
    for (int bits = 0; bits <= kMostTried; ++bits) {
      const Window each{bases[k], static_cast<std::uint8_t>(bits), outside[k][bits]};
      if (bits == 0 && each.exceptions != 0) continue;
      if (each.nbytes(count) < best.nbytes(count)) best = each;
    }
  }
  return best;
}

// Writes planes, then exceptions: window.nbytes(count) in all. The exponents have room for whole
// groups: what lies behind ``count`` becomes the base, which is no exception.
inline void write_window(std::uint8_t* exponents, std::size_t count, Window window, std::byte* out) noexcept {
  if (window.bits == 0) return;
  std::memset(exponents + count, window.base, plane_bytes(count) * 8 - count);
#if defined(__x86_64__)
  if (level() != Level::plain) return by_bits<WriteCodes>(window.bits, exponents, count, window, out);
#endif
  write_codes_plain(exponents, count, window, out, out + window.bits * plane_bytes(count));
}

// The other way; ``from`` has window.nbytes(count), and four bytes before it that may be read. False where the exceptions do not add up.
inline bool read_window(const std::byte* from, std::size_t count, Window window,
                        std::uint8_t* exponents) noexcept {
  if (window.bits == 0) {
    std::memset(exponents, window.base, count);
    return window.exceptions == 0;
  }
  const std::size_t groups = plane_bytes(count) / 4;
#if defined(__x86_64__)
  if (level() != Level::plain) return by_bits<ReadCodes>(window.bits, from, groups, window, exponents);
#endif
  return read_codes_plain(from, groups, window, exponents);
}

}  // namespace weft
