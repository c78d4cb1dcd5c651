// Execution of a prepared program for Python.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "bind_runtime.hpp"
#include "prepared_program.hpp"

// Runs without the GIL. ``failed(abort, error)`` gets one of the two, and raises.
template <class Failed>
void run_prepared(weft::PreparedProgram& prepared, weft::Member& member, std::span<const weft::Bound> bound,
                  std::string_view call, const weft::Hooks& hooks, const Failed& failed) {
  std::optional<weft::Abort> abort;
  try {
    const nb::gil_scoped_release release;
    abort = prepared.run(member, bound, call, false, hooks);
  } catch (nb::python_error& error) {
    failed(nb::none(), error.value());
    throw;
  }
  if (abort) failed(to_tuple(abort), nb::none());
}
