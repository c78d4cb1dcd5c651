// The caller's memory in one execution: shown to the others, or staged through the heap.
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

// Where others cannot or need not reach into our memory, they find a copy in the heap.
struct Staging {
  bool always = false;           // no process may read another's memory
  std::size_t up_to = 32 << 10;  // a copy of so little is cheaper than a system call
};

class Binding {
 public:
  explicit Binding(const Program& program) : program_(program) {}
  Binding(const Program& program, std::span<const Bound> bound) : Binding(program) { bind(bound); }

  // For the next execution. What does not fit is refused before anybody sees it.
  void bind(std::span<const Bound> bound) {
    for (const Bound& each : bound) {
      if (each.buffer >= program_.own.size()) throw std::invalid_argument("no such buffer");
      const Own& own = program_.own[each.buffer];
      if (!program_.finder.elastic && each.memory.size() != own.nbytes) {
        throw std::invalid_argument("bound memory has not the size of its buffer");
      }
    }
    bound_.assign(bound.begin(), bound.end());
  }

  // Call before the first flag of the execution is raised. A word is written only if it
  // changes: the others have it in their caches.
  void publish(const Staging& staging) {
    homes_.assign(program_.own.size(), true);
    staged_.clear();
    for (const Bound& each : bound_) {
      const Own& own = program_.own[each.buffer];
      homes_[each.buffer] = false;
      if (const auto place = shown(own, each.memory, staging)) {
        write(own, *place);
      } else {
        stage(own, each.memory);
      }
    }
    for (std::size_t i = 0; i < homes_.size(); ++i) {
      if (homes_[i]) write(program_.own[i], program_.own[i].home);
    }
  }

  // Call when the execution has ended well.
  void collect() const {
    for (const Staged& each : staged_) {
      if (each.own->taken) std::memcpy(each.memory.data(), at_home(*each.own).data(), each.memory.size());
    }
  }

 private:
  struct Staged {
    const Own* own;
    Bytes memory;
  };

  [[nodiscard]] std::optional<Place> shown(const Own& own, Bytes memory,
                                           const Staging& staging) const {
    if (memory.empty()) return Place{0, 0};
    const Place place = Place::of(memory, program_.finder.heap);
    const bool has_home = own.home.nbytes >= memory.size();
    const bool stages = own.shared && has_home && (staging.always || memory.size() <= staging.up_to);
    if (place.is_ordinary() && stages) return std::nullopt;
    return place;
  }

  void stage(const Own& own, Bytes memory) {
    if (own.filled) std::memcpy(at_home(own).data(), memory.data(), memory.size());
    write(own, own.home);
    staged_.push_back({&own, memory});
  }

  static void write(const Own& own, const Place& place) {
    if (own.place != nullptr && *own.place != place) *own.place = place;
  }

  [[nodiscard]] Bytes at_home(const Own& own) const {
    return program_.finder.heap.subspan(own.home.word, own.nbytes);
  }

  const Program& program_;
  std::vector<Bound> bound_;
  std::vector<bool> homes_;  // by buffer: nothing is bound to it
  std::vector<Staged> staged_;
};

}  // namespace weft
