// Traces for Python: columns move out without a copy.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "trace_nest.hpp"
#include "trace_scan.hpp"

namespace nb = nanobind;
using weft::trace::Names;
using weft::trace::Scanner;

namespace {

template <class T>
using Column = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
template <class T>
using Given = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
Column<T> moved(std::vector<T>&& values) {
  using Kept = std::vector<T>;
  auto kept = std::make_unique<Kept>(std::move(values));
  const nb::capsule owner(kept.get(),
                          [](void* each) noexcept { std::default_delete<Kept>()(static_cast<Kept*>(each)); });
  Kept& held = *kept.release();  // the capsule has it now
  return Column<T>(held.data(), {held.size()}, owner);
}

template <class Texts>
nb::list bytes_of(const Texts& texts) {
  nb::list out;
  for (const auto& text : texts) out.append(nb::bytes(text.data(), text.size()));
  return out;
}

nb::dict columns_of(Scanner& scanner) {
  auto& from = scanner.columns();
  nb::dict out;
  out["start_ns"] = moved(std::move(from.start_ns));
  out["duration_ns"] = moved(std::move(from.duration_ns));
  out["correlation"] = moved(std::move(from.correlation));
  out["external"] = moved(std::move(from.external));
  out["nbytes"] = moved(std::move(from.nbytes));
  out["sequence"] = moved(std::move(from.sequence));
  out["function"] = moved(std::move(from.function));
  out["name"] = moved(std::move(from.name));
  out["category"] = moved(std::move(from.category));
  out["thread"] = moved(std::move(from.thread));
  out["stream"] = moved(std::move(from.stream));
  out["device"] = moved(std::move(from.device));
  out["detail"] = moved(std::move(from.detail));
  return out;
}

nb::dict losses_of(const Scanner& scanner) {
  const auto& losses = scanner.losses();
  nb::dict out;
  out["num_bad"] = losses.num_bad;
  out["num_bytes"] = losses.num_bytes;
  out["first_byte"] = losses.first_byte;
  out["num_untimed"] = losses.num_untimed;
  out["num_unpaired"] = scanner.num_unpaired();
  out["gave_up"] = scanner.gave_up();
  return out;
}

Column<std::int32_t> nest(const Given<std::int32_t>& thread, const Given<double>& start,
                          const Given<double>& end) {
  if (thread.size() != start.size() || thread.size() != end.size()) {
    throw std::invalid_argument("columns of different lengths");
  }
  if (thread.size() > INT32_MAX) throw std::invalid_argument("more spans than four bytes count");
  std::vector<std::int32_t> parent;
  {
    const nb::gil_scoped_release free;
    parent = weft::trace::nest({thread.data(), thread.size()}, {start.data(), start.size()},
                               {end.data(), end.size()});
  }
  return moved(std::move(parent));
}

}  // namespace

void bind_trace(nb::module_& module) {
  nb::class_<Scanner>(module, "TraceScanner", "Chrome trace events from a stream of text.")
      .def(nb::init<>())
      .def("feed",
           [](Scanner& self, const nb::bytes& piece) {
             const std::string_view text(piece.c_str(), piece.size());
             const nb::gil_scoped_release free;
             self.feed(text);
           })
      .def("finish",
           [](Scanner& self) {
             const nb::gil_scoped_release free;
             return self.finish();
           })
      .def("columns", &columns_of)
      .def("losses", &losses_of)
      .def("names", [](const Scanner& self) { return bytes_of(self.names().texts()); })
      .def("categories", [](const Scanner& self) { return bytes_of(self.categories().texts()); })
      .def("threads", [](const Scanner& self) { return bytes_of(self.threads().texts()); })
      .def("details", [](const Scanner& self) { return bytes_of(self.details().texts()); })
      .def("labels", [](const Scanner& self) { return bytes_of(self.labels()); })
      .def("rest", [](const Scanner& self) { return nb::bytes(self.rest().data(), self.rest().size()); })
      .def_prop_ro("num_events", &Scanner::num_events)
      .def_prop_ro("place", &Scanner::place)
      .def_prop_ro("found_events", &Scanner::found_events)
      .def_prop_ro("has_nano", &Scanner::has_nano);
  module.def("nest", &nest, nb::arg("thread"), nb::arg("start"), nb::arg("end"));
}
