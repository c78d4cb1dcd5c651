// The caller's memory in one execution: published to the other ranks, or staged in the heap.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "heap.hpp"
#include "program.hpp"

namespace weft {

struct Bound {
  std::uint32_t buffer;
  Bytes memory;
};

// When other ranks read a copy in the heap instead of this process's memory.
struct Staging {
  bool always = false;           // no process may read another's memory
  std::size_t up_to = 32 << 10;  // up to this size a copy is cheaper than a system call
};

class Binding {
 public:
  explicit Binding(const Program& program) : program_(program) {}
  Binding(const Program& program, std::span<const Bound> bound) : Binding(program) { bind(bound); }

  // Binds memory for the next execution; throws before anything is published.
  void bind(std::span<const Bound> bound) {
    for (const Bound& each : bound) {
      if (each.buffer >= program_.own.size()) throw std::invalid_argument("no such buffer");
      const OwnBuffer& own = program_.own[each.buffer];
      if (!program_.resolver.elastic && each.memory.size() != own.nbytes) {
        throw std::invalid_argument("bound memory has not the size of its buffer");
      }
    }
    bound_.assign(bound.begin(), bound.end());
  }

  // Call before the first flag of the execution is raised. A location is written
  // only if it changes: the other ranks have it in their caches.
  void publish(const Staging& staging) {
    unbound_.assign(program_.own.size(), true);
    staged_.clear();
    for (const Bound& each : bound_) {
      const OwnBuffer& own = program_.own[each.buffer];
      unbound_[each.buffer] = false;
      if (const auto location = shown(own, each.memory, staging)) {
        write(own, *location);
      } else {
        stage(own, each.memory);
      }
    }
    for (std::size_t i = 0; i < unbound_.size(); ++i) {
      if (unbound_[i]) write(program_.own[i], stage_of(program_.own[i]).value_or(program_.own[i].backing));
    }
  }

  // Call after a successful execution: copies staged results back.
  void collect() const {
    for (const Staged& each : staged_) {
      if (each.own->taken)
        std::memcpy(each.memory.data(), backing_bytes(*each.own).data(), each.memory.size());
    }
  }

 private:
  struct Staged {
    const OwnBuffer* own;
    Bytes memory;
  };

  [[nodiscard]] std::optional<Location> shown(const OwnBuffer& own, Bytes memory,
                                              const Staging& staging) const {
    if (memory.empty()) return Location{0, 0};
    const Location location = Location::of(memory, program_.resolver.heap);
    const bool is_backed = own.backing.nbytes >= memory.size();
    const bool stages = own.shared && is_backed && (staging.always || memory.size() <= staging.up_to);
    if (location.is_ordinary() && stages) return std::nullopt;
    return location;
  }

  // Data in the heap is its own stage: peers access it directly, and copies between the two are none.
  [[nodiscard]] std::optional<Location> stage_of(const OwnBuffer& own) const {
    for (const Bound& each : bound_) {
      if (static_cast<std::int32_t>(each.buffer) != own.stage_of || each.memory.empty()) continue;
      const Location location = Location::of(each.memory, program_.resolver.heap);
      if (!location.is_ordinary()) return Location{location.word | Location::kDirect, location.nbytes};
    }
    return std::nullopt;
  }

  void stage(const OwnBuffer& own, Bytes memory) {
    if (own.filled) std::memcpy(backing_bytes(own).data(), memory.data(), memory.size());
    write(own, own.backing);
    staged_.push_back({&own, memory});
  }

  static void write(const OwnBuffer& own, const Location& location) {
    if (own.location != nullptr && *own.location != location) *own.location = location;
  }

  [[nodiscard]] Bytes backing_bytes(const OwnBuffer& own) const {
    return program_.resolver.heap.subspan(own.backing.word, own.nbytes);
  }

  const Program& program_;
  std::vector<Bound> bound_;
  std::vector<bool> unbound_;  // by buffer: nothing is bound to it
  std::vector<Staged> staged_;
};

}  // namespace weft
