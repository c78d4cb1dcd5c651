// The scanner of traces: any text, in pieces of any size, gives what the whole gives.
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "target.hpp"
#include "trace_nest.hpp"
#include "trace_scan.hpp"

using weft::trace::Scanner;

namespace {

void check(Scanner& scanner, std::size_t num_bytes) {
  const auto& columns = scanner.columns();
  const std::size_t count = columns.start_ns.size();
  if (count > scanner.num_events() || scanner.num_events() > num_bytes) std::abort();
  if (columns.detail.size() != count || columns.thread.size() != count) std::abort();
  std::vector<double> start(count), end(count);
  for (std::size_t i = 0; i < count; ++i) {
    start[i] = static_cast<double>(columns.start_ns[i]);
    end[i] = start[i] + static_cast<double>(columns.duration_ns[i]);
    if (columns.duration_ns[i] < 0) std::abort();
    if (static_cast<std::size_t>(columns.name[i]) >= scanner.names().texts().size()) std::abort();
  }
  for (const std::int32_t parent : weft::trace::nest(columns.thread, start, end)) {
    if (parent < -1 || parent >= static_cast<std::int32_t>(count)) std::abort();
  }
}

}  // namespace

const char* fuzz_name() { return "trace"; }

const std::vector<Input>& fuzz_seeds() {
  static const std::string_view texts[] = {
      R"({"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "a \"q\" \\", "pid": 0, )"
      R"("tid": 7, "ts": 1661203462598738.123, "dur": 2.5, "args": {"correlation": 9, "stream": 7, )"
      R"("grid": [1, {"x": [2]}, 3], "bytes": "12"}}, {"ph": "s", "id": 1}, {"ph": "X", "name": "b", )"
      R"("pid": "Spans", "tid": "x", "ts": 5, "dur": NaN}], "traceName": "t"})",
      R"([{"ph":"B","ts":-1e3},{"ph":"E","ts":1700000000000000123},{"ph":"M","name":"process_name"}])",
      R"({"a":[],"traceEvents":[{"ph":"X","ts":"1.5","dur":1,"args":{"Input Dims":[[2,3]],"dtype":"f"}}]})"};
  static const std::vector<Input> seeds = [] {
    std::vector<Input> made;
    for (const std::string_view text : texts) {
      Input input = {0};
      input.insert(input.end(), text.begin(), text.end());
      made.push_back(std::move(input));
    }
    return made;
  }();
  return seeds;
}

const std::vector<std::string_view>& fuzz_words() {
  static const std::vector<std::string_view> words = {"\"traceEvents\": [",
                                                      "\"ph\": \"X\"",
                                                      "\"ts\": ",
                                                      "\"dur\": ",
                                                      "\"args\": {",
                                                      "\"name\": \"",
                                                      "\"cat\":",
                                                      "\"pid\": 0",
                                                      "\"tid\": 1",
                                                      "\"correlation\": ",
                                                      "\"External id\":",
                                                      "\"stream\":",
                                                      "\"Input Dims\":",
                                                      "\"Sequence number\":",
                                                      "NaN",
                                                      "-inf",
                                                      "1e308",
                                                      "-9e17",
                                                      "999999999999999999",
                                                      "9223372036854775807",
                                                      "\\\"",
                                                      "\\u0000",
                                                      "{",
                                                      "}",
                                                      "[",
                                                      "]",
                                                      ",",
                                                      ":",
                                                      "\"",
                                                      "},{",
                                                      "]}",
                                                      "0.0000000001"};
  return words;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Front front(data, size);
  const std::size_t piece = front.byte();
  const std::string text(reinterpret_cast<const char*>(front.data()), front.size());
  Scanner whole;
  whole.feed(text);
  const bool ended = whole.finish();
  check(whole, text.size());
  if (piece == 0) return 0;
  Scanner cut;
  for (std::size_t at = 0; at < text.size(); at += piece) cut.feed(std::string_view(text).substr(at, piece));
  if (cut.finish() != ended || cut.num_events() != whole.num_events()) std::abort();
  if (cut.columns().start_ns != whole.columns().start_ns || cut.rest() != whole.rest()) std::abort();
  return 0;
}
