// Chrome trace events, as PyTorch's profiler writes them, from a stream of text into columns.
//
// The text comes in pieces of any size. Only the event that the last piece cut is held back, so
// memory grows with the columns and with texts that are new, not with the file. What cannot be read
// is skipped up to the next event that can, and counted.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trace_names.hpp"
#include "trace_text.hpp"

namespace weft::trace {

struct Event {
  std::string_view phase, category, name, pid, tid;
  std::int64_t start_ns = 0, duration_ns = 0;
  std::int64_t correlation = -1, external = -1, nbytes = -1, sequence = -1, function = -1;
  std::int64_t stream = -1, device = -1;
  bool has_phase = false, has_start = false, is_nano = false;
};

struct Columns {
  std::vector<std::int64_t> start_ns, duration_ns, correlation, external, nbytes, sequence, function;
  std::vector<std::int32_t> name, category, thread, stream, device, detail;
};

struct Losses {
  std::uint64_t num_bad = 0;     // places at which the text was not an event
  std::uint64_t num_bytes = 0;   // bytes skipped there
  std::uint64_t first_byte = 0;  // where the first of them is
  std::uint64_t num_untimed = 0;  // complete events whose time cannot be read
};

class Scanner {
 public:
  void feed(std::string_view piece) {
    held_.append(piece);
    std::size_t done = 0;
    while (done < held_.size()) {
      const std::size_t used = advance(done);
      if (used == 0) break;
      done += used;
    }
    place_ += done;
    for (std::size_t i = done; i > 0; --i) {
      if (is_blank(held_[i - 1])) continue;
      before_ = held_[i - 1];
      break;
    }
    held_.erase(0, done);
  }

  // No more text comes. False if it ended before the trace did.
  bool finish() {
    is_last_ = true;
    feed("\n");  // ends a bare word
    return state_ == State::kEnd && !gave_up_;
  }

  [[nodiscard]] const Columns& columns() const noexcept { return columns_; }
  Columns& columns() noexcept { return columns_; }
  [[nodiscard]] const Names& names() const noexcept { return names_; }
  [[nodiscard]] const Names& categories() const noexcept { return categories_; }
  [[nodiscard]] const Names& threads() const noexcept { return threads_; }
  [[nodiscard]] const Names& details() const noexcept { return details_; }
  [[nodiscard]] const std::vector<std::string>& labels() const noexcept { return labels_; }
  [[nodiscard]] const std::string& rest() const noexcept { return rest_; }
  [[nodiscard]] const Losses& losses() const noexcept { return losses_; }
  [[nodiscard]] std::uint64_t num_events() const noexcept { return num_events_; }
  [[nodiscard]] std::uint64_t num_unpaired() const noexcept { return num_unpaired_; }
  [[nodiscard]] bool gave_up() const noexcept { return gave_up_; }
  [[nodiscard]] std::uint64_t place() const noexcept { return place_; }
  [[nodiscard]] bool found_events() const noexcept { return found_events_; }
  [[nodiscard]] bool has_nano() const noexcept { return has_nano_; }

 private:
  enum class State : std::uint8_t { kStart, kTop, kEvents, kLost, kEnd };
  static constexpr std::size_t kLongestValue = std::size_t{64} << 20;
  static constexpr std::size_t kLongestEvent = std::size_t{4} << 20;
  static constexpr std::size_t kMostWaste = std::size_t{1} << 30;
  static constexpr std::size_t kMostRest = std::size_t{16} << 20;
  static constexpr std::size_t kMostLabels = 1 << 16;

  // Take one thing from the text at `from`; 0 asks for more text.
  std::size_t advance(std::size_t from) {
    Text text(held_.data() + from, held_.data() + held_.size());
    const char* first = text.at();
    if (!text.skip_blanks()) return static_cast<std::size_t>(text.at() - first);
    const Found found = state_ == State::kStart    ? start(text)
                        : state_ == State::kTop    ? top(text)
                        : state_ == State::kEvents ? event_or_end(text)
                        : state_ == State::kLost   ? search(text)
                                                   : past_end(text);
    if (found == Found::kMore && !is_last_ && held_.size() - from < longest()) return 0;
    const auto used = static_cast<std::size_t>(text.at() - first);
    if (found == Found::kDone) return used;
    wasted_ += used;
    lose(from);
    return 1;
  }

  // What is longer is no value: a quote was lost, and strings are read inside out.
  [[nodiscard]] std::size_t longest() const noexcept {
    return state_ == State::kTop || state_ == State::kStart ? kLongestValue : kLongestEvent;
  }

  Found start(Text& text) {
    if (text.next() != '{' && text.next() != '[') return Found::kBad;
    is_bare_ = text.next() == '[';
    found_events_ = is_bare_;
    state_ = is_bare_ ? State::kEvents : State::kTop;
    text.step();
    return Found::kDone;
  }

  Found top(Text& text) {
    if (text.next() == ',') text.step();
    if (!text.skip_blanks()) return Found::kMore;
    if (text.next() == '}') {
      text.step();
      state_ = State::kEnd;
      return Found::kDone;
    }
    std::string_view key, value;
    if (const Found found = text.string(key); found != Found::kDone) return found;
    if (const Found found = text.expect(':'); found != Found::kDone) return found;
    if (!text.skip_blanks()) return Found::kMore;
    if (key == "traceEvents" && text.next() == '[') {
      text.step();
      found_events_ = true;
      state_ = State::kEvents;
      return Found::kDone;
    }
    if (const Found found = text.value(value); found != Found::kDone) return found;
    keep_rest(key, value);
    return Found::kDone;
  }

  void keep_rest(std::string_view key, std::string_view value) {
    if (rest_.size() + key.size() + value.size() > kMostRest) return;
    rest_.append(rest_.empty() ? "{\"" : ",\"").append(key).append("\":").append(value);
  }

  Found event_or_end(Text& text) {
    if (text.next() == ',') {
      text.step();
      return Found::kDone;
    }
    if (text.next() == ']') {
      text.step();
      state_ = is_bare_ ? State::kEnd : State::kTop;
      return Found::kDone;
    }
    const char* first = text.at();
    Event event;
    if (const Found found = read(text, event); found != Found::kDone) return found;
    if (!event.has_phase) return Found::kBad;  // some other object: the text is not what it seems
    take(event, {first, static_cast<std::size_t>(text.at() - first)});
    return Found::kDone;
  }

  // Something was wrong: go on at the next object that is an event.
  Found search(Text& text) {
    if (text.next() != '{' || !may_begin_event(text.at())) return Found::kBad;
    Text ahead = text;
    const Found found = event_or_end(ahead);
    if (found == Found::kDone) state_ = State::kEvents;
    text = ahead;
    return found;
  }

  // An event follows a comma or a bracket; an object inside one follows a colon.
  [[nodiscard]] bool may_begin_event(const char* at) const noexcept {
    while (at != held_.data() && is_blank(at[-1])) --at;
    const char last = at == held_.data() ? before_ : at[-1];
    return last == '\0' || last == ',' || last == '[';
  }

  static bool is_blank(char c) noexcept { return static_cast<unsigned char>(c) <= ' '; }

  static Found past_end(Text& text) {
    text.step();
    return Found::kDone;
  }

  void lose(std::size_t from) {
    if (losses_.num_bad == 0) losses_.first_byte = place_ + from;
    if (state_ != State::kLost) ++losses_.num_bad;
    ++losses_.num_bytes;
    gave_up_ = wasted_ > kMostWaste;
    state_ = gave_up_ ? State::kEnd : State::kLost;
  }

  Found read(Text& text, Event& event) {
    detail_.clear();
    return members(text, [&](std::string_view key, std::string_view value) {
      if (key == "ph") {
        event.phase = unquoted(value);
        event.has_phase = true;
      } else if (key == "cat") {
        event.category = unquoted(value);
      } else if (key == "name") {
        event.name = unquoted(value);
      } else if (key == "pid") {
        event.pid = unquoted(value);
      } else if (key == "tid") {
        event.tid = unquoted(value);
      } else if (key == "ts") {
        event.has_start = read_time(value, event.start_ns, event.is_nano);
      } else if (key == "dur") {
        bool ignored = false;
        read_time(value, event.duration_ns, ignored);
      } else if (key == "args" && value.front() == '{') {
        Text inner(value.data(), value.data() + value.size());
        members(inner, [&](std::string_view name, std::string_view each) { argument(event, name, each); });
      }
    });
  }

  // Walk over the members of an object; each value is complete.
  template <class Act>
  static Found members(Text& text, Act&& act) {
    if (const Found found = text.expect('{'); found != Found::kDone) return found;
    if (!text.skip_blanks()) return Found::kMore;
    if (text.next() == '}') {
      text.step();
      return Found::kDone;
    }
    for (;;) {
      std::string_view key, value;
      if (const Found found = text.string(key); found != Found::kDone) return found;
      if (const Found found = text.expect(':'); found != Found::kDone) return found;
      if (const Found found = text.value(value); found != Found::kDone) return found;
      act(key, value);
      if (!text.skip_blanks()) return Found::kMore;
      const char next = text.next();
      if (next != ',' && next != '}') return Found::kBad;
      text.step();
      if (next == '}') return Found::kDone;
    }
  }

  void argument(Event& event, std::string_view key, std::string_view value) {
    if (key == "correlation") return read_whole(value, event.correlation);
    if (key == "External id" || key == "external id") return read_whole(value, event.external);
    if (key == "stream") return read_whole(value, event.stream);
    if (key == "device") return read_whole(value, event.device);
    if (key == "bytes" || key == "Bytes") return read_whole(value, event.nbytes);
    if (key == "Sequence number") return read_whole(value, event.sequence);
    if (key == "Record function id") return read_whole(value, event.function);
    if (std::find(kKept.begin(), kKept.end(), key) == kKept.end()) return;
    detail_.append(detail_.empty() ? "{\"" : ",\"").append(key).append("\":").append(value);
  }

  // What later questions need of the arguments: shapes, launches, collectives, what a wait is for.
  static constexpr std::array<std::string_view, 29> kKept = {"Input Dims",
                                                             "Input type",
                                                             "Input Strides",
                                                             "Concrete Inputs",
                                                             "grid",
                                                             "block",
                                                             "Collective name",
                                                             "In msg nelems",
                                                             "Out msg nelems",
                                                             "In split size",
                                                             "Out split size",
                                                             "dtype",
                                                             "Group size",
                                                             "Process Group Name",
                                                             "Process Group Description",
                                                             "Process Group Ranks",
                                                             "Seq",
                                                             "Rank",
                                                             "Src Rank",
                                                             "Dst Rank",
                                                             "Fwd thread id",
                                                             "wait_on_stream",
                                                             "wait_on_cuda_event_record_corr_id",
                                                             "wait_on_cuda_event_id",
                                                             "cuda_sync_kind",
                                                             "src",
                                                             "kind",
                                                             "registers per thread",
                                                             "shared memory"};

  void take(const Event& event, std::string_view whole) {
    ++num_events_;
    const char phase = event.phase.empty() ? ' ' : event.phase.front();
    if (phase == 'M' && labels_.size() < kMostLabels) labels_.emplace_back(whole);
    if (phase == 'B' || phase == 'E') ++num_unpaired_;
    if (phase != 'X') return;  // arrows repeat what correlations say
    if (!event.has_start || event.duration_ns < 0) {
      ++losses_.num_untimed;
      return;
    }
    has_nano_ = has_nano_ || event.is_nano;
    push(event);
  }

  void push(const Event& event) {
    Columns& to = columns_;
    to.start_ns.push_back(event.start_ns);
    to.duration_ns.push_back(event.duration_ns);
    to.correlation.push_back(event.correlation);
    to.external.push_back(event.external);
    to.nbytes.push_back(event.nbytes);
    to.sequence.push_back(event.sequence);
    to.function.push_back(event.function);
    to.name.push_back(names_.id(event.name));
    to.category.push_back(categories_.id(event.category));
    thread_.assign(event.pid).append("\n").append(event.tid);
    to.thread.push_back(threads_.id(thread_));
    to.stream.push_back(static_cast<std::int32_t>(event.stream));
    to.device.push_back(static_cast<std::int32_t>(event.device));
    to.detail.push_back(detail_.empty() ? -1 : details_.id(detail_));
  }

  State state_ = State::kStart;
  bool is_bare_ = false, found_events_ = false, has_nano_ = false, is_last_ = false, gave_up_ = false;
  std::string held_, rest_, detail_, thread_;
  char before_ = '\0';  // the last in front of what is held that is not blank; 0 at the beginning
  std::uint64_t place_ = 0, num_events_ = 0, num_unpaired_ = 0;
  std::size_t wasted_ = 0;
  Columns columns_;
  Names names_, categories_, threads_, details_;
  std::vector<std::string> labels_;
  Losses losses_;
};

}  // namespace weft::trace
