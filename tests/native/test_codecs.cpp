// Codecs: what goes in comes out, at every level of vectors alike, and nothing that is fed to a
// decoder makes it read or write elsewhere.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "codecs/changes.hpp"
#include "codecs/codecs.hpp"

using namespace weft;
using Buffer = std::vector<std::byte>;

namespace {

std::mt19937 chance(7);

Buffer random_bytes(std::size_t size) {
  Buffer bytes(size);
  for (std::byte& each : bytes) each = static_cast<std::byte>(chance());
  return bytes;
}

template <class T>
Buffer values(std::size_t count, float zeros, bool odd_ones) {
  std::normal_distribution<float> usual(0, 0.02F);
  std::uniform_real_distribution<float> share(0, 1);
  constexpr float kOdd[] = {std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(),
                            1e-42F,
                            -0.0F,
                            3e38F,
                            1e-30F};
  Buffer bytes(count * sizeof(T));
  for (std::size_t i = 0; i < count; ++i) {
    float value = share(chance) < zeros ? (odd_ones ? -0.0F : 0.0F) : usual(chance);
    if (odd_ones && share(chance) < 0.01F) value = kOdd[chance() % std::size(kOdd)];
    const T narrow = T::from(value);
    std::memcpy(bytes.data() + i * sizeof(T), &narrow, sizeof(T));
  }
  return bytes;
}

Buffer framed(const Codec& codec, Buffer& src) {
  Buffer out(frame_room(codec, src.size()));
  const std::size_t size = encode_frame(codec, src, out);
  CHECK(size <= sizeof(FrameHead) + src.size());
  return {out.begin(), out.begin() + static_cast<std::ptrdiff_t>(size)};
}

void check_lossless(const char* name, const char* dtype, Buffer src) {
  const Codec codec = codec_of(name, dtype);
  Buffer frame = framed(codec, src), back(src.size());
  CHECK(decode_frame(codec, frame, back) == Verdict::good);
  CHECK(back == src);
}

// Each flipped bit shows, and leaves the destination as it was.
void check_corruption(const char* name, const char* dtype, Buffer src) {
  const Codec codec = codec_of(name, dtype);
  Buffer frame = framed(codec, src);
  for (int i = 0; i < 50; ++i) {
    Buffer wrong = frame, back(src.size(), std::byte{42});
    wrong[chance() % wrong.size()] ^= static_cast<std::byte>(1U << chance() % 8);
    CHECK(decode_frame(codec, wrong, back) != Verdict::good);
    CHECK(back == Buffer(src.size(), std::byte{42}));
    Buffer cut(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(chance() % frame.size()));
    CHECK(decode_frame(codec, cut, back) == Verdict::cut);
  }
}

// Whatever is fed: an answer, and the sanitizer has nothing to say.
void check_hostile(const char* name, const char* dtype) {
  const Codec codec = codec_of(name, dtype);
  for (int i = 0; i < 300; ++i) {
    Buffer src = values<Plain>(chance() % 3000, 0.3F, true), dst(chance() % 5000 * 4);
    src.resize(src.size() / codec.item_bytes * codec.item_bytes);
    Buffer payload(codec.worst(src.size(), codec.parameter));
    payload.resize(codec.encode(src, payload, codec.parameter));
    for (int flips = static_cast<int>(chance() % 20); flips > 0 && !payload.empty(); --flips) {
      payload[chance() % payload.size()] = static_cast<std::byte>(chance());
    }
    payload.resize(chance() % (payload.size() + 1));
    payload.shrink_to_fit();
    (void)codec.decode(payload, dst, codec.parameter);
    Buffer noise = random_bytes(chance() % 2000);
    if (!noise.empty()) noise[0] = static_cast<std::byte>(chance() % 5);
    (void)codec.decode(noise, dst, codec.parameter);
  }
}

void lossless_for_all() {
  for (const std::size_t count : {0, 1, 7, 31, 32, 33, 999, 1024, 1025, 5000, 70000}) {
    for (const float zeros : {0.0F, 0.05F, 0.5F, 0.95F, 1.0F}) {
      for (const bool odd : {false, true}) {
        check_lossless("pack", "float32", values<Plain>(count, zeros, odd));
        check_lossless("pack", "bfloat16", values<Brain>(count, zeros, odd));
        check_lossless("pack", "float16", values<Half>(count, zeros, odd));
      }
    }
    check_lossless("pack", "float32", random_bytes(count * 4));
    check_lossless("pack", "bfloat16", random_bytes(count * 2));
    check_lossless("pack", "float16", random_bytes(count * 2));
    check_lossless("none", "int64", random_bytes(count));
  }
}

// Both bases at once are counted as each alone.
void check_two_bases(const std::uint8_t* exponents, std::size_t count, std::uint8_t base) {
  const std::array<std::uint8_t, 2> bases{base, static_cast<std::uint8_t>(base - 2)};
  std::array<Outside, 2> both{}, single{}, plain{};
  count_outside_of(exponents, count, bases, 2, both);
  count_outside_of(exponents, count, bases, 1, single);
  for (int k = 0; k < 2; ++k) count_outside(exponents, count, bases[k], plain[k]);
  CHECK(both == plain && single[0] == plain[0]);
}

void check_brains(std::size_t count) {
  Buffer src = values<Brain>(count, 0.1F, true), rest(count), plain_rest(count), back(src.size() + 4);
  BlockBytes wide{}, plain{}, extra{};
  split<BrainFields>(src.data(), count, wide.data(), extra.data(), rest.data());
  split_from<BrainFields>(src.data(), 0, count, plain.data(), extra.data(), plain_rest.data());
  CHECK(rest == plain_rest && wide == plain);
  back.resize(src.size());
  join<BrainFields>(wide.data(), extra.data(), rest.data(), 0, count, back.data());
  CHECK(back == src);
}

// The plain loops make the same bytes as the vectors, and read them.
void levels_agree() {
  for (const std::size_t count : {1, 40, 500, 1024}) {
    Buffer src = values<Plain>(count, 0.02F, true);
    BlockBytes wide{}, plain{}, extra{};
    Buffer rest(count * 3), plain_rest(count * 3), back(src.size());
    split<Single>(src.data(), count, wide.data(), extra.data(), rest.data());
    split_from<Single>(src.data(), 0, count, plain.data(), extra.data(), plain_rest.data());
    CHECK(rest == plain_rest &&
          std::equal(wide.begin(), wide.begin() + static_cast<long>(count), plain.begin()));
    join_from<Single>(wide.data(), extra.data(), rest.data(), 0, count, back.data());
    CHECK(back == src);
    const Window window = best_window(wide.data(), count);
    Outside outside{};
    count_outside(plain.data(), count, window.base, outside);
    CHECK(window.bits <= kMostTried && outside[window.bits] == window.exceptions);
    Buffer out(window.nbytes(count)), other(window.nbytes(count));
    write_window(wide.data(), count, window, out.data());
    std::memset(plain.data() + count, window.base, plane_bytes(count) * 8 - count);
    if (window.bits > 0) {
      write_codes_plain(plain.data(), count, window, other.data(),
                        other.data() + window.bits * plane_bytes(count));
    }
    CHECK(out == other);
    // Read by either, with room before as a block has it; one exception too few shows.
    Buffer block(4 + out.size());
    std::copy(out.begin(), out.end(), block.begin() + 4);
    BlockBytes read{}, read_plain{};
    CHECK(read_window(block.data() + 4, count, window, read.data()));
    const std::size_t groups = plane_bytes(count) / 4;
    CHECK(window.bits == 0 || read_codes_plain(block.data() + 4, groups, window, read_plain.data()));
    CHECK(std::equal(wide.begin(), wide.begin() + static_cast<long>(count), read.begin()));
    CHECK(window.bits == 0 ||
          std::equal(read.begin(), read.begin() + static_cast<long>(count), read_plain.begin()));
    if (window.exceptions != 0) {
      Window fewer = window;
      --fewer.exceptions;
      CHECK(!read_window(block.data() + 4, count, fewer, read.data()));
      CHECK(!read_codes_plain(block.data() + 4, groups, fewer, read.data()));
    }
    check_two_bases(wide.data(), count, window.base);
    check_brains(count);
    std::vector<float> from(count);
    std::memcpy(from.data(), src.data(), src.size());
    Buffer narrow_wide(count * 2), narrow_plain(count * 2);
    narrow<Brain>(from.data(), count, narrow_wide.data());
    narrow_from<Brain>(from.data(), 0, count, narrow_plain.data());
    CHECK(narrow_wide == narrow_plain);
    std::vector<std::int8_t> integers(count), plain_integers(count);
    for (float& each : from) each = std::isfinite(each) && std::fabs(each) < 1 ? each : 0.5F;
    to_integers(from.data(), count, 127, integers.data());
    to_integers_from(from.data(), 0, count, 127, plain_integers.data());
    CHECK(integers == plain_integers);
    CHECK(largest(from.data(), count) == largest_from(from.data(), 0, count));
  }
}

// At most half a step away, and what is not finite stays as it is, alone.
void integers_are_near() {
  Buffer src = values<Plain>(5000, 0.1F, true);
  const Codec codec = codec_of("int8:64", "float32");
  Buffer frame = framed(codec, src), back(src.size());
  CHECK(decode_frame(codec, frame, back) == Verdict::good);
  for (std::size_t block = 0; block < 5000; block += 64) {
    float most = 0;
    bool kept = false;
    for (std::size_t i = block; i < std::min<std::size_t>(block + 64, 5000); ++i) {
      const float value = word_at<float>(src.data(), i);
      kept = kept || !std::isfinite(value);
      most = std::max(most, std::fabs(value));
    }
    for (std::size_t i = block; i < std::min<std::size_t>(block + 64, 5000); ++i) {
      const float want = word_at<float>(src.data(), i), have = word_at<float>(back.data(), i);
      CHECK(kept ? std::bit_cast<std::uint32_t>(want) == std::bit_cast<std::uint32_t>(have)
                 : std::fabs(want - have) <= most / 127 * 0.501F);
    }
  }
}

void names_are_checked() {
  CHECK_THROWS(codec_of("zip", "float32"), std::invalid_argument);
  CHECK_THROWS(codec_of("pack", "int32"), std::invalid_argument);
  CHECK_THROWS(codec_of("int8:5", "float32"), std::invalid_argument);
  CHECK_THROWS(codec_of("int8:x", "float32"), std::invalid_argument);
  CHECK_THROWS(codec_of("pack:4", "float32"), std::invalid_argument);
}

// Lists of changes are the same bytes at every level of vectors, restore what changed, and no content
// of a frame writes outside of its words.
template <class Word>
void check_changes_of(std::size_t count, unsigned one_in) {
  Buffer before = random_bytes(count * sizeof(Word)), after = before;
  for (std::size_t i = 0; i < count; ++i) {
    if (chance() % one_in == 0) after[i * sizeof(Word)] ^= static_cast<std::byte>(1 + chance() % 255);
  }
  Buffer held = before, out(changes_room(before.size()));
  const std::size_t size = changes_plain<Word>(after.data(), held.data(), count, out.data());
  CHECK(held == after);
#if defined(__x86_64__)
  for (const auto encode : {&changes_avx2<Word>, &changes_avx512<Word>}) {
    if (encode == &changes_avx2<Word> ? level() == Level::plain : level() != Level::avx512) continue;
    Buffer again = before, other(out.size());
    CHECK(encode(after.data(), again.data(), count, other.data()) == size);
    CHECK(again == after);
    CHECK(std::equal(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(size), other.begin()));
  }
#endif
  Buffer back = before;
  const Bytes payload = Bytes(out).first(size);
  CHECK((walk_changes<Word, false>(payload, back)) == Verdict::good);
  CHECK(back == before);
  CHECK((walk_changes<Word, true>(payload, back)) == Verdict::good);
  CHECK(back == after);
  for (int round = 0; round < 200 && size != 0; ++round) {
    Buffer spoilt(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(size)), words = before;
    for (int i = 0; i < 8; ++i) spoilt[chance() % size] = static_cast<std::byte>(chance());
    walk_changes<Word, true>(spoilt, words);
    walk_changes<Word, true>(Bytes(spoilt).first(chance() % (size + 1)), words);
  }
}

}  // namespace

int main() {
  lossless_for_all();
  levels_agree();
  integers_are_near();
  names_are_checked();
  for (const std::size_t count : {0UL, 1UL, 31UL, 5000UL, 70001UL}) {
    for (const unsigned one_in : {1U, 3U, 40U, 5000U}) {
      check_changes_of<std::uint16_t>(count, one_in);
      check_changes_of<std::uint32_t>(count, one_in);
    }
  }
  for (const char* dtype : {"float32", "bfloat16", "float16"}) {
    for (const char* name : {"pack", "int8", "int4:16", "fp8"}) check_hostile(name, dtype);
  }
  for (const char* name : {"pack", "int8", "int4", "bf16", "fp16", "fp8", "none"}) {
    check_corruption(name, "float32", values<Plain>(3000, 0.1F, false));
  }
  return 0;
}
