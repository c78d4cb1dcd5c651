// Every decoder of the native core: bare payloads, and frames whose checksum is right.
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "codecs/codecs.hpp"
#include "target.hpp"

using namespace weft;

namespace {

constexpr std::array<const char*, 10> kCodecs = {"none",    "pack",    "bf16",    "fp16",    "fp8",
                                                 "int8:64", "int8:16", "int4:64", "int4:16", "int8:4096"};
constexpr std::array<const char*, 3> kDtypes = {"float32", "bfloat16", "float16"};

// Exact sizes on the heap: a byte too far is seen.
std::vector<std::byte> copied(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> made(size);
  if (size != 0) std::memcpy(made.data(), data, size);
  return made;
}

const Codec& drawn(std::size_t number) {
  static const std::vector<Codec> all = [] {
    std::vector<Codec> made;
    for (const char* name : kCodecs) {
      for (const char* dtype : kDtypes) made.push_back(codec_of(name, dtype));
    }
    return made;
  }();
  return all[number % all.size()];
}

void decode_bare(const Codec& codec, const Front& front, std::size_t nbytes) {
  if (codec.decode == nullptr) return;
  std::vector<std::byte> payload = copied(front.data(), front.size());
  std::vector<std::byte> out(nbytes / codec.item_bytes * codec.item_bytes);
  static_cast<void>(codec.decode(payload, out, codec.parameter));
}

// The head says what the input says; only magic, length and sum are made right.
void decode_framed(const Codec& codec, const Front& front, std::size_t nbytes) {
  FrameHead head;
  std::vector<std::byte> frame = copied(front.data(), front.size());
  std::vector<std::byte> out(nbytes, std::byte{42});
  if (frame.size() >= sizeof(head)) {
    std::memcpy(&head, frame.data(), sizeof(head));
    head.magic = FrameHead::kMagic;
    head.version = FrameHead::kVersion;
    head.payload = frame.size() - sizeof(head);
    if ((head.mode & 2) != 0) {
      head.codec = codec.number;
      head.dtype = codec.dtype;
      head.parameter = codec.parameter;
      head.nbytes = nbytes;
      head.mode &= 1;
    }
    head.sum = frame_sum(head, frame.data() + sizeof(head));
    std::memcpy(frame.data(), &head, sizeof(head));
  }
  const Verdict verdict = decode_frame(codec, frame, out);
  const bool untouched = out == std::vector<std::byte>(nbytes, std::byte{42});
  if (verdict != Verdict::good && verdict != Verdict::content && !untouched) std::abort();
}

// What a decoder gives for what its encoder made is as long as before, and good.
void round_trip(const Codec& codec, const Front& front) {
  std::vector<std::byte> src = copied(front.data(), front.size());
  std::vector<std::byte> frame(frame_room(codec, src.size())), back(src.size());
  const std::size_t size = encode_frame(codec, src, frame);
  if (size > sizeof(FrameHead) + src.size()) std::abort();
  frame.resize(size);
  frame.shrink_to_fit();
  if (decode_frame(codec, frame, back) != Verdict::good) std::abort();
  const bool exact = codec.number <= static_cast<std::uint8_t>(CodecNumber::pack);
  if (exact && back != src) std::abort();
}

}  // namespace

const char* fuzz_name() { return "codecs"; }

const std::vector<Input>& fuzz_seeds() {
  static const std::vector<Input> seeds = [] {
    std::vector<Input> made;
    for (std::size_t number = 0; number < kCodecs.size() * kDtypes.size(); ++number) {
      const Codec& codec = drawn(number);
      std::vector<std::byte> src(480), frame(frame_room(codec, src.size()));
      for (std::size_t i = 0; i < src.size(); ++i)
        src[i] = static_cast<std::byte>(i % 4 == 3 ? 60 : i * 37 % 251);
      const std::size_t size = encode_frame(codec, src, frame);
      for (std::uint8_t way = 0; way < 3; ++way) {
        Input input = {way, static_cast<std::uint8_t>(number), 480 % 256, 480 / 256};
        const std::size_t skip = way == 0 ? sizeof(FrameHead) : 0;
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(way == 2 ? src.data() : frame.data());
        input.insert(input.end(), bytes + skip, bytes + (way == 2 ? src.size() : size));
        made.push_back(std::move(input));
      }
    }
    return made;
  }();
  return seeds;
}

const std::vector<std::string_view>& fuzz_words() {
  static const std::vector<std::string_view> none;
  return none;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Front front(data, size);
  const std::uint8_t way = front.byte();
  const Codec& codec = drawn(front.byte());
  const std::size_t low = front.byte(), nbytes = low + 256U * (front.byte() % 32U);
  switch (way % 3) {
    case 0: decode_bare(codec, front, nbytes); break;
    case 1: decode_framed(codec, front, nbytes); break;
    default: round_trip(codec, front); break;
  }
  return 0;
}
