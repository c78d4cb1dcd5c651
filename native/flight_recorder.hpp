// The last calls of a rank, in shared memory: for errors, and to detect ranks that disagree.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "flag.hpp"

namespace weft {

// Only its rank writes it. Texts are atomic words: a reader that is overtaken sees a changed number
// and drops what it read, so there is no data race.
class FlightRecorder {
 public:
  static constexpr std::size_t kKept = 64;
  static constexpr std::size_t kText = 112;

  std::uint64_t begin(std::string_view text) noexcept {
    const std::uint64_t number = ref(latest_).load(std::memory_order_relaxed) + 1;
    Entry& entry = entries_[number % kKept];
    ref(entry.number).store(0, std::memory_order_relaxed);
    std::array<std::uint64_t, kText / 8> words{};
    const std::size_t size = std::min(text.size(), kText);
    std::memcpy(words.data(), text.data(), size);
    std::uint64_t digest = ref(entries_[(number - 1) % kKept].digest).load(std::memory_order_relaxed);
    digest = mixed(digest, size);
    // Release: a reader of a word sees the zero above.
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (8 * i < size) digest = mixed(digest, words[i]);
      ref(entry.words[i]).store(words[i], std::memory_order_release);
    }
    ref(entry.digest).store(digest, std::memory_order_release);
    // Release: a reader of the number sees the words.
    ref(entry.number).store(number, std::memory_order_release);
    ref(latest_).store(number, std::memory_order_release);
    return number;
  }

  void end(std::uint64_t number) noexcept {
    // Release: a reader of the end sees the call. Only this rank writes it.
    ref(ended_).store(number, std::memory_order_release);
  }

  [[nodiscard]] std::uint64_t latest() const noexcept { return ref(latest_).load(std::memory_order_acquire); }
  [[nodiscard]] std::uint64_t ended() const noexcept { return ref(ended_).load(std::memory_order_acquire); }

  // The call of that number, if it is still kept.
  [[nodiscard]] std::optional<std::string> text(std::uint64_t number) const {
    const Entry& entry = entries_[number % kKept];
    if (number == 0 || ref(entry.number).load(std::memory_order_acquire) != number) {
      return std::nullopt;
    }
    std::array<std::uint64_t, kText / 8> words;
    // Acquire: a word of a later call would come with its zero.
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = ref(entry.words[i]).load(std::memory_order_acquire);
    }
    if (ref(entry.number).load(std::memory_order_relaxed) != number) return std::nullopt;
    const char* begin = reinterpret_cast<const char*>(words.data());
    return std::string(begin, std::find(begin, begin + kText, '\0'));
  }

  // A hash of all calls up to that number, if it is still kept: equal on ranks that made the same calls.
  [[nodiscard]] std::optional<std::uint64_t> digest(std::uint64_t number) const {
    const Entry& entry = entries_[number % kKept];
    if (number == 0 || ref(entry.number).load(std::memory_order_acquire) != number) return std::nullopt;
    const std::uint64_t digest = ref(entry.digest).load(std::memory_order_acquire);
    if (ref(entry.number).load(std::memory_order_relaxed) != number) return std::nullopt;
    return digest;
  }

 private:
  struct alignas(kLine) Entry {
    std::uint64_t number;
    std::uint64_t digest;
    std::array<std::uint64_t, kText / 8> words;
  };

  // The step of the 64-bit FNV-1a hash for a whole word, with the high bits folded in.
  static std::uint64_t mixed(std::uint64_t digest, std::uint64_t word) noexcept {
    digest = (digest ^ word) * 0x100000001b3;
    return digest ^ (digest >> 29);
  }

  static std::atomic_ref<std::uint64_t> ref(const std::uint64_t& word) noexcept {
    return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(word));
  }

  alignas(kLine) std::uint64_t latest_;
  std::uint64_t ended_;
  std::array<Entry, kKept> entries_;
};

}  // namespace weft
