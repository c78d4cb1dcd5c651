// What bindings share: signals, seconds and addresses as Python has them.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "move.hpp"

namespace nb = nanobind;

// Allows Python to handle Ctrl-C while native code works or waits.
inline void poll_signals() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

inline std::chrono::nanoseconds to_duration(double seconds) {
  constexpr double kLongest = 1e9;  // thirty years, and far from an overflow
  if (!(seconds > 0)) throw std::invalid_argument("the timeout must be positive");
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::fmin(seconds, kLongest) * 1e9));
}

// Memory of this process; the caller vouches for it.
inline weft::Bytes bytes_at(std::uint64_t address, std::uint64_t nbytes) noexcept {
  return {reinterpret_cast<std::byte*>(address), nbytes};
}
