// Priced commands as columns: what the simulation lets happen.
#pragma once

#include <cstdint>
#include <span>

namespace weft {

enum class Step : uint8_t { kFlow = 0, kSignal = 1, kWait = 2, kLaunch = 3, kSubmit = 4, kNothing = 5 };

// Columns by row, by thread and by pool. -1 means none.
struct Rows {
  std::span<const uint8_t> step;
  std::span<const int32_t> thread;
  std::span<const int32_t> next;  // row after this one in its thread
  std::span<const double> before;  // seconds before it starts to act
  std::span<const double> size;    // of its flow
  std::span<const double> latency;  // of its signal
  std::span<const int32_t> flag;
  std::span<const int64_t> count;
  std::span<const int32_t> fed;     // number among the commands that are handed over
  std::span<const int32_t> target;  // thread that a submission feeds
  std::span<const int32_t> units;   // that a launch takes
  std::span<const int64_t> lanes_start;  // row r launches lanes[lanes_start[r] .. [r + 1])
  std::span<const int32_t> lanes;
  // Seconds from its start in which an opaque kernel keeps those behind it from being dispatched;
  // -1: a row that needs no dispatch. Empty where no kernel does.
  std::span<const double> dispatch = {};
};

struct Threads {
  std::span<const int32_t> first;   // row
  std::span<const int32_t> launch;  // the row that starts it, or -1: it starts at time zero
  std::span<const uint8_t> is_fed;  // whether its commands wait for submissions
  std::span<const double> fetch;    // seconds to fetch a submission
  std::span<const int32_t> pool;    // where its launches take units, or -1
  std::span<const int32_t> priority;
};

struct Pools {
  std::span<const int32_t> units;
  std::span<const int32_t> resource;  // whose capacity is the units that no launch holds, or -1
};

// Converts a row, thread or pool number to an index of a vector.
template <typename T>
size_t at(T index) {
  return static_cast<size_t>(index);
}

}  // namespace weft
