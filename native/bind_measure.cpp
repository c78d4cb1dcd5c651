// Measurements for Python; all of them without its lock.
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "bind_runtime.hpp"
#include "measure.hpp"
#include "reductions.hpp"

namespace {

std::uint64_t& word_at(std::uint64_t address) {
  if (address == 0 || address % alignof(std::uint64_t) != 0) throw std::invalid_argument("a flag");
  return *reinterpret_cast<std::uint64_t*>(address);
}

}  // namespace

void bind_measure(nb::module_& module) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  module.def(
      "set_streamed_from",
      [](std::uint64_t nbytes) {
        weft::streaming_limit().store(nbytes, std::memory_order_relaxed);  // see streamed_from()
      },
      nb::arg("nbytes"), "Let copies of so many bytes and more go past the caches.");
  module.def("streamed_from", &weft::streamed_from, "The bytes from which copies do so.");
  module.def(
      "time_copies",
      [](std::uint64_t src, std::uint64_t dst, std::uint64_t nbytes, bool streamed, std::uint32_t count) {
        return weft::time_copies(bytes_at(src, nbytes), bytes_at(dst, nbytes), streamed, count);
      },
      nb::arg("src"), nb::arg("dst"), nb::arg("nbytes"), nb::arg("streamed"), nb::arg("count"), Release());
  module.def(
      "time_reduces",
      [](const std::string& dtype, std::uint64_t a, std::uint64_t b, std::uint64_t out, std::uint64_t nbytes,
         std::uint32_t count) {
        return weft::time_reduces(weft::reduction_of(dtype, "sum"), bytes_at(a, nbytes), bytes_at(b, nbytes),
                                  bytes_at(out, nbytes), count);
      },
      nb::arg("dtype"), nb::arg("a"), nb::arg("b"), nb::arg("out"), nb::arg("nbytes"), nb::arg("count"),
      Release());
  module.def(
      "time_reads",
      [](std::int64_t pid, std::uint64_t address, std::uint64_t dst, std::uint64_t nbytes,
         std::uint32_t count) {
        return weft::time_reads(static_cast<pid_t>(pid), address, bytes_at(dst, nbytes), count);
      },
      nb::arg("pid"), nb::arg("address"), nb::arg("dst"), nb::arg("nbytes"), nb::arg("count"), Release());
  module.def(
      "time_round_trips",
      [](std::uint64_t mine, std::uint64_t theirs, std::uint64_t start, bool first, bool spins,
         std::uint32_t count) {
        return weft::time_round_trips(word_at(mine), word_at(theirs), start, first, spins, count);
      },
      nb::arg("mine"), nb::arg("theirs"), nb::arg("start"), nb::arg("first"), nb::arg("spins"),
      nb::arg("count"), Release());
}
