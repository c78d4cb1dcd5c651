// Signals order what was written before them; those that do not come end with the timeout.
#include <array>
#include <chrono>
#include <cstdint>
#include <thread>

#include "check.hpp"
#include "signal_pad.hpp"

using namespace weft;

namespace {

constexpr auto kLong = std::chrono::seconds(60);

// Two threads write one plain word in turn: the thread sanitizer sees what is not ordered.
void signals_order_writes() {
  std::array<std::uint32_t, 2> pad{};
  std::uint64_t plain = 0;
  constexpr std::uint64_t kTurns = 20000;
  const auto take_turns = [&](std::size_t me) {
    for (std::uint64_t turn = 0; turn < kTurns; ++turn) {
      if (me == 1 || turn != 0) CHECK(take_signal(&pad[me], kLong));
      CHECK(plain == 2 * turn + me);
      ++plain;
      CHECK(put_signal(&pad[1 - me], kLong));
    }
  };
  std::thread other(take_turns, 1);
  take_turns(0);
  other.join();
  CHECK(plain == 2 * kTurns);
}

void a_signal_that_does_not_come_times_out() {
  std::uint32_t word = 0;
  CHECK(!take_signal(&word, std::chrono::milliseconds(5)));
  CHECK(put_signal(&word, std::chrono::milliseconds(5)));
  CHECK(!put_signal(&word, std::chrono::milliseconds(5)));
  CHECK(take_signal(&word, std::chrono::milliseconds(5)));
  CHECK(word == 0);
}

}  // namespace

int main() {
  signals_order_writes();
  a_signal_that_does_not_come_times_out();
  return 0;
}
