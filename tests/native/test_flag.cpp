// Flags publish what was written before they were raised.
#include <array>
#include <cstdint>
#include <thread>
#include <vector>

#include "check.hpp"
#include "engine.hpp"
#include "flag.hpp"
#include "backoff.hpp"

namespace {

struct alignas(weft::kLine) Line {
  std::uint64_t word = 0;
};

void wait_for(Line& line, std::uint64_t value) {
  weft::Backoff backoff(false, std::chrono::seconds(30));
  while (weft::Flag(line.word).value() < value) {
    backoff.pause();
    CHECK(!backoff.is_over());
  }
}

void test_a_payload_goes_back_and_forth() {
  Line there, back;
  std::array<std::uint64_t, 32> payload{};
  std::thread other([&] {
    for (std::uint64_t i = 1; i <= 2000; ++i) {
      wait_for(there, i);
      for (auto& value : payload) value += 1;
      weft::Flag(back.word).raise();
    }
  });
  for (std::uint64_t i = 1; i <= 2000; ++i) {
    for (auto& value : payload) value += 1;
    weft::Flag(there.word).raise();
    wait_for(back, i);
    for (const auto value : payload) CHECK(value == 2 * i);
  }
  other.join();
}

void test_many_raise_one() {
  Line line;
  std::array<std::uint64_t, 4> written{};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < written.size(); ++i) {
    threads.emplace_back([&, i] {
      written[i] = i + 1;
      weft::Flag(line.word).raise(10);
    });
  }
  wait_for(line, 40);
  for (std::size_t i = 0; i < written.size(); ++i) CHECK(written[i] == i + 1);
  for (auto& thread : threads) thread.join();
}

void test_backoff_ends() {
  weft::Backoff backoff(true, std::chrono::milliseconds(30));
  int looks = 0;
  while (!backoff.is_over()) {
    backoff.pause();
    looks += backoff.should_poll() ? 1 : 0;
  }
  CHECK(looks >= 1 && looks <= 3);
  backoff.reset();
  CHECK(!backoff.is_over() && !backoff.should_poll());
}

void test_an_engine_does_its_jobs_in_turn() {
  weft::Engine engine(/*spins=*/false);
  int done = 0;
  for (int i = 0; i < 100; ++i) {
    engine.start([&] { ++done; });
    engine.finish();
    CHECK(done == i + 1);
  }
}

}  // namespace

int main() {
  test_a_payload_goes_back_and_forth();
  test_many_raise_one();
  test_backoff_ends();
  test_an_engine_does_its_jobs_in_turn();
}
