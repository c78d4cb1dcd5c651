// Python bindings of point-to-point messages.
#include "bind_runtime.hpp"

#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>

#include "member.hpp"

using weft::Abort;
using weft::P2PSlots;
using weft::Member;

namespace {

// Returns the slot of a posted message; with ``waits``, waits for a free slot.
nb::object post(Member& self, std::uint32_t to, std::uint64_t tag, std::uint64_t address,
                std::uint64_t nbytes, bool waits) {
  std::optional<std::size_t> slot;
  std::optional<Abort> abort;
  {
    const nb::gil_scoped_release release;
    const auto attempt = [&] {
      slot = self.p2p().post(to, tag, bytes_at(address, nbytes));
      return slot.has_value();
    };
    if (!attempt() && waits) abort = self.wait_for(attempt, static_cast<int>(to), poll_signals);
  }
  return nb::make_tuple(slot ? nb::cast(*slot) : nb::none(), to_tuple(abort));
}

nb::object wait_sent(Member& self, std::uint32_t to, std::size_t slot) {
  std::optional<Abort> abort;
  {
    const nb::gil_scoped_release release;
    abort = self.wait_for([&] { return self.p2p().sent(to, slot); }, static_cast<int>(to), poll_signals);
  }
  return to_tuple(abort);
}

// Returns the bytes of the message, and why there is none.
nb::object take(Member& self, std::uint32_t from, std::uint64_t tag, std::uint64_t address,
                std::uint64_t nbytes, bool waits) {
  std::optional<std::size_t> taken;
  std::optional<Abort> abort;
  {
    const nb::gil_scoped_release release;
    int tries = 0;
    const auto attempt = [&] {
      taken = self.p2p().take(from, tag, bytes_at(address, nbytes));
      return taken.has_value() || (!waits && tries++ > 0);
    };
    abort = self.wait_for(attempt, static_cast<int>(from), poll_signals);
  }
  return nb::make_tuple(taken ? nb::cast(*taken) : nb::none(), to_tuple(abort));
}

}  // namespace

void bind_p2p(nb::module_& module) {
  module.attr("P2P_INLINE_BYTES") = P2PSlots::kInline;
  module.def("p2p_bytes", &P2PSlots::nbytes, nb::arg("num_ranks"));
  module.def("open_p2p", &Member::open_p2p, nb::arg("member"), nb::arg("start"), nb::arg("step"));
  module.def("p2p_post", &post, nb::arg("member"), nb::arg("to"), nb::arg("tag"), nb::arg("address"),
             nb::arg("nbytes"), nb::arg("waits"));
  module.def(
      "p2p_is_sent",
      [](Member& self, std::uint32_t to, std::size_t slot) { return self.p2p().sent(to, slot); },
      nb::arg("member"), nb::arg("to"), nb::arg("slot"));
  module.def("p2p_wait_sent", &wait_sent, nb::arg("member"), nb::arg("to"), nb::arg("slot"));
  module.def("p2p_take", &take, nb::arg("member"), nb::arg("source"), nb::arg("tag"), nb::arg("address"),
             nb::arg("nbytes"), nb::arg("waits"));
}
