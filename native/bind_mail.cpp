// Messages between two ranks, for Python.
#include "bind_runtime.hpp"

#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>

#include "member.hpp"

using weft::Halt;
using weft::Mail;
using weft::Member;

namespace {

// The slot of a message that was posted; with ``waits`` until there is room for it.
nb::object post(Member& self, std::uint32_t to, std::uint64_t tag, std::uint64_t address,
                std::uint64_t nbytes, bool waits) {
  std::optional<std::size_t> slot;
  std::optional<Halt> halt;
  {
    const nb::gil_scoped_release release;
    const auto attempt = [&] {
      slot = self.mail().post(to, tag, bytes_at(address, nbytes));
      return slot.has_value();
    };
    if (!attempt() && waits) halt = self.wait_for(attempt, static_cast<int>(to), poll_signals);
  }
  return nb::make_tuple(slot ? nb::cast(*slot) : nb::none(), to_tuple(halt));
}

nb::object wait_sent(Member& self, std::uint32_t to, std::size_t slot) {
  std::optional<Halt> halt;
  {
    const nb::gil_scoped_release release;
    halt = self.wait_for([&] { return self.mail().sent(to, slot); }, static_cast<int>(to),
                         poll_signals);
  }
  return to_tuple(halt);
}

// Bytes of the message and why there is none.
nb::object take(Member& self, std::uint32_t from, std::uint64_t tag, std::uint64_t address,
                std::uint64_t nbytes, bool waits) {
  std::optional<std::size_t> taken;
  std::optional<Halt> halt;
  {
    const nb::gil_scoped_release release;
    int tries = 0;
    const auto attempt = [&] {
      taken = self.mail().take(from, tag, bytes_at(address, nbytes));
      return taken.has_value() || (!waits && tries++ > 0);
    };
    halt = self.wait_for(attempt, static_cast<int>(from), poll_signals);
  }
  return nb::make_tuple(taken ? nb::cast(*taken) : nb::none(), to_tuple(halt));
}

}  // namespace

void bind_mail(nb::module_& module) {
  module.attr("MAIL_INLINE") = Mail::kInline;
  module.def("mail_bytes", &Mail::nbytes, nb::arg("num_ranks"));
  module.def("open_mail", &Member::open_mail, nb::arg("member"), nb::arg("start"), nb::arg("step"));
  module.def("post", &post, nb::arg("member"), nb::arg("to"), nb::arg("tag"), nb::arg("address"),
             nb::arg("nbytes"), nb::arg("waits"));
  module.def("is_sent", [](Member& self, std::uint32_t to, std::size_t slot) {
    return self.mail().sent(to, slot);
  }, nb::arg("member"), nb::arg("to"), nb::arg("slot"));
  module.def("wait_sent", &wait_sent, nb::arg("member"), nb::arg("to"), nb::arg("slot"));
  module.def("take", &take, nb::arg("member"), nb::arg("source"), nb::arg("tag"),
             nb::arg("address"), nb::arg("nbytes"), nb::arg("waits"));
}
