// Signals of symmetric memory for Python, by address.
#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>

#include "signal_pad.hpp"

namespace nb = nanobind;

namespace {

template <bool (*kAct)(std::uint32_t*, weft::Clock::duration)>
bool at_address(std::uintptr_t address, double seconds) {
  const auto timeout =
      std::chrono::duration_cast<weft::Clock::duration>(std::chrono::duration<double>(seconds));
  const nb::gil_scoped_release free;
  return kAct(reinterpret_cast<std::uint32_t*>(address), timeout);
}

}  // namespace

void bind_signal_pad(nb::module_& module) {
  module.def("put_signal", &at_address<&weft::put_signal>, nb::arg("address"), nb::arg("timeout"),
             "Change a word from 0 to 1; return whether it was 0 within the timeout.");
  module.def("take_signal", &at_address<&weft::take_signal>, nb::arg("address"), nb::arg("timeout"),
             "Change a word from 1 to 0; return whether it was 1 within the timeout.");
}
