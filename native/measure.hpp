// What the machine achieves at the things that commands are made of: seconds of one, out of many.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "flag.hpp"
#include "move.hpp"
#include "backoff.hpp"
#include "reduce.hpp"
#include "system.hpp"

namespace weft {

// Seconds of one act: the median over batches of some microseconds, so that what other threads
// take away, a few milliseconds at a time, is not seen while it is less than half of the time.
template <class Act>
double typical_seconds(std::uint64_t count, const Act& act) {
  constexpr double kBatch = 20e-6;
  std::vector<double> batches;
  double shortest = kBatch;
  for (std::uint64_t done = 0; done < count;) {
    const auto wanted = static_cast<std::uint64_t>(std::clamp(kBatch / shortest, 1.0, 1e4));
    const std::uint64_t size = std::min(wanted, count - done);
    const auto begin = Clock::now();
    for (std::uint64_t i = 0; i < size; ++i) act(done + i);
    const double passed = std::chrono::duration<double>(Clock::now() - begin).count();
    done += size;
    batches.push_back(passed / static_cast<double>(size));
    shortest = std::clamp(batches.back(), 1e-9, shortest);
  }
  if (batches.empty()) return 0;
  const auto middle = batches.begin() + static_cast<std::ptrdiff_t>(batches.size() / 2);
  std::nth_element(batches.begin(), middle, batches.end());
  return *middle;
}

// How much of a long run is one act: all of its pieces take alike.
inline constexpr std::size_t kPiece = 256 << 10;

inline std::size_t pieces_of(std::size_t nbytes) { return std::max<std::size_t>(1, nbytes / kPiece); }

inline Bytes piece(Bytes bytes, std::uint64_t number) {
  const std::size_t pieces = pieces_of(bytes.size()), each = bytes.size() / pieces;
  return bytes.subspan((number % pieces) * each, each);
}

// Seconds of a copy. ``streamed``: past the caches; else by stores that stay in them.
inline double time_copies(Bytes src, Bytes dst, bool streamed, std::uint32_t count) {
  const std::size_t from = streamed ? 0 : SIZE_MAX, pieces = pieces_of(dst.size());
  const auto act = [&](std::uint64_t i) { copy(piece(src, i), piece(dst, i), from); };
  return typical_seconds(count * pieces, act) * static_cast<double>(pieces);
}

// Seconds of a reduction of two sources.
inline double time_reduces(const Reduction& reduction, Bytes a, Bytes b, Bytes out, std::uint32_t count) {
  const std::size_t pieces = pieces_of(out.size());
  const auto act = [&](std::uint64_t i) {
    const std::array<Bytes, 2> sources{piece(a, i), piece(b, i)};
    reduction.run(sources, piece(out, i));
  };
  return typical_seconds(count * pieces, act) * static_cast<double>(pieces);
}

// Seconds of a read from the memory of another process, carried over by the kernel.
inline double time_reads(pid_t pid, std::uint64_t address, Bytes dst, std::uint32_t count) {
  return typical_seconds(count, [&](std::uint64_t) {
    const iovec local{dst.data(), dst.size()};
    const iovec remote{reinterpret_cast<void*>(address), dst.size()};
    const auto moved = checked(::process_vm_readv(pid, &local, 1, &remote, 1, 0), "process_vm_readv");
    if (static_cast<std::size_t>(moved) != dst.size()) throw std::runtime_error("a short read");
  });
}

// Seconds of a flag's way there and back: two ranks raise each other's in turn, ``first`` begins.
// Both flags stood at ``from``.
inline double time_round_trips(std::uint64_t& mine, std::uint64_t& theirs, std::uint64_t from, bool first,
                               bool spins, std::uint32_t count) {
  constexpr auto kLongest = std::chrono::seconds(10);
  const Flag here(mine), there(theirs);
  const auto wait = [&](std::uint64_t value) {
    Backoff backoff(spins, kLongest);
    while (here.value() < value) {
      backoff.pause();
      if (backoff.is_over()) throw std::runtime_error("the other rank does not answer");
    }
  };
  return typical_seconds(count, [&](std::uint64_t i) {
    if (first) there.raise();
    wait(from + i + 1);
    if (!first) there.raise();
  });
}

}  // namespace weft
