// Engines do their jobs in order, wake from sleep, and have a number; measurements are medians.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "check.hpp"
#include "engine.hpp"
#include "measure.hpp"
#include "reductions.hpp"
#include "worker.hpp"

namespace {

using weft::EventCount;
using weft::Bytes;
using weft::Engine;
using weft::Worker;

void test_what_a_job_wrote_is_seen_when_it_has_ended(bool spins) {
  Engine engine(spins);
  std::vector<int> order;  // no lock: start and finish order it
  for (int i = 0; i < 300; ++i) {
    engine.start([&order, i] { order.push_back(i); });
    // It is awake for a moment after a job, and asleep after this.
    if (i % 100 == 50) std::this_thread::sleep_for(4 * Engine::kAwake);
    engine.finish();
    CHECK(order.size() == static_cast<std::size_t>(i) + 1 && order.back() == i);
  }
  engine.finish();  // nothing is under way
}

void test_threads_have_numbers_of_their_own() {
  const Engine engine(false), other(false);
  const Worker worker(true);
  CHECK(engine.thread() > 0 && engine.thread() != other.thread());
  CHECK(worker.thread() > 0 && worker.thread() != engine.thread());
  CHECK(engine.thread() != ::getpid());
  CHECK(weft::thread_id() == ::getpid());  // the first thread has the number of the process
}

void test_an_engine_that_was_never_used_ends() { const Engine engine(true); }

void test_a_bell_wakes_who_waits() {
  EventCount bell;
  std::thread waiting([&] { bell.wait_past(0, false, std::chrono::microseconds(1)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // it sleeps by now
  bell.ring();
  waiting.join();
  CHECK(bell.count() == 1);
  bell.wait_past(0, true, std::chrono::seconds(60));  // returns at once
}

void test_a_median_does_not_see_a_pause() {
  std::uint64_t recorder = 0;
  const double seconds = weft::typical_seconds(5000, [&](std::uint64_t i) {
    CHECK(i == recorder++);
    if (i % 1000 == 999) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  CHECK(recorder == 5000);
  CHECK(seconds < 1e-3);  // the mean would be 20 us at least, and 4 ms a batch
  CHECK(weft::typical_seconds(0, [](std::uint64_t) {}) == 0);
}

void test_what_is_measured_is_done() {
  for (const std::size_t size : {std::size_t{1000}, weft::kPiece * 3}) {
    std::vector<std::byte> a(size, std::byte{1}), b(size, std::byte{2}), out(size);
    CHECK(weft::time_copies(Bytes(a), Bytes(out), true, 2) > 0 && out == a);
    CHECK(weft::time_copies(Bytes(b), Bytes(out), false, 1) > 0 && out == b);
    const auto sum = weft::reduction_of("uint8", "sum");
    CHECK(weft::time_reduces(sum, Bytes(a), Bytes(b), Bytes(out), 1) > 0);
    for (const std::byte each : out) CHECK(each == std::byte{3});
    const auto address = reinterpret_cast<std::uint64_t>(a.data());
    CHECK(weft::time_reads(::getpid(), address, Bytes(out), 1) > 0 && out == a);
  }
}

void test_flags_go_there_and_back() {
  alignas(64) std::uint64_t here = 7, there = 7;
  constexpr std::uint32_t kTrips = 300;
  std::thread other([&] { weft::time_round_trips(there, here, 7, false, false, kTrips); });
  CHECK(weft::time_round_trips(here, there, 7, true, false, kTrips) > 0);
  other.join();
  CHECK(here == 7 + kTrips && there == 7 + kTrips);
}

}  // namespace

int main() {
  test_what_a_job_wrote_is_seen_when_it_has_ended(true);
  test_what_a_job_wrote_is_seen_when_it_has_ended(false);
  test_threads_have_numbers_of_their_own();
  test_an_engine_that_was_never_used_ends();
  test_a_bell_wakes_who_waits();
  test_a_median_does_not_see_a_pause();
  test_what_is_measured_is_done();
  test_flags_go_there_and_back();
}
