// A codec and the frame around what it makes: who made it, how long it is, whether it is whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "codecs/checksum.hpp"
#include "codecs/fields.hpp"
#include "move.hpp"

namespace weft {

// What a codec makes of bytes. ``parameter`` is its block, where it has one.
struct Codec {
  using Worst = std::size_t (*)(std::size_t nbytes, std::size_t parameter) noexcept;
  using Encoder = std::size_t (*)(Bytes src, Bytes out, std::size_t parameter) noexcept;
  using Decoder = bool (*)(Bytes from, Bytes dst, std::size_t parameter) noexcept;

  std::uint8_t number = 0;
  std::uint8_t dtype = 0;
  std::uint16_t parameter = 0;
  std::size_t item_bytes = 1;
  Worst worst = nullptr;  // all three are null for "none"
  Encoder encode = nullptr;
  Decoder decode = nullptr;
  Decoder decode_unsized = nullptr;  // of frames before blocks had their sizes in front
};

enum class Verdict : std::uint8_t { good, cut, version, codec, size, checksum, content, base };

inline const char* reason_of(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::good: return "it is valid";
    case Verdict::cut: return "it is truncated";
    case Verdict::version: return "it has another version, or is not a frame";
    case Verdict::codec: return "it was encoded by another codec";
    case Verdict::size: return "it holds a chunk of another size";
    case Verdict::checksum: return "its checksum is wrong";
    case Verdict::base: return "it is a change of other values than those held";
    case Verdict::content: break;
  }
  return "its content is invalid";
}

// Little-endian, as it stands. The checksum is of the payload and of the head without itself.
struct FrameHead {
  static constexpr std::uint16_t kMagic = 0x6677;
  static constexpr std::uint8_t kVersion = 1;
  enum Mode : std::uint8_t { kCoded, kAsItIs, kSized };  // sized: sizes of blocks come first

  std::uint16_t magic = kMagic;
  std::uint8_t version = kVersion;
  std::uint8_t codec = 0;
  std::uint8_t dtype = 0;
  std::uint8_t mode = kCoded;
  std::uint16_t parameter = 0;
  std::uint64_t nbytes = 0;   // of what was encoded
  std::uint64_t payload = 0;  // of what follows
  std::uint64_t sum = 0;
};
static_assert(sizeof(FrameHead) == 32);

inline std::uint64_t frame_sum(const FrameHead& head, const std::byte* payload) noexcept {
  constexpr std::size_t kWithoutSum = sizeof(FrameHead) - sizeof(head.sum);
  const std::uint64_t of_head = checksum(reinterpret_cast<const std::byte*>(&head), kWithoutSum);
  return of_head ^ checksum(payload, head.payload) * 0x9e3779b97f4a7c15ULL;
}

// Room that a frame may need: what does not shrink goes as it is, so a codec's own worst case
// is only room to work in.
inline std::size_t frame_room(const Codec& codec, std::size_t nbytes) noexcept {
  const std::size_t worst = codec.worst == nullptr ? 0 : codec.worst(nbytes, codec.parameter);
  return sizeof(FrameHead) + (worst > nbytes ? worst : nbytes);
}

// ``out`` has frame_room; answers the length of the frame, at most 32 bytes more than src.
inline std::size_t encode_frame(const Codec& codec, Bytes src, Bytes out) noexcept {
  FrameHead head;
  head.codec = codec.number;
  head.dtype = codec.dtype;
  head.parameter = codec.parameter;
  head.nbytes = src.size();
  if (codec.decode_unsized != nullptr) head.mode = FrameHead::kSized;
  std::byte* payload = out.data() + sizeof(head);
  const bool whole = src.size() % codec.item_bytes == 0;
  head.payload = codec.encode == nullptr || !whole
                     ? src.size()
                     : codec.encode(src, out.subspan(sizeof(head)), codec.parameter);
  if (head.payload >= src.size()) {
    head.mode = FrameHead::kAsItIs;
    head.payload = src.size();
    copy_wide(src.data(), src.size(), payload);
  }
  head.sum = frame_sum(head, payload);
  std::memcpy(out.data(), &head, sizeof(head));
  return sizeof(head) + head.payload;
}

// Reads the head of a frame that must be whole: all of it is there, and its checksum is right.
inline Verdict read_head(Bytes frame, FrameHead& head) noexcept {
  if (frame.size() < sizeof(head)) return Verdict::cut;
  std::memcpy(&head, frame.data(), sizeof(head));
  if (head.magic != FrameHead::kMagic || head.version != FrameHead::kVersion) return Verdict::version;
  if (head.payload != frame.size() - sizeof(head)) return Verdict::cut;
  const bool good = head.sum == frame_sum(head, frame.data() + sizeof(head));
  return good ? Verdict::good : Verdict::checksum;
}

// ``dst`` is written only if all but the content is right: a wrong checksum changes nothing.
inline Verdict decode_frame(const Codec& codec, Bytes frame, Bytes dst) noexcept {
  FrameHead head;
  if (const Verdict found = read_head(frame, head); found != Verdict::good) return found;
  const Bytes payload = frame.subspan(sizeof(head));
  if (head.codec != codec.number || head.dtype != codec.dtype || head.parameter != codec.parameter) {
    return Verdict::codec;
  }
  if (head.nbytes != dst.size()) return Verdict::size;
  if (head.mode == FrameHead::kAsItIs) {
    if (payload.size() != dst.size()) return Verdict::content;
    copy_wide(payload.data(), dst.size(), dst.data());
    return Verdict::good;
  }
  const bool older = codec.decode_unsized != nullptr && head.mode == FrameHead::kCoded;
  const Codec::Decoder decode = older ? codec.decode_unsized : codec.decode;
  const bool good = decode != nullptr && decode(payload, dst, codec.parameter);
  return good ? Verdict::good : Verdict::content;
}

}  // namespace weft
