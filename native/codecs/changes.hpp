// The change of a buffer since a copy of it was taken: which words differ, and by how much. For
// weights of which few change from one step to the next, and most of those by one unit in the last
// place: two bytes for each word that changed.
//
//   frame = FrameHead, then for each block of 32,768 words:
//   head   | gaps                            | differences     | wide
//   12 B   | 0..254: words skipped before    | one signed byte | differences that need a whole word
//          | the next that changed; 255: 255 | for each change | (-128 in their place)
//
// A block of which more changed is stored whole.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "codecs/frame.hpp"
#include "wide.hpp"

namespace weft {

inline constexpr std::uint8_t kChangesNumber = 7;  // after the last CodecNumber
inline constexpr std::size_t kChangesBlock = 32768;
inline constexpr std::size_t kChangesGroup = 32;   // words that are compared at once
inline constexpr std::uint8_t kLongGap = 255;  // unchanged words; the gap goes on in the next byte
inline constexpr std::int8_t kWideDifference = -128;

struct ChangesHead {
  static constexpr std::uint16_t kWhole = 0xffff;  // in gap_bytes: the words themselves follow
  std::uint16_t changed = 0;
  std::uint16_t gap_bytes = 0;
  std::uint16_t wide = 0;  // equal to changed: there are no single bytes
  std::uint16_t reserved = 0;
  std::uint32_t base = 0;  // checksum of the words before they changed
};
static_assert(sizeof(ChangesHead) == 12);

// The checksum that tells whether a change is applied to the words it was made from.
WEFT_INLINE std::uint32_t base_sum(std::uint32_t sum, std::uint32_t word) noexcept {
  return (sum + word) * 0x9e3779b1U;
}

template <class Word>
WEFT_INLINE Word word_from(const std::byte* from) noexcept {
  Word word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// Bit i is set if word i of the group differs.
template <class Word>
WEFT_INLINE std::uint32_t differs_plain(const std::byte* a, const std::byte* b) noexcept {
  std::uint32_t mask = 0;
  for (std::size_t i = 0; i < kChangesGroup; ++i) {
    const bool other = word_from<Word>(a + i * sizeof(Word)) != word_from<Word>(b + i * sizeof(Word));
    mask |= static_cast<std::uint32_t>(other) << i;
  }
  return mask;
}

#if defined(__x86_64__)
WEFT_AVX2 inline __m256i equal_words(const std::byte* a, const std::byte* b, bool wide) noexcept {
  const __m256i left = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
  const __m256i right = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
  return wide ? _mm256_cmpeq_epi32(left, right) : _mm256_cmpeq_epi16(left, right);
}

template <class Word>
WEFT_AVX2 inline std::uint32_t differs_avx2(const std::byte* a, const std::byte* b) noexcept {
  if constexpr (sizeof(Word) == 2) {
    const __m256i packed = _mm256_packs_epi16(equal_words(a, b, false), equal_words(a + 32, b + 32, false));
    return ~static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_permute4x64_epi64(packed, 0xd8)));
  } else {
    std::uint32_t mask = 0;
    for (int i = 0; i < 4; ++i) {
      const __m256 same = _mm256_castsi256_ps(equal_words(a + 32 * i, b + 32 * i, true));
      mask |= (~static_cast<std::uint32_t>(_mm256_movemask_ps(same)) & 0xffU) << (8 * i);
    }
    return mask;
  }
}

template <class Word>
WEFT_AVX512 inline std::uint32_t differs_avx512(const std::byte* a, const std::byte* b) noexcept {
  const __m512i left = _mm512_loadu_si512(a), right = _mm512_loadu_si512(b);
  if constexpr (sizeof(Word) == 2) {
    return _mm512_cmpneq_epi16_mask(left, right);
  } else {
    const std::uint32_t low = _mm512_cmpneq_epi32_mask(left, right);
    return low | static_cast<std::uint32_t>(
                     _mm512_cmpneq_epi32_mask(_mm512_loadu_si512(a + 64), _mm512_loadu_si512(b + 64)))
                     << 16;
  }
}
#endif

template <class Word, class Differs>
WEFT_INLINE std::size_t changes_of_block(const std::byte* now, std::byte* held, std::size_t count,
                                         std::byte* out, Differs differs) noexcept {
  using Signed = std::make_signed_t<Word>;
  std::array<std::int8_t, kChangesBlock> narrow;
  std::array<Word, kChangesBlock> all, wide;
  ChangesHead head;
  std::size_t changed = 0, num_wide = 0, next = 0;  // next: the word behind the last one that changed
  std::byte* const gaps = out + sizeof(head);
  std::byte* gap = gaps;
  std::byte* const last_gap = gaps + count * sizeof(Word) / 4;  // beyond it the block is stored whole
  const auto note = [&](std::size_t at) {
    for (; at - next >= kLongGap; next += kLongGap) *gap++ = std::byte{kLongGap};
    *gap++ = static_cast<std::byte>(at - next);
    next = at + 1;
    const Word before = word_from<Word>(held + at * sizeof(Word));
    const auto difference = static_cast<Word>(word_from<Word>(now + at * sizeof(Word)) - before);
    head.base = base_sum(head.base, before);
    const auto shown = static_cast<Signed>(difference);
    const bool fits = shown > kWideDifference && shown <= 127;
    all[changed] = difference;
    narrow[changed++] = fits ? static_cast<std::int8_t>(shown) : kWideDifference;
    wide[num_wide] = difference;
    num_wide += fits ? 0 : 1;
  };
  std::size_t at = 0;
  for (; at + kChangesGroup <= count && gap < last_gap; at += kChangesGroup) {
    std::uint32_t left = differs(now + at * sizeof(Word), held + at * sizeof(Word));
    if (left == 0) continue;
    for (; left != 0; left &= left - 1) note(at + static_cast<std::size_t>(std::countr_zero(left)));
    std::memcpy(held + at * sizeof(Word), now + at * sizeof(Word), kChangesGroup * sizeof(Word));
  }
  const bool whole = gap >= last_gap && at < count;
  for (; at < count && !whole; ++at) {
    if (std::memcmp(now + at * sizeof(Word), held + at * sizeof(Word), sizeof(Word)) != 0) note(at);
  }
  const std::size_t shorter = changed + num_wide * sizeof(Word), longer = changed * sizeof(Word);
  const std::size_t used = static_cast<std::size_t>(gap - gaps) + std::min(shorter, longer);
  if (whole || used >= count * sizeof(Word)) {
    head = {};
    head.gap_bytes = ChangesHead::kWhole;
    std::memcpy(out, &head, sizeof(head));
    std::memcpy(gaps, now, count * sizeof(Word));
    std::memcpy(held, now, count * sizeof(Word));
    return sizeof(head) + count * sizeof(Word);
  }
  const std::size_t rest = count % kChangesGroup;
  std::memcpy(held + (count - rest) * sizeof(Word), now + (count - rest) * sizeof(Word), rest * sizeof(Word));
  head.changed = static_cast<std::uint16_t>(changed);
  head.gap_bytes = static_cast<std::uint16_t>(gap - gaps);
  head.wide = static_cast<std::uint16_t>(shorter < longer ? num_wide : changed);
  std::memcpy(out, &head, sizeof(head));
  if (shorter < longer) {
    std::memcpy(gap, narrow.data(), changed);
    std::memcpy(gap + changed, wide.data(), num_wide * sizeof(Word));
  } else {
    std::memcpy(gap, all.data(), longer);
  }
  return sizeof(head) + used;
}

template <class Word, class Differs>
WEFT_INLINE std::size_t changes_loop(const std::byte* now, std::byte* held, std::size_t count, std::byte* out,
                                     Differs differs) noexcept {
  std::size_t size = 0;
  for (std::size_t at = 0; at < count; at += kChangesBlock) {
    size += changes_of_block<Word>(now + at * sizeof(Word), held + at * sizeof(Word),
                                   std::min(kChangesBlock, count - at), out + size, differs);
  }
  return size;
}

template <class Word>
std::size_t changes_plain(const std::byte* now, std::byte* held, std::size_t count, std::byte* out) noexcept {
  return changes_loop<Word>(now, held, count, out,
                            [](const std::byte* a, const std::byte* b) { return differs_plain<Word>(a, b); });
}
#if defined(__x86_64__)
template <class Word>
WEFT_AVX2 std::size_t changes_avx2(const std::byte* now, std::byte* held, std::size_t count,
                                   std::byte* out) noexcept {
  return changes_loop<Word>(now, held, count, out, [](const std::byte* a, const std::byte* b) WEFT_AVX2 {
    return differs_avx2<Word>(a, b);
  });
}
template <class Word>
WEFT_AVX512 std::size_t changes_avx512(const std::byte* now, std::byte* held, std::size_t count,
                                       std::byte* out) noexcept {
  return changes_loop<Word>(now, held, count, out, [](const std::byte* a, const std::byte* b) WEFT_AVX512 {
    return differs_avx512<Word>(a, b);
  });
}
#endif

// Where more than a quarter of the words changed, codecs of whole chunks are shorter. A few groups
// tell, before anything is written.
template <class Word>
bool few_changed(const std::byte* now, const std::byte* held, std::size_t count) noexcept {
  constexpr std::size_t kSamples = 64;
  const std::size_t groups = count / kChangesGroup;
  if (groups < kSamples) return true;
  int changed = 0;
  for (std::size_t i = 0; i < kSamples; ++i) {
    const std::size_t at = groups * i / kSamples * kChangesGroup * sizeof(Word);
    changed += std::popcount(differs_plain<Word>(now + at, held + at));
  }
  return changed <= static_cast<int>(kSamples * kChangesGroup / 4);
}

inline std::size_t changes_room(std::size_t nbytes) noexcept {
  return sizeof(FrameHead) + nbytes + (nbytes / kChangesBlock + 2) * (sizeof(ChangesHead) + kLongGap);
}

// Writes the frame of what changed from ``held`` to ``now`` and lets ``held`` follow. Answers 0, and
// changes nothing, if too much changed. ``out`` has changes_room.
template <class Word>
std::size_t encode_changes(Bytes now, Bytes held, Bytes out) noexcept {
  const std::size_t count = now.size() / sizeof(Word);
  if (!few_changed<Word>(now.data(), held.data(), count)) return 0;
  FrameHead head;
  head.codec = kChangesNumber;
  head.parameter = sizeof(Word);
  head.nbytes = now.size();
  std::byte* payload = out.data() + sizeof(head);
  const auto encode = [] {
#if defined(__x86_64__)
    if (level() == Level::avx512) return &changes_avx512<Word>;
    if (level() == Level::avx2) return &changes_avx2<Word>;
#endif
    return &changes_plain<Word>;
  }();
  head.payload = encode(now.data(), held.data(), count, payload);
  head.sum = frame_sum(head, payload);
  std::memcpy(out.data(), &head, sizeof(head));
  return sizeof(head) + head.payload;
}

// Walks the words that changed in one block. Writes nothing unless ``kWrites``; answers whether the
// block is valid and, if nothing is written, whether the words are those it was made from.
template <class Word, bool kWrites>
Verdict walk_block(Bytes& from, std::byte* words, std::size_t count) noexcept {
  ChangesHead head;
  if (from.size() < sizeof(head)) return Verdict::content;
  std::memcpy(&head, from.data(), sizeof(head));
  from = from.subspan(sizeof(head));
  if (head.gap_bytes == ChangesHead::kWhole) {
    if (from.size() < count * sizeof(Word)) return Verdict::content;
    if (kWrites) std::memcpy(words, from.data(), count * sizeof(Word));
    from = from.subspan(count * sizeof(Word));
    return Verdict::good;
  }
  const bool all_wide = head.wide == head.changed;
  const std::size_t narrow_bytes = all_wide ? 0 : head.changed;
  const std::size_t size = head.gap_bytes + narrow_bytes + head.wide * sizeof(Word);
  if (from.size() < size || head.wide > head.changed || head.gap_bytes < head.changed)
    return Verdict::content;
  const std::byte* gaps = from.data();
  const std::byte* narrow = gaps + head.gap_bytes;
  const std::byte* wide = narrow + narrow_bytes;
  std::size_t at = 0, changed = 0, num_wide = 0;
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < head.gap_bytes; ++i) {
    const auto gap = static_cast<std::uint8_t>(gaps[i]);
    at += gap;
    if (gap == kLongGap) continue;
    if (at >= count || changed == head.changed) return Verdict::content;
    std::byte* const place = words + at * sizeof(Word);
    const Word before = word_from<Word>(place);
    const auto shown = all_wide ? kWideDifference : static_cast<std::int8_t>(narrow[changed]);
    const bool is_wide = shown == kWideDifference;
    if (is_wide && num_wide == head.wide) return Verdict::content;
    if constexpr (kWrites) {
      const Word difference = is_wide ? word_from<Word>(wide + num_wide * sizeof(Word))
                                      : static_cast<Word>(static_cast<std::make_signed_t<Word>>(shown));
      const auto after = static_cast<Word>(before + difference);
      std::memcpy(place, &after, sizeof(after));
    }
    sum = base_sum(sum, before);
    num_wide += is_wide ? 1 : 0;
    ++changed;
    ++at;
  }
  from = from.subspan(size);
  if (changed != head.changed || num_wide != head.wide) return Verdict::content;
  return sum == head.base ? Verdict::good : Verdict::base;
}

template <class Word, bool kWrites>
Verdict walk_changes(Bytes payload, Bytes words) noexcept {
  const std::size_t count = words.size() / sizeof(Word);
  for (std::size_t at = 0; at < count; at += kChangesBlock) {
    const Verdict found = walk_block<Word, kWrites>(payload, words.data() + at * sizeof(Word),
                                                    std::min(kChangesBlock, count - at));
    if (found != Verdict::good) return found;
  }
  return payload.empty() ? Verdict::good : Verdict::content;
}

// Whether a frame is whole and ``words`` are those it was made from.
template <class Word>
Verdict check_changes(Bytes frame, Bytes words) noexcept {
  FrameHead head;
  if (const Verdict found = read_head(frame, head); found != Verdict::good) return found;
  if (head.codec != kChangesNumber || head.parameter != sizeof(Word)) return Verdict::codec;
  if (head.nbytes != words.size()) return Verdict::size;
  return walk_changes<Word, false>(frame.subspan(sizeof(head)), words);
}

// Applies a frame that was checked against these words; unchecked content can only write inside them.
template <class Word>
Verdict apply_changes(Bytes frame, Bytes words) noexcept {
  if (frame.size() < sizeof(FrameHead)) return Verdict::cut;
  return walk_changes<Word, true>(frame.subspan(sizeof(FrameHead)), words);
}

}  // namespace weft
