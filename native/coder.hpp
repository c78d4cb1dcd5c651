// Encoding of chunks into slots, by a native codec or one implemented in Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "codecs/frame.hpp"
#include "move.hpp"

namespace weft {

struct Coder {
  std::function<std::size_t(std::size_t nbytes)> room;
  std::function<std::size_t(Bytes src, Bytes out)> encode;  // 0: failed
  std::function<Verdict(Bytes frame, Bytes dst)> decode;
  bool calls_python = false;  // it may block, and may throw a Python exception
};

inline Coder coder_of(const Codec& codec) {
  return {[codec](std::size_t nbytes) { return frame_room(codec, nbytes); },
          [codec](Bytes src, Bytes out) { return encode_frame(codec, src, out); },
          [codec](Bytes frame, Bytes dst) { return decode_frame(codec, frame, dst); }};
}

// The used bytes of a slot with its header; more than its size if the slot is invalid.
inline std::uint64_t used_of(Bytes slot) noexcept {
  std::uint64_t size;
  std::memcpy(&size, slot.data(), kSlotHead);
  return size > slot.size() - kSlotHead ? slot.size() + 1 : kSlotHead + size;
}

// The slot has room for a header and a frame of ``src``. Returns whether encoding succeeded.
inline bool encode_slot(const Coder& coder, Bytes src, Bytes slot) {
  const std::uint64_t size = coder.encode(src, slot.subspan(kSlotHead));
  std::memcpy(slot.data(), &size, kSlotHead);
  return size != 0;
}

inline Verdict decode_slot(const Coder& coder, Bytes slot, Bytes dst) {
  const std::uint64_t used = used_of(slot);
  if (used > slot.size()) return Verdict::cut;
  return coder.decode(slot.subspan(kSlotHead, used - kSlotHead), dst);
}

}  // namespace weft
