// Codecs for Python: whole frames from and to arrays of bytes.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "codecs/changes.hpp"
#include "codecs/codecs.hpp"

namespace nb = nanobind;
using weft::Bytes;
using weft::Codec;
using weft::FrameHead;

namespace {

using Writable = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Readable = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Array>
Bytes bytes_of(const Array& array) noexcept {  // what is only read is not written: encoders take const
  auto* data = const_cast<std::uint8_t*>(array.data());
  return {reinterpret_cast<std::byte*>(data), array.size()};
}

std::size_t encode(const Codec& codec, const Readable& src, const Writable& out) {
  if (out.size() < weft::frame_room(codec, src.size()))
    throw std::invalid_argument("too little room for a frame");
  const nb::gil_scoped_release free;
  return weft::encode_frame(codec, bytes_of(src), bytes_of(out));
}

int decode(const Codec& codec, const Readable& frame, const Writable& dst) {
  const nb::gil_scoped_release free;
  return static_cast<int>(weft::decode_frame(codec, bytes_of(frame), bytes_of(dst)));
}

// Seconds to encode a chunk and to decode it again, the second time each, and the frame's bytes.
nb::tuple time_frame(const Codec& codec, const Readable& src, const Writable& out, const Writable& back) {
  using Clock = std::chrono::steady_clock;
  if (out.size() < weft::frame_room(codec, src.size()) || back.size() != src.size()) {
    throw std::invalid_argument("too little room for a frame");
  }
  const auto second_time = [](auto act) {  // one rank only encodes or only decodes: each by itself
    act();
    const Clock::time_point begin = Clock::now();
    act();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  std::size_t size = 0;
  double encoding = 0, decoding = 0;
  {
    const nb::gil_scoped_release free;
    encoding = second_time([&] { size = weft::encode_frame(codec, bytes_of(src), bytes_of(out)); });
    decoding = second_time([&] { weft::decode_frame(codec, bytes_of(out).first(size), bytes_of(back)); });
  }
  return nb::make_tuple(encoding, decoding, size);
}

// For codecs that are libraries of Python: the frame around a payload that stands behind its head.
std::size_t seal(const Writable& frame, int codec, int dtype, int parameter, std::size_t nbytes,
                 std::size_t payload, int mode) {
  if (frame.size() < sizeof(FrameHead) || payload > frame.size() - sizeof(FrameHead)) {
    throw std::invalid_argument("too little room for a frame");
  }
  FrameHead head;
  head.codec = static_cast<std::uint8_t>(codec);
  head.dtype = static_cast<std::uint8_t>(dtype);
  head.mode = static_cast<std::uint8_t>(mode);
  head.parameter = static_cast<std::uint16_t>(parameter);
  head.nbytes = nbytes;
  head.payload = payload;
  const Bytes bytes = bytes_of(frame);
  head.sum = weft::frame_sum(head, bytes.data() + sizeof(head));
  std::memcpy(bytes.data(), &head, sizeof(head));
  return sizeof(head) + payload;
}

// Calls ``act`` with a word of the given size.
template <class Act>
auto by_word(std::size_t word, std::size_t nbytes, Act act) {
  if ((word != 2 && word != 4) || nbytes % word != 0)
    throw std::invalid_argument("a word has 2 or 4 bytes, and a buffer whole words");
  const nb::gil_scoped_release free;
  return word == 2 ? act(std::uint16_t{}) : act(std::uint32_t{});
}

std::size_t encode_changes(const Readable& now, const Writable& held, const Writable& out, std::size_t word) {
  if (now.size() != held.size() || out.size() < weft::changes_room(now.size())) {
    throw std::invalid_argument("too little room for a frame, or buffers of different sizes");
  }
  return by_word(word, now.size(), [&](auto kind) {
    return weft::encode_changes<decltype(kind)>(bytes_of(now), bytes_of(held), bytes_of(out));
  });
}

int check_changes(const Readable& frame, const Readable& words, std::size_t word) {
  return by_word(word, words.size(), [&](auto kind) {
    return static_cast<int>(weft::check_changes<decltype(kind)>(bytes_of(frame), bytes_of(words)));
  });
}

int apply_changes(const Readable& frame, const Writable& words, std::size_t word) {
  return by_word(word, words.size(), [&](auto kind) {
    return static_cast<int>(weft::apply_changes<decltype(kind)>(bytes_of(frame), bytes_of(words)));
  });
}

}  // namespace

void bind_codecs(nb::module_& module) {
  nb::class_<Codec>(module, "Codec", "A codec of the native core, by name and dtype.")
      .def("__init__", [](Codec* self, std::string_view name,
                          std::string_view dtype) { new (self) Codec(weft::codec_of(name, dtype)); })
      .def_ro("number", &Codec::number)
      .def_ro("parameter", &Codec::parameter)
      .def("room", [](const Codec& codec, std::size_t nbytes) { return weft::frame_room(codec, nbytes); })
      .def("encode", &encode)
      .def("decode", &decode)
      .def("time", &time_frame);
  module.def("seal", &seal, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
             nb::arg("mode") = 0);
  module.def("changes_room", &weft::changes_room);
  module.def("encode_changes", &encode_changes);
  module.def("check_changes", &check_changes);
  module.def("apply_changes", &apply_changes);
  module.attr("CHANGES_CODEC") = static_cast<int>(weft::kChangesNumber);
  module.attr("FRAME_HEAD") = sizeof(FrameHead);
  module.attr("FRAME_VERSION") = static_cast<int>(FrameHead::kVersion);
}
