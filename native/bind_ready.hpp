// A ready program carried out for Python, which learns how it failed.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "bind_runtime.hpp"
#include "ready.hpp"

// Without Python's lock. ``failed(halt, error)`` is told one of the two, and raises.
template <class Failed>
void carry_out(weft::Ready& ready, weft::Member& member, std::span<const weft::Bound> bound,
               std::string_view call, const weft::Hooks& hooks, const Failed& failed) {
  std::optional<weft::Halt> halt;
  try {
    const nb::gil_scoped_release release;
    halt = ready.run(member, bound, call, false, hooks);
  } catch (nb::python_error& error) {
    failed(nb::none(), error.value());
    throw;
  }
  if (halt) failed(to_tuple(halt), nb::none());
}
