// Rows of embedding tables as vectors of floats, whatever their elements are.
//
// Vectors are the compiler's own, so one text serves every machine: compiled for what a level
// has, it becomes that level's instructions. Vectors are handed over by reference, since by
// value their place would depend on the level.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "half.hpp"
#include "wide.hpp"

namespace weft {

// How the rows of a table are stored.
enum class Element : std::uint8_t {
  float32 = 0,
  bfloat16 = 1,
  float16 = 2,
  int8 = 3,  // bytes without a sign, then a scale and a bias, both float
};

inline constexpr std::size_t kInt8Tail = 2 * sizeof(float);

constexpr std::size_t row_bytes(Element element, std::size_t dim) noexcept {
  switch (element) {
    case Element::float32: return 4 * dim;
    case Element::bfloat16:
    case Element::float16: return 2 * dim;
    case Element::int8: return dim + kInt8Tail;
  }
  return 0;
}

// Vectors of a number of lanes. Memory need not be aligned.
template <std::size_t kLanes>
struct Lanes {
  static constexpr std::size_t kCount = kLanes;
  typedef float Float __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
  typedef std::uint32_t Word __attribute__((vector_size(4 * kLanes)));
  typedef std::int32_t Signed __attribute__((vector_size(4 * kLanes)));
  typedef std::uint16_t Short __attribute__((vector_size(2 * kLanes)));
  typedef std::uint8_t Byte __attribute__((vector_size(kLanes)));
};

// Each kind of row: elements ``at`` and on as floats. ``dim`` is how many the row has.
struct FloatRow {
  static constexpr std::size_t kItem = 4;

  FloatRow(const std::byte* row, std::size_t /*dim*/) noexcept : row_(row) {}

  template <class L>
  WEFT_INLINE void load(std::size_t at, typename L::Float& to) const noexcept {
    to = *reinterpret_cast<const typename L::Float*>(row_ + 4 * at);
  }
  WEFT_INLINE float one(std::size_t at) const noexcept {
    float value;
    std::memcpy(&value, row_ + 4 * at, sizeof value);
    return value;
  }

 private:
  const std::byte* row_;
};

struct BrainRow {
  static constexpr std::size_t kItem = 2;

  BrainRow(const std::byte* row, std::size_t /*dim*/) noexcept : row_(row) {}

  template <class L>
  WEFT_INLINE void load(std::size_t at, typename L::Float& to) const noexcept {
    typename L::Short narrow;
    std::memcpy(&narrow, row_ + 2 * at, sizeof narrow);
    to = reinterpret_cast<typename L::Float>(__builtin_convertvector(narrow, typename L::Word) << 16);
  }
  WEFT_INLINE float one(std::size_t at) const noexcept {
    Brain value;
    std::memcpy(&value, row_ + 2 * at, sizeof value);
    return static_cast<float>(value);
  }

 private:
  const std::byte* row_;
};

struct HalfRow {
  static constexpr std::size_t kItem = 2;

  HalfRow(const std::byte* row, std::size_t /*dim*/) noexcept : row_(row) {}

  // As Half does it, lane by lane: exact for subnormals too.
  template <class L>
  WEFT_INLINE void load(std::size_t at, typename L::Float& to) const noexcept {
    using Word = typename L::Word;
    typename L::Short narrow;
    std::memcpy(&narrow, row_ + 2 * at, sizeof narrow);
    const Word wide = __builtin_convertvector(narrow, Word);
    const Word size = wide & 0x7fff;
    const auto value = reinterpret_cast<typename L::Float>(size << 13) * 0x1p112F;
    const Word special = 0x7f800000 | (size & 0x3ff) << 13;
    const Word finite = reinterpret_cast<Word>(value);
    const Word is_special = reinterpret_cast<Word>(size >= 0x7c00);
    const Word bits = (is_special & special) | (~is_special & finite);
    to = reinterpret_cast<typename L::Float>((wide & 0x8000) << 16 | bits);
  }
  WEFT_INLINE float one(std::size_t at) const noexcept {
    Half value;
    std::memcpy(&value, row_ + 2 * at, sizeof value);
    return static_cast<float>(value);
  }

 private:
  const std::byte* row_;
};

struct Int8Row {
  static constexpr std::size_t kItem = 1;

  Int8Row(const std::byte* row, std::size_t dim) noexcept : row_(row) {
    std::memcpy(&scale_, row + dim, sizeof scale_);
    std::memcpy(&bias_, row + dim + sizeof scale_, sizeof bias_);
  }

  template <class L>
  WEFT_INLINE void load(std::size_t at, typename L::Float& to) const noexcept {
    typename L::Byte narrow;
    std::memcpy(&narrow, row_ + at, sizeof narrow);
    const auto wide = __builtin_convertvector(narrow, typename L::Signed);
    typename L::Float scaled = __builtin_convertvector(wide, typename L::Float) * scale_;
    asm("" : "+x"(scaled));  // or the compiler would fuse it with the sum, on some levels only
    to = scaled + bias_;
  }
  WEFT_INLINE float one(std::size_t at) const noexcept {
    float scaled = static_cast<float>(static_cast<std::uint8_t>(row_[at])) * scale_;
    asm("" : "+x"(scaled));
    return scaled + bias_;
  }

 private:
  const std::byte* row_;
  float scale_ = 0, bias_ = 0;
};

}  // namespace weft
