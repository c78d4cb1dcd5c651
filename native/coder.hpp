// What makes a chunk into a slot and back: a codec of this core, or one that somebody lends.
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
  std::function<std::size_t(Bytes src, Bytes out)> encode;  // 0: it could not
  std::function<Verdict(Bytes frame, Bytes dst)> decode;
  bool calls_python = false;  // it may take long, and may throw what its owner threw
};

inline Coder coder_of(const Codec& codec) {
  return {[codec](std::size_t nbytes) { return frame_room(codec, nbytes); },
          [codec](Bytes src, Bytes out) { return encode_frame(codec, src, out); },
          [codec](Bytes frame, Bytes dst) { return decode_frame(codec, frame, dst); }};
}

// How much of a slot is in use, its head included. More than the slot has: it is broken.
inline std::uint64_t used_of(Bytes slot) noexcept {
  std::uint64_t size;
  std::memcpy(&size, slot.data(), kSlotHead);
  return size > slot.size() - kSlotHead ? slot.size() + 1 : kSlotHead + size;
}

// The slot has room for a head and a frame of ``src``. Answers whether it could be done.
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
