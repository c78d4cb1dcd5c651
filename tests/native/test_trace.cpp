// Traces: text in pieces, damaged text, nesting.
#include <string>
#include <string_view>
#include <vector>

#include "check.hpp"
#include "trace_nest.hpp"
#include "trace_scan.hpp"

namespace {

using weft::trace::Scanner;

const std::string kTrace =
    R"({"schemaVersion": 1, "traceEvents": [)"
    R"({"ph": "X", "cat": "kernel", "name": "a \"quoted\" \\", "pid": 0, "tid": 7, "ts": 1661203462598738.123, )"
    R"("dur": 2.5, "args": {"correlation": 9, "stream": 7, "grid": [1, {"x": [2]}, 3], "bytes": "12"}},)"
    R"({"ph": "s", "id": 1}, {"ph": "X", "name": "b", "pid": "Spans", "tid": "x", "ts": 5, "dur": NaN}],)"
    R"("traceName": "t"})";

void check_whole(Scanner& scanner) {
  const auto& columns = scanner.columns();
  CHECK(scanner.num_events() == 3 && columns.name.size() == 2);
  CHECK(columns.start_ns[0] == 1661203462598738123 && columns.duration_ns[0] == 2500);
  CHECK(columns.correlation[0] == 9 && columns.nbytes[0] == 12 && columns.stream[0] == 7);
  CHECK(columns.correlation[1] == -1 && columns.detail[1] == -1);
  CHECK(scanner.details().texts().at(0) == R"({"grid":[1, {"x": [2]}, 3])");
  CHECK(scanner.rest() == R"({"schemaVersion":1,"traceName":"t")");
}

void test_pieces_of_every_size_give_the_same() {
  for (std::size_t size = 1; size <= kTrace.size(); ++size) {
    Scanner scanner;
    for (std::size_t at = 0; at < kTrace.size(); at += size) {
      scanner.feed(std::string_view(kTrace).substr(at, size));
    }
    CHECK(scanner.finish());
    check_whole(scanner);
  }
}

void test_a_file_cut_anywhere_keeps_what_is_complete() {
  for (std::size_t size = 0; size < kTrace.size(); ++size) {
    Scanner scanner;
    scanner.feed(std::string_view(kTrace).substr(0, size));
    CHECK(!scanner.finish());
    CHECK(scanner.num_events() <= 3);
  }
}

void test_a_wrong_byte_anywhere_does_no_harm() {
  for (std::size_t place = 0; place < kTrace.size(); ++place) {
    for (const char wrong : {'"', '{', '}', '[', ']', '\\', ',', '\0', '9'}) {
      std::string text = kTrace;
      text[place] = wrong;
      Scanner scanner;
      scanner.feed(text);
      scanner.finish();
      CHECK(scanner.columns().name.size() <= scanner.num_events());
    }
  }
}

void test_times_that_fit_nowhere_are_refused() {
  std::int64_t out = 7;
  bool is_nano = false;
  for (const char* wrong : {"", "-", "x", "1x", "1.2.3", "NaN", "1e300", "99999999999999999999"}) {
    CHECK(!weft::trace::read_time(wrong, out, is_nano) && out == 7);
  }
  CHECK(weft::trace::read_time("1700000000000000123", out, is_nano) && is_nano);
  CHECK(out == 1700000000000000123);
  CHECK(weft::trace::read_time("1.7e18", out, is_nano) && is_nano && out == 1700000000000000000);
  CHECK(weft::trace::read_time("1700000000000000123.0", out, is_nano) && out == 1700000000000000123);
  CHECK(weft::trace::read_time("1.5e3", out, is_nano) && !is_nano && out == 1500000);
}

void test_spans_nest() {
  const std::vector<std::int32_t> thread = {0, 0, 0, 1, 0, 0};
  const std::vector<double> start = {0, 1, 2, 2, 12, 3}, end = {10, 5, 3, 3, 13, 6};
  const std::vector<std::int32_t> want = {-1, 0, 1, -1, -1, 0};
  CHECK(weft::trace::nest(thread, start, end) == want);
}

}  // namespace

int main() {
  test_pieces_of_every_size_give_the_same();
  test_a_file_cut_anywhere_keeps_what_is_complete();
  test_a_wrong_byte_anywhere_does_no_harm();
  test_times_that_fit_nowhere_are_refused();
  test_spans_nest();
  return 0;
}
