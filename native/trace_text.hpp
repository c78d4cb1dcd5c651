// Reads JSON text that may end anywhere, and forgives what profilers get wrong in it.
//
// Profilers write names without escaping them and NaN or inf for numbers; a strict reader would
// refuse the whole file. A string ends at its next quote that no backslash precedes, whatever
// stands inside; a bare word is a value. Nothing here recurses: depth costs no stack.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <system_error>

namespace weft::trace {

enum class Found : std::uint8_t { kDone, kMore, kBad };  // kMore: the text ends before the value

class Text {
 public:
  Text(const char* at, const char* end) noexcept : at_(at), end_(end) {}

  [[nodiscard]] const char* at() const noexcept { return at_; }
  [[nodiscard]] char next() const noexcept { return *at_; }
  void step() noexcept { ++at_; }

  // False where the text ends.
  bool skip_blanks() noexcept {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
    return at_ != end_;
  }

  Found expect(char wanted) noexcept {
    if (!skip_blanks()) return Found::kMore;
    if (*at_ != wanted) return Found::kBad;
    ++at_;
    return Found::kDone;
  }

  // What stands between the quotes, still escaped.
  Found string(std::string_view& out) noexcept {
    if (const Found quote = expect('"'); quote != Found::kDone) return quote;
    const char* first = at_;
    for (const char* from = at_;;) {
      const auto* quote =
          static_cast<const char*>(std::memchr(from, '"', static_cast<std::size_t>(end_ - from)));
      if (quote == nullptr) return Found::kMore;
      std::size_t slashes = 0;
      while (quote - slashes > first && quote[-1 - static_cast<std::ptrdiff_t>(slashes)] == '\\') ++slashes;
      from = quote + 1;
      if (slashes % 2 == 0) {
        out = {first, static_cast<std::size_t>(quote - first)};
        at_ = from;
        return Found::kDone;
      }
    }
  }

  // Any value as it stands, a string with its quotes.
  Found value(std::string_view& out) noexcept {
    if (!skip_blanks()) return Found::kMore;
    const char* first = at_;
    const Found found = *at_ == '"' ? quoted() : *at_ == '{' || *at_ == '[' ? nested() : word();
    out = {first, static_cast<std::size_t>(at_ - first)};
    return found;
  }

 private:
  Found quoted() noexcept {
    std::string_view ignored;
    return string(ignored);
  }

  // Brackets must match as deep as a word has bits; below that they are only counted.
  Found nested() noexcept {
    std::size_t depth = 0;
    std::uint64_t lists = 0;  // bit d: the bracket at depth d is square
    for (; at_ != end_; ++at_) {
      const char c = *at_;
      if (c == '"') {
        if (const Found found = quoted(); found != Found::kDone) return found;
        --at_;
      } else if (c == '{' || c == '[') {
        const std::uint64_t bit = depth < 64 ? std::uint64_t{1} << depth : 0;
        lists = c == '[' ? lists | bit : lists & ~bit;
        ++depth;
      } else if (c == '}' || c == ']') {
        --depth;
        if (depth < 64 && ((lists >> depth) & 1) != (c == ']' ? 1U : 0U)) return Found::kBad;
        if (depth == 0) {
          ++at_;
          return Found::kDone;
        }
      }
    }
    return Found::kMore;
  }

  Found word() noexcept {
    const char* first = at_;
    while (at_ != end_ && is_word(*at_)) ++at_;
    if (at_ == end_) return Found::kMore;
    return at_ == first ? Found::kBad : Found::kDone;
  }

  static bool is_word(char c) noexcept {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '-' || c == '+';
  }

  const char* at_;
  const char* end_;
};

inline std::string_view unquoted(std::string_view value) noexcept {
  if (value.size() >= 2 && value.front() == '"') return value.substr(1, value.size() - 2);
  return value;
}

// A time in microseconds as nanoseconds, exactly: microseconds since 1970 with three digits behind
// the point do not fit into a double. Whole numbers that would lie past the year 2262 as
// microseconds are nanoseconds already, and `is_nano` says so.
inline bool read_time(std::string_view text, std::int64_t& out, bool& is_nano) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 1000 - 1;
  const std::string_view whole = unquoted(text);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const bool negative = !whole.empty() && whole.front() == '-';
  std::size_t i = negative ? 1 : 0;
  const std::size_t first = i;
  std::int64_t value = 0;
  for (; i < whole.size() && is_digit(whole[i]) && i - first < 18; ++i) value = value * 10 + (whole[i] - '0');
  bool exact = i > first && (i == whole.size() || whole[i] == '.');
  if (exact && value <= kMost) {
    value *= 1000;
    std::int64_t unit = 100;
    if (i < whole.size()) ++i;
    for (; i < whole.size() && is_digit(whole[i]); ++i, unit /= 10) value += (whole[i] - '0') * unit;
    exact = i == whole.size();
  } else {
    exact = false;
  }
  if (exact) {
    out = negative ? -value : value;
    return true;
  }
  const char* const end = whole.data() + whole.size();
  double number = 0;
  if (const auto [at, error] = std::from_chars(whole.data(), end, number);
      error != std::errc{} || at != end) {
    return false;
  }
  if (!(number > -9.2e18 && number < 9.2e18)) return false;  // NaN is neither
  is_nano = number > static_cast<double>(kMost);
  if (number < -static_cast<double>(kMost)) return false;  // before any clock began
  out = static_cast<std::int64_t>(is_nano ? number : number * 1000);
  if (!is_nano) return true;
  // All digits of one that is written in full; of 1.7e18 these would be its first ones only.
  std::int64_t digits = 0;
  const char* const behind = std::from_chars(whole.data(), end, digits).ptr;
  if (behind == end || (*behind == '.' && std::all_of(behind + 1, end, is_digit))) out = digits;
  return true;
}

// A whole number; what is none leaves `out` as it was.
inline void read_whole(std::string_view text, std::int64_t& out) noexcept {
  text = unquoted(text);
  const bool negative = !text.empty() && text.front() == '-';
  if (negative) text.remove_prefix(1);
  if (text.empty() || text.size() > 18) return;
  std::int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return;
    value = value * 10 + (c - '0');
  }
  out = negative ? -value : value;
}

}  // namespace weft::trace
