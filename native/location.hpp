// The location of a rank's buffer in an execution: in the heap, which all ranks have mapped, or in
// ordinary memory of the rank's process.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "move.hpp"

namespace weft {

// One for each rank and buffer, in shared memory. Only the rank itself writes it, before it raises the
// first flag of an execution, and others read it between that and the last flag they raise for it. The
// contract of a schedule orders them, so plain loads and stores are enough.
struct Location {
  static constexpr std::uint64_t kOrdinary = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kDirect = std::uint64_t{1} << 62;

  // An offset in the heap, or kOrdinary and an address. With kDirect it is the offset of the data that a
  // stage stands for, which is in the heap itself: see Access::direct.
  std::uint64_t word = 0;
  std::uint64_t nbytes = 0;  // its size

  // The location of this process's ``memory``, given the mapping of the heap.
  static Location of(Bytes memory, Bytes heap) noexcept {
    const std::less<const std::byte*> before;
    if (!before(memory.data(), heap.data()) && before(memory.data(), heap.data() + heap.size())) {
      return {static_cast<std::uint64_t>(memory.data() - heap.data()), memory.size()};
    }
    return {kOrdinary | reinterpret_cast<std::uint64_t>(memory.data()), memory.size()};
  }

  [[nodiscard]] bool is_ordinary() const noexcept { return (word & kOrdinary) != 0; }
  [[nodiscard]] bool is_direct() const noexcept { return (word & kDirect) != 0; }
  [[nodiscard]] std::uint64_t address() const noexcept { return word & ~kOrdinary; }
  bool operator==(const Location&) const = default;
};

// A slice of a command: bytes of a buffer with a location, or fixed bytes.
struct Access {
  const Location* location = nullptr;  // null: ``fixed``
  std::uint32_t rank = 0;        // the owner of the buffer
  std::uint64_t offset = 0;
  std::uint64_t stride = 0;  // distance to the next copy of a rotating buffer
  std::uint64_t direct = 0;  // the offset of a slice of a stage in the data that it stands for
  Bytes fixed;  // the size of the slice; its data only without a location

  Access() = default;
  Access(Bytes bytes) : fixed(bytes) {}  // NOLINT: implicit, a span is a fixed slice
  Access(const Location* at, std::uint32_t owner, std::uint64_t begin, std::uint64_t nbytes)
      : location(at), rank(owner), offset(begin), fixed(static_cast<std::byte*>(nullptr), nbytes) {}

  [[nodiscard]] std::size_t size() const noexcept { return fixed.size(); }
};

// A resolved slice: local bytes, or an address of another process.
struct ResolvedSlice {
  Bytes here;  // its size; its data is null if it is remote
  std::uint64_t there = 0;
  std::uint32_t rank = 0;

  [[nodiscard]] bool is_remote() const noexcept { return there != 0; }
  [[nodiscard]] std::size_t size() const noexcept { return here.size(); }
  [[nodiscard]] ResolvedSlice part(std::size_t at, std::size_t nbytes) const noexcept {
    if (is_remote()) return {{static_cast<std::byte*>(nullptr), nbytes}, there + at, rank};
    return {here.subspan(at, nbytes), 0, rank};
  }
};

// Resolves the addresses of slices.
struct AddressResolver {
  Bytes heap;
  std::uint32_t self = 0;
  bool elastic = false;      // every slice is a whole buffer, of the size of the bound memory
  std::vector<pid_t> pids;   // by rank

  // Nothing if a location is too small for the slice, which only a corrupt peer writes. ``copy`` is the
  // current copy of a rotating buffer.
  [[nodiscard]] std::optional<ResolvedSlice> resolve(const Access& access,
                                                     std::uint64_t copy = 0) const noexcept {
    if (access.location == nullptr) return ResolvedSlice{access.fixed, 0, self};
    const Location location = *access.location;
    const std::uint64_t nbytes = elastic ? location.nbytes : access.size();
    const std::uint64_t offset = location.is_direct() ? access.direct : access.offset;
    if (offset > location.nbytes || nbytes > location.nbytes - offset) return std::nullopt;
    if (location.is_ordinary()) {
      const std::uint64_t address = location.address() + offset;
      if (access.rank != self && nbytes != 0) {
        return ResolvedSlice{{static_cast<std::byte*>(nullptr), nbytes}, address, access.rank};
      }
      return ResolvedSlice{{reinterpret_cast<std::byte*>(address), nbytes}, 0, self};
    }
    const std::uint64_t begin = location.is_direct() ? (location.word & ~Location::kDirect) + offset
                                                     : location.word + offset + copy * access.stride;
    if (begin > heap.size() || nbytes > heap.size() - begin) return std::nullopt;
    return ResolvedSlice{heap.subspan(begin, nbytes), 0, self};
  }
};

}  // namespace weft
