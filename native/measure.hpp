// What the machine achieves at the things that commands are made of: seconds for ``count`` of each.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "flag.hpp"
#include "move.hpp"
#include "patience.hpp"
#include "reduce.hpp"
#include "system.hpp"

namespace weft {

template <class Act>
double seconds_of(std::uint32_t count, const Act& act) {
  const auto begin = Clock::now();
  for (std::uint32_t i = 0; i < count; ++i) act(i);
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// ``streamed``: past the caches; else by stores that stay in them.
inline double time_copies(Bytes src, Bytes dst, bool streamed, std::uint32_t count) {
  const std::size_t from = streamed ? 0 : SIZE_MAX;
  return seconds_of(count, [&](std::uint32_t) { copy(src, dst, from); });
}

inline double time_reduces(const Reduction& reduction, Bytes a, Bytes b, Bytes out,
                           std::uint32_t count) {
  const std::array<Bytes, 2> sources{a, b};
  return seconds_of(count, [&](std::uint32_t) { reduction.run(sources, out); });
}

// Reads from the memory of another process, carried over by the kernel.
inline double time_reads(pid_t pid, std::uint64_t address, Bytes dst, std::uint32_t count) {
  return seconds_of(count, [&](std::uint32_t) {
    const iovec local{dst.data(), dst.size()};
    const iovec remote{reinterpret_cast<void*>(address), dst.size()};
    const auto moved = checked(::process_vm_readv(pid, &local, 1, &remote, 1, 0), "process_vm_readv");
    if (static_cast<std::size_t>(moved) != dst.size()) throw std::runtime_error("a short read");
  });
}

// Two ranks raise each other's flag in turn, ``first`` begins. Both flags stood at ``from``.
inline double time_round_trips(std::uint64_t& mine, std::uint64_t& theirs, std::uint64_t from,
                               bool first, bool spins, std::uint32_t count) {
  constexpr auto kLongest = std::chrono::seconds(10);
  const Flag here(mine), there(theirs);
  const auto wait = [&](std::uint64_t value) {
    Patience patience(spins, kLongest);
    while (here.value() < value) {
      patience.pause();
      if (patience.is_over()) throw std::runtime_error("the other rank does not answer");
    }
  };
  return seconds_of(count, [&](std::uint32_t i) {
    if (first) there.raise();
    wait(from + i + 1);
    if (!first) there.raise();
  });
}

}  // namespace weft
