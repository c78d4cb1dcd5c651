// Declarations that the bindings of the runtime share.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "bind_python.hpp"
#include "control.hpp"
#include "failure_monitor.hpp"

inline nb::object to_tuple(const std::optional<weft::Abort>& abort) {
  if (!abort) return nb::none();
  return nb::make_tuple(static_cast<int>(abort->cause), abort->rank, abort->row, abort->have, abort->want);
}

inline nb::object to_tuple(const std::optional<weft::Fault>& fault) {
  if (!fault) return nb::none();
  const nb::bytes text(fault->text.data(), fault->text.size());
  return nb::make_tuple(static_cast<int>(fault->reason), fault->rank, text);
}

void bind_dispatch_cache(nb::module_& module);
void bind_program(nb::module_& module);
void bind_p2p(nb::module_& module);
void bind_measure(nb::module_& module);
