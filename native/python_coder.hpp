// Codecs implemented in Python, which the executor calls with the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "coder.hpp"

namespace weft {

// Its last owner is a program, which Python frees with the GIL held.
class PythonCoder {
 public:
  explicit PythonCoder(nanobind::object codec) : codec_(std::move(codec)) {}

  [[nodiscard]] std::size_t room(std::size_t nbytes) const {
    const nanobind::gil_scoped_acquire lock;
    return nanobind::cast<std::size_t>(codec_.attr("room")(nbytes));
  }
  [[nodiscard]] std::size_t encode(Bytes src, Bytes out) const { return call("encode", src, out, 0); }
  [[nodiscard]] Verdict decode(Bytes frame, Bytes dst) const {
    constexpr auto kContent = static_cast<std::size_t>(Verdict::content);
    const std::size_t found = call("decode", frame, dst, kContent);
    return static_cast<Verdict>(found <= kContent ? found : kContent);
  }

 private:
  using View = nanobind::ndarray<nanobind::numpy, std::uint8_t, nanobind::ndim<1>>;

  // Errors are printed, and the call fails. A KeyboardInterrupt passes through to the caller.
  [[nodiscard]] std::size_t call(const char* name, Bytes from, Bytes to, std::size_t failed) const {
    const nanobind::gil_scoped_acquire lock;
    try {
      return nanobind::cast<std::size_t>(codec_.attr(name)(view(from), view(to)));
    } catch (nanobind::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;
      error.discard_as_unraisable("a codec of weft");
    } catch (const nanobind::cast_error&) {
    }
    return failed;
  }

  static nanobind::object view(Bytes bytes) {
    return nanobind::cast(View(bytes.data(), {bytes.size()}, nanobind::handle()),
                          nanobind::rv_policy::reference);
  }

  nanobind::object codec_;
};

// From a codec of this core, or from an object with room, encode and decode.
inline Coder coder_from(nanobind::handle entry) {
  if (nanobind::isinstance<Codec>(entry)) return coder_of(nanobind::cast<const Codec&>(entry));
  const auto calls_python = std::make_shared<PythonCoder>(nanobind::borrow(entry));
  return {[calls_python](std::size_t nbytes) { return calls_python->room(nbytes); },
          [calls_python](Bytes src, Bytes out) { return calls_python->encode(src, out); },
          [calls_python](Bytes frame, Bytes dst) { return calls_python->decode(frame, dst); },
          /*calls_python=*/true};
}

}  // namespace weft
