// Computation that a program calls without Python: one object serves all its kernels.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "location.hpp"

namespace weft {

class Kernels {
 public:
  Kernels() = default;
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  virtual ~Kernels() = default;

  // The kernel of a row, with the slices it reads and then those it writes. May throw.
  virtual void run(std::size_t row, std::span<const ResolvedSlice> slices) = 0;

  [[nodiscard]] std::function<void(std::size_t, std::span<const ResolvedSlice>)> caller() {
    return [this](std::size_t row, std::span<const ResolvedSlice> slices) { run(row, slices); };
  }
};

}  // namespace weft
