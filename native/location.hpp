// Where the bytes of a rank's buffer lie in this execution: in the heap, which all have mapped,
// or in ordinary memory of the rank's process.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "move.hpp"

namespace weft {

// One word of each rank and buffer, in shared memory. Only the rank itself writes it, before
// it raises the first flag of an execution, and others read it between that and the last flag
// they raise for it: that is the contract of a schedule, so plain loads and stores are enough.
struct Location {
  static constexpr std::uint64_t kOrdinary = std::uint64_t{1} << 63;

  std::uint64_t word = 0;    // an offset in the heap, or kOrdinary and an address
  std::uint64_t nbytes = 0;  // how much there is of it

  // Of memory that its owner has at ``memory``, where all have ``heap``.
  static Location of(Bytes memory, Bytes heap) noexcept {
    const std::less<const std::byte*> before;
    if (!before(memory.data(), heap.data()) && before(memory.data(), heap.data() + heap.size())) {
      return {static_cast<std::uint64_t>(memory.data() - heap.data()), memory.size()};
    }
    return {kOrdinary | reinterpret_cast<std::uint64_t>(memory.data()), memory.size()};
  }

  [[nodiscard]] bool is_ordinary() const noexcept { return (word & kOrdinary) != 0; }
  [[nodiscard]] std::uint64_t address() const noexcept { return word & ~kOrdinary; }
  bool operator==(const Location&) const = default;
};

// A slice of a command: some bytes of a buffer that lies at a place, or bytes that stay put.
struct Access {
  const Location* location = nullptr;  // null: ``fixed``
  std::uint32_t rank = 0;        // who owns the buffer
  std::uint64_t offset = 0;
  std::uint64_t stride = 0;  // how far the next copy of the buffer lies, where it rotates
  Bytes fixed;  // its size is that of the slice; where it points only without a place

  Access() = default;
  Access(Bytes bytes) : fixed(bytes) {}  // NOLINT: a span is a slice that stays put
  Access(const Location* at, std::uint32_t owner, std::uint64_t begin, std::uint64_t nbytes)
      : location(at), rank(owner), offset(begin), fixed(static_cast<std::byte*>(nullptr), nbytes) {}

  [[nodiscard]] std::size_t size() const noexcept { return fixed.size(); }
};

// A slice found: here, or at an address of another process.
struct ResolvedSlice {
  Bytes here;  // of the right size; its data is null when it lies elsewhere
  std::uint64_t there = 0;
  std::uint32_t rank = 0;

  [[nodiscard]] bool is_remote() const noexcept { return there != 0; }
  [[nodiscard]] std::size_t size() const noexcept { return here.size(); }
  [[nodiscard]] ResolvedSlice part(std::size_t at, std::size_t nbytes) const noexcept {
    if (is_remote()) return {{static_cast<std::byte*>(nullptr), nbytes}, there + at, rank};
    return {here.subspan(at, nbytes), 0, rank};
  }
};

// Finds slices: what a rank knows about itself and the others.
struct AddressResolver {
  Bytes heap;
  std::uint32_t self = 0;
  bool elastic = false;      // every slice is a whole buffer, as long as it was bound
  std::vector<pid_t> pids;   // by rank

  // Nothing where a place does not hold the slice, which only a broken peer writes. ``copy`` is
  // the one in turn of a buffer that rotates.
  [[nodiscard]] std::optional<ResolvedSlice> resolve(const Access& access, std::uint64_t copy = 0) const noexcept {
    if (access.location == nullptr) return ResolvedSlice{access.fixed, 0, self};
    const Location location = *access.location;
    const std::uint64_t nbytes = elastic ? location.nbytes : access.size();
    if (access.offset > location.nbytes || nbytes > location.nbytes - access.offset) return std::nullopt;
    if (location.is_ordinary()) {
      const std::uint64_t address = location.address() + access.offset;
      if (access.rank != self && nbytes != 0) {
        return ResolvedSlice{{static_cast<std::byte*>(nullptr), nbytes}, address, access.rank};
      }
      return ResolvedSlice{{reinterpret_cast<std::byte*>(address), nbytes}, 0, self};
    }
    const std::uint64_t begin = location.word + access.offset + copy * access.stride;
    if (begin > heap.size() || nbytes > heap.size() - begin) return std::nullopt;
    return ResolvedSlice{heap.subspan(begin, nbytes), 0, self};
  }
};

}  // namespace weft
