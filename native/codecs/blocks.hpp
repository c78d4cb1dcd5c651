// "int8" and "int4": values as small integers, with one scale a block.
//
// A block: scale (4 bytes, float), then the integers; two to a byte, the first one low, for int4.
// A block with an infinity or something that is not a number, or one too small for a scale,
// keeps its values as they are: its scale is then not a number. So nothing poisons its neighbours.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codecs/convert.hpp"
#include "move.hpp"

namespace weft {

inline constexpr std::size_t kLeastBlock = 16, kMostBlock = 4096;

// Two integers of four bits to a byte.
inline void join_nibbles(const std::int8_t* from, std::size_t count, std::byte* to) noexcept {
  for (std::size_t i = 0; i + 1 < count; i += 2) {
    to[i / 2] = static_cast<std::byte>((from[i] & 15) | (from[i + 1] & 15) << 4);
  }
  if (count % 2 != 0) to[count / 2] = static_cast<std::byte>(from[count - 1] & 15);
}

inline void split_nibbles(const std::byte* from, std::size_t count, std::int8_t* to) noexcept {
  for (std::size_t i = 0; i < (count + 1) / 2; ++i) {  // ``to`` has room for a whole pair
    const auto both = static_cast<std::uint8_t>(from[i]);
    to[2 * i] = static_cast<std::int8_t>(static_cast<std::int8_t>(both << 4) >> 4);
    to[2 * i + 1] = static_cast<std::int8_t>(static_cast<std::int8_t>(both) >> 4);
  }
}

template <class T, int kBits>
class Blocks {
 public:
  static std::size_t worst(std::size_t nbytes, std::size_t block) noexcept {
    return nbytes + (nbytes / sizeof(T) + block - 1) / block * kHead;
  }

  static std::size_t encode(Bytes src, Bytes out, std::size_t block) noexcept {
    std::byte* to = out.data();
    for (std::size_t at = 0; at < src.size(); at += block * sizeof(T)) {
      to = encode_block(src.subspan(at, std::min(block * sizeof(T), src.size() - at)), to);
    }
    return static_cast<std::size_t>(to - out.data());
  }

  // Whether ``from`` was a whole encoding of dst.size() bytes. Never reads or writes elsewhere.
  static bool decode(Bytes from, Bytes dst, std::size_t block) noexcept {
    if (dst.size() % sizeof(T) != 0) return false;
    for (std::size_t at = 0; at < dst.size(); at += block * sizeof(T)) {
      const Bytes to = dst.subspan(at, std::min(block * sizeof(T), dst.size() - at));
      if (!decode_block(from, to)) return false;
    }
    return from.empty();
  }

 private:
  static constexpr std::size_t kHead = sizeof(float);
  static constexpr float kLargest = (1 << (kBits - 1)) - 1;
  static constexpr std::uint32_t kKept = 0x7fc00000;     // the scale of a block kept as it is
  static constexpr std::uint32_t kTooSmall = 27U << 23;  // 2^-100: kLargest over it is finite

  static constexpr std::size_t integer_bytes(std::size_t count) noexcept { return (count * kBits + 7) / 8; }

  static std::byte* encode_block(Bytes src, std::byte* to) noexcept {
    alignas(64) std::array<float, kMostBlock> values;
    const std::size_t count = src.size() / sizeof(T);
    const Loose* from = values.data();
    if constexpr (sizeof(T) == sizeof(float)) {
      from = reinterpret_cast<const Loose*>(src.data());
    } else {
      widen<T>(src.data(), count, values.data());
    }
    const std::uint32_t most = largest(from, count);
    if (most >= 0x7f800000U || (most != 0 && most < kTooSmall)) {
      std::memcpy(to, &kKept, kHead);
      std::memcpy(to + kHead, src.data(), src.size());
      return to + kHead + src.size();
    }
    const float size = std::bit_cast<float>(most), scale = size / kLargest;
    std::memcpy(to, &scale, kHead);
    const float factor = most == 0 ? 0.0F : kLargest / size;
    if constexpr (kBits == 8) {
      to_integers(from, count, factor, reinterpret_cast<std::int8_t*>(to + kHead));
    } else {
      alignas(64) std::array<std::int8_t, kMostBlock> apart;
      to_integers(from, count, factor, apart.data());
      join_nibbles(apart.data(), count, to + kHead);
    }
    return to + kHead + integer_bytes(count);
  }

  static bool decode_block(Bytes& from, Bytes dst) noexcept {
    const std::size_t count = dst.size() / sizeof(T);
    float scale;
    if (from.size() < kHead) return false;
    std::memcpy(&scale, from.data(), kHead);
    const bool kept = scale != scale;
    const std::size_t size = kept ? dst.size() : integer_bytes(count);
    if (from.size() < kHead + size) return false;
    if (kept) {
      std::memcpy(dst.data(), from.data() + kHead, size);
    } else {
      decode_integers(from.data() + kHead, scale, count, dst.data());
    }
    from = from.subspan(kHead + size);
    return true;
  }

  static void decode_integers(const std::byte* from, float scale, std::size_t count,
                              std::byte* dst) noexcept {
    alignas(64) std::array<float, kMostBlock> values;
    alignas(64) std::array<std::int8_t, kMostBlock> apart;
    const auto* integers = reinterpret_cast<const std::int8_t*>(from);
    if constexpr (kBits == 4) {
      split_nibbles(from, count, apart.data());
      integers = apart.data();
    }
    if constexpr (sizeof(T) == sizeof(float)) {
      from_integers(integers, count, scale, reinterpret_cast<Loose*>(dst));
    } else {
      from_integers(integers, count, scale, values.data());
      narrow<T>(values.data(), count, dst);
    }
  }
};

}  // namespace weft
