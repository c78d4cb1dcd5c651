// Where a tensor's elements lie, as its library tells by the table of functions that DLPack 1.3
// lets a type of tensors carry (https://dmlc.github.io/dlpack): tens of nanoseconds instead of
// a call of Python for each of address, size, layout and dtype.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "move.hpp"

namespace weft::dlpack {

// Structures as DLPack lays them out.
struct Type {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  auto operator<=>(const Type&) const = default;
};

struct Tensor {
  std::byte* data;
  std::int32_t device;
  std::int32_t device_number;
  std::int32_t num_dims;
  Type type;
  const std::int64_t* shape;
  const std::int64_t* strides;  // in elements; null: contiguous
  std::uint64_t offset;         // in bytes
};

struct Table {
  std::uint32_t major;
  std::uint32_t minor;
  const void* older;
  const void* unused[3];
  int (*look)(void* object, Tensor* tensor);  // zero: well. Null: the library has none.
  const void* stream;
};

inline constexpr const char* kAttribute = "__dlpack_c_exchange_api__";
inline constexpr const char* kName = "dlpack_exchange_api";
inline constexpr std::uint32_t kMajor = 1;
inline constexpr std::int32_t kCpu = 1;

// Elements; nothing where they do not lie one after another. A stride of one element, or of
// none, says nothing.
inline std::optional<std::uint64_t> contiguous_count(const Tensor& tensor) noexcept {
  const std::int64_t* const end = tensor.shape + tensor.num_dims;
  if (std::find(tensor.shape, end, 0) != end) return 0;
  std::int64_t count = 1;
  for (std::int32_t i = tensor.num_dims - 1; i >= 0; --i) {
    const bool apart = tensor.strides != nullptr && tensor.strides[i] != count;
    if (tensor.shape[i] != 1 && apart) return std::nullopt;
    // One element that stands for all (a stride of 0) may claim more than there is memory.
    if (__builtin_mul_overflow(count, tensor.shape[i], &count)) return std::nullopt;
  }
  return static_cast<std::uint64_t>(count);
}

// The memory of a contiguous tensor of this machine's.
inline std::optional<Bytes> bytes_of(const Tensor& tensor) noexcept {
  if (tensor.device != kCpu) return std::nullopt;
  const auto count = contiguous_count(tensor);
  if (!count) return std::nullopt;
  const std::uint64_t bits = *count * tensor.type.bits * tensor.type.lanes;
  return Bytes(tensor.data + tensor.offset, bits / 8);
}

// Whether the first dimension, if there is one, can be cut into that many equal parts.
inline bool has_rows_for(const Tensor& tensor, std::int64_t parts) noexcept {
  return tensor.num_dims == 0 || tensor.shape[0] % parts == 0;
}

}  // namespace weft::dlpack
