// Commands that move bytes without looking at them.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>

#include "wide.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace weft {

using Bytes = std::span<std::byte>;

inline bool overlap(Bytes a, Bytes b) noexcept {
  const std::less<const std::byte*> before;
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

inline bool same(Bytes a, Bytes b) noexcept { return a.data() == b.data() && a.size() == b.size(); }

// From this size on a copy goes past the caches: what it writes is too large to be found in
// them again, and memory need not be read before it is overwritten. A quarter of the last-level
// cache is where streaming begins to win here (37 against 21 GB/s at 1 MiB, 16 against 21 at 8).
inline std::atomic<std::size_t>& streaming_limit() noexcept {
  static std::atomic<std::size_t> found = [] {
    const long cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
    constexpr std::size_t kLeast = 1 << 20, kMost = 8 << 20;
    return cache > 0 ? std::clamp(static_cast<std::size_t>(cache) / 4, kLeast, kMost) : kMost / 2;
  }();
  return found;
}

// Relaxed: any thread may use the old limit for a while.
inline std::size_t streamed_from() noexcept { return streaming_limit().load(std::memory_order_relaxed); }

#if defined(__x86_64__)
// Whole lines, with streaming stores. The prefetch is into all caches: on a Xeon with 35 MiB of last-level
// cache, two processes that copy 64 MiB each reach 2.9 GB/s with NTA, 4.4 without a prefetch and 4.5 with
// this one (1 KiB ahead); with vectors of 512 bits 2.9, 4.5 and 4.9 GB/s. Beyond its end memory may be prefetched.
inline void stream_lines(const std::byte* src, std::byte* dst, std::size_t nbytes) noexcept {
  for (std::size_t at = 0; at < nbytes; at += 64) {
    const auto* from = reinterpret_cast<const __m128i*>(src + at);
    auto* to = reinterpret_cast<__m128i*>(dst + at);
    _mm_prefetch(reinterpret_cast<const char*>(src) + at + 2048, _MM_HINT_T0);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
}

WEFT_AVX512 inline void stream_lines_wide(const std::byte* src, std::byte* dst, std::size_t nbytes) noexcept {
  for (std::size_t at = 0; at < nbytes; at += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(src) + at + 2048, _MM_HINT_T0);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + at), _mm512_loadu_si512(src + at));
  }
}

// The spans must not overlap.
inline void copy_streamed(Bytes src, Bytes dst) noexcept {
  const auto lead =
      std::min(dst.size(), static_cast<std::size_t>(-reinterpret_cast<std::uintptr_t>(dst.data()) & 63));
  std::memcpy(dst.data(), src.data(), lead);
  const std::size_t lines = (dst.size() - lead) / 64 * 64;
  const auto stream = level() == Level::avx512 ? stream_lines_wide : stream_lines;
  stream(src.data() + lead, dst.data() + lead, lines);
  const std::size_t at = lead + lines;
  std::memcpy(dst.data() + at, src.data() + at, dst.size() - at);
  // Such stores are not ordered by a later release: the fence is.
  _mm_sfence();
}
#else
inline void copy_streamed(Bytes src, Bytes dst) noexcept { std::memcpy(dst.data(), src.data(), dst.size()); }
#endif

// Whether the processor copies long strings fast (CPUID: enhanced rep movsb).
inline bool has_fast_strings() noexcept {
#if defined(__x86_64__)
  static const bool found = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & 1U << 9) != 0;
  }();
  return found;
#else
  return false;
#endif
}

// For copies that stay in the last-level cache. glibc copies by rep movsb on Intel, but on AMD only up to the
// size of the second-level cache. Two processes on an EPYC of family 26, memcpy and rep movsb: 34 and 70 GB/s at
// 1 MiB, 31 and 61 at 4 MiB. Where one end only is on a line it can be slow (glibc's bug 30994). The spans must
// not overlap.
inline void copy_cached(Bytes src, Bytes dst) noexcept {
#if defined(__x86_64__)
  constexpr std::size_t kLeast = 512 << 10;
  const auto from = reinterpret_cast<std::uintptr_t>(src.data());
  const auto to = reinterpret_cast<std::uintptr_t>(dst.data());
  if (src.size() >= kLeast && ((from ^ to) & 63) == 0 && has_fast_strings()) {
    const std::size_t lead = -to & 63;
    std::memcpy(dst.data(), src.data(), lead);
    const void* source = src.data() + lead;
    void* target = dst.data() + lead;
    std::size_t count = src.size() - lead;
    asm volatile("rep movsb" : "+D"(target), "+S"(source), "+c"(count) : : "memory");
    return;
  }
#endif
  std::memcpy(dst.data(), src.data(), src.size());
}

// The spans may overlap.
inline void copy(Bytes src, Bytes dst, std::size_t streamed = streamed_from()) noexcept {
  if (src.empty() || src.data() == dst.data()) return;
  if (overlap(src, dst)) {
    std::memmove(dst.data(), src.data(), src.size());
  } else if (src.size() >= streamed) {
    copy_streamed(src, dst);
  } else {
    copy_cached(src, dst);
  }
}

// Reads each piece once from memory: what fits the cache is written to all before the next.
inline void broadcast(Bytes src, std::span<const Bytes> dsts,
                      std::size_t streamed = streamed_from()) noexcept {
  constexpr std::size_t kPiece = 64 << 10;
  const bool streams = src.size() >= streamed;
  for (std::size_t at = 0; at < src.size(); at += kPiece) {
    const Bytes piece = src.subspan(at, std::min(kPiece, src.size() - at));
    for (const Bytes dst : dsts) {
      const Bytes room = dst.subspan(at, piece.size());
      if (streams && !overlap(piece, room)) {
        copy_streamed(piece, room);
      } else if (piece.data() != room.data()) {
        std::memmove(room.data(), piece.data(), piece.size());
      }
    }
  }
}

inline void swap(Bytes a, Bytes b) noexcept {
  std::array<std::byte, 8 << 10> held;
  for (std::size_t at = 0; at < a.size(); at += held.size()) {
    const std::size_t size = std::min(held.size(), a.size() - at);
    std::memcpy(held.data(), a.data() + at, size);
    std::memcpy(a.data() + at, b.data() + at, size);
    std::memcpy(b.data() + at, held.data(), size);
  }
}

// A slot: the length of what it holds, eight bytes little-endian, then the bytes.
inline constexpr std::size_t kSlotHead = sizeof(std::uint64_t);
static_assert(std::endian::native == std::endian::little, "slots are written as they stand");

inline void encode_none(Bytes src, Bytes slot) noexcept {
  const std::uint64_t size = src.size();
  std::memcpy(slot.data(), &size, kSlotHead);
  copy(src, slot.subspan(kSlotHead, src.size()));
}

// Answers the length found when it is not the one wanted.
inline std::optional<std::uint64_t> decode_none(Bytes slot, Bytes dst) noexcept {
  std::uint64_t size;
  std::memcpy(&size, slot.data(), kSlotHead);
  if (size != dst.size()) return size;
  copy(slot.subspan(kSlotHead, dst.size()), dst);
  return std::nullopt;
}

}  // namespace weft
