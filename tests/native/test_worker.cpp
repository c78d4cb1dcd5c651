// Jobs keep their order, calls are read while they are written, messages arrive once.
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "member.hpp"

namespace {

using weft::FlightRecorder;
using weft::AbortCause;
using weft::Abort;
using weft::Progress;
using weft::Heap;
using weft::Job;
using weft::P2PSlots;
using weft::Worker;

using std::chrono::milliseconds;
using std::chrono::seconds;

Progress over(std::optional<Abort> abort = std::nullopt) { return {true, true, abort}; }

Job until_stopped() {
  return {[](std::atomic<bool>& stop) {
    return stop.load(std::memory_order_relaxed) ? over(Abort{AbortCause::stopped})
                                                : Progress{false, false, {}};
  }};
}

Job never() {
  return {[](std::atomic<bool>&) -> Progress { std::abort(); }};
}

void test_jobs_run_one_after_another_and_are_seen_when_done(bool has_core) {
  Worker worker(has_core);
  std::vector<int> order;  // no lock: who has the turn writes, and done orders it
  std::uint64_t last = 0;
  for (int i = 0; i < 200; ++i) {
    last = worker.submit({[&order, i](std::atomic<bool>&) {
      order.push_back(i);
      return over();
    }});
    if (i == 100) std::this_thread::sleep_for(milliseconds(5));  // it sleeps by now
  }
  CHECK(worker.wait(last, seconds(30), nullptr));
  CHECK(worker.is_idle() && order.size() == 200);
  for (int i = 0; i < 200; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
}

void test_a_failed_job_is_told_to_all_who_ask_and_a_slow_one_is_late() {
  Worker worker(true);
  std::atomic<bool> go = false;
  const auto slow = worker.submit({[&](std::atomic<bool>&) {
                                     while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
                                     return over(Abort{AbortCause::died, 3});
                                   },
                                   /*blocks=*/true});
  CHECK(!worker.wait(slow, milliseconds(3), nullptr));
  go.store(true, std::memory_order_release);
  worker.drain(nullptr);
  CHECK(worker.is_done(slow));
  CHECK(worker.abort_of_job(slow)->rank == 3);
  CHECK(worker.abort_of_job(slow)->rank == 3);  // also to a second wait
}

// Several threads wait for the same jobs, each of which takes many steps.
void test_steps_are_done_by_any_free_thread_and_never_by_two() {
  Worker worker(false);
  std::atomic<int> inside = 0;
  int total = 0;  // no lock, as above
  std::uint64_t last = 0;
  for (int i = 0; i < 50; ++i) {
    last = worker.submit({[&, left = 20](std::atomic<bool>&) mutable {
      CHECK(inside.fetch_add(1, std::memory_order_relaxed) == 0);
      ++total;
      inside.fetch_sub(1, std::memory_order_relaxed);
      return Progress{--left == 0, left % 3 == 0, {}};
    }});
  }
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&] { CHECK(worker.wait(last, seconds(30), nullptr)); });
  }
  for (auto& waiter : waiters) waiter.join();
  CHECK(total == 50 * 20 && worker.is_idle());
}

// Who is interrupted leaves the job as it is, and others end it.
void test_what_a_poll_throws_passes_through_and_leaves_the_job() {
  Worker worker(false);
  std::atomic<bool> go = false;
  const auto job = worker.submit({[&](std::atomic<bool>&) {
    return go.load(std::memory_order_acquire) ? over() : Progress{false, false, {}};
  }});
  CHECK_THROWS(worker.wait(job, seconds(30), [] { throw std::domain_error("interrupted"); }),
               std::domain_error);
  CHECK(!worker.is_done(job));
  go.store(true, std::memory_order_release);
  worker.drain(nullptr);
}

void test_a_worker_that_goes_stops_its_job() {
  Worker worker(true);
  worker.submit(until_stopped());
  worker.submit({[](std::atomic<bool>& stop) {
                   while (!stop.load(std::memory_order_relaxed)) std::this_thread::yield();
                   return over();
                 },
                 /*blocks=*/true});
}

// A thread that rests and starts again counts on, and takes up what was handed over meanwhile.
void test_numbers_go_on_over_threads() {
  Worker worker(true);
  std::atomic<bool> go = false;
  const auto until_go = [&go](std::atomic<bool>&) {
    return go.load(std::memory_order_acquire) ? over(Abort{AbortCause::died, 2}) : Progress{false, false, {}};
  };
  const auto first = worker.submit({until_go});
  const pid_t before = worker.thread();
  std::thread waiter([&] { CHECK(worker.wait(first, seconds(30), nullptr)); });
  worker.rest();
  worker.rest();
  const auto second = worker.submit({[](std::atomic<bool>&) { return over(); },
                                     /*blocks=*/true});
  CHECK(!worker.is_done(first) && second == first + 1);
  worker.start(false);
  worker.start(false);
  CHECK(worker.thread() != before && !worker.is_mine());
  go.store(true, std::memory_order_release);
  waiter.join();
  CHECK(worker.wait(second, seconds(30), nullptr));
  CHECK(worker.abort_of_job(first)->rank == 2);
}

void test_a_worker_that_rests_can_be_closed_for_good() {
  Worker worker(true);
  worker.rest();
  const auto job = worker.submit(never());
  worker.close();
  CHECK(worker.is_done(job) && worker.abort_of_job(job)->cause == AbortCause::stopped);
  worker.start(true);
  worker.close();
  const auto late = worker.submit(never());  // nobody will come to it
  CHECK(worker.wait(late, seconds(30), nullptr) && worker.abort_of_job(late)->cause == AbortCause::stopped);
}

void test_a_worker_knows_its_thread() {
  Worker worker(true);
  bool mine = false;  // no lock: done orders it
  const auto job = worker.submit({[&](std::atomic<bool>&) {
                                    mine = worker.is_mine();
                                    return over();
                                  },
                                  /*blocks=*/true});
  CHECK(worker.wait(job, seconds(30), nullptr) && mine && !worker.is_mine());
}

void test_waiting_for_a_closed_worker_raises() {
  for (const bool has_core : {true, false}) {
    Worker worker(has_core);
    worker.submit(until_stopped());
    const auto last = worker.submit(never());
    std::thread waiter([&] { CHECK(worker.wait(last, seconds(30), nullptr)); });
    worker.close();
    waiter.join();
    worker.close();
    CHECK(worker.abort_of_job(last)->cause == AbortCause::stopped && worker.is_idle());
  }
}

void test_a_worker_is_found_and_closed_while_another_thread_creates_it() {
  weft::Doorbell bell{};
  for (int round = 0; round < 50; ++round) {
    weft::RankThreads threads(bell);
    std::thread leaver([&] {
      while (threads.worker() == nullptr) std::this_thread::yield();
      CHECK(!threads.is_worker());
      threads.close_worker();
    });
    Worker& worker = threads.need_worker();
    const auto number = worker.submit(until_stopped());
    CHECK(worker.wait(number, seconds(30), nullptr));
    const auto abort = worker.abort_of_job(number);
    CHECK(abort && abort->cause == AbortCause::stopped);
    CHECK(threads.is_idle());
    leaver.join();
  }
}

void test_a_reader_never_sees_half_a_call() {
  static FlightRecorder recorder;
  std::atomic<bool> over = false;
  std::thread reader([&] {
    while (!over.load(std::memory_order_acquire)) {
      const std::uint64_t number = recorder.latest();
      if (const auto text = recorder.text(number)) {
        CHECK(*text == std::string(80, static_cast<char>('a' + number % 26)));
      }
    }
  });
  for (std::uint64_t i = 1; i <= 20000; ++i) {
    CHECK(recorder.begin(std::string(80, static_cast<char>('a' + i % 26))) == i);
    recorder.end(i);
  }
  over.store(true, std::memory_order_release);
  reader.join();
  CHECK(!recorder.text(20000 - FlightRecorder::kKept) && recorder.text(20000 - FlightRecorder::kKept + 1));
  CHECK(recorder.ended() == 20000);
}

struct Mails {
  Heap heap = Heap::create(1 << 20);

  Mails() { heap.unlink(); }
  [[nodiscard]] std::unique_ptr<P2PSlots> of(std::uint32_t rank) const {
    weft::AddressResolver resolver;
    resolver.heap = heap.bytes(0, heap.size());
    resolver.self = rank;
    resolver.pids = {::getpid(), ::getpid()};
    return std::make_unique<P2PSlots>(heap, resolver, 0, P2PSlots::nbytes(2));
  }
};

// As fast as they go: slots fill up while they are looked at.
void test_no_message_overtakes_another() {
  const Mails mails;
  constexpr int kMessages = 100'000;
  std::thread sender([&] {
    const auto p2p = mails.of(0);
    for (int i = 0; i < kMessages; ++i) {
      weft::Backoff backoff(/*spins=*/true, seconds(30));
      while (!p2p->post(1, 5, std::as_writable_bytes(std::span(&i, 1)))) backoff.pause();
    }
  });
  const auto p2p = mails.of(1);
  for (int i = 0; i < kMessages; ++i) {
    int come = -1;
    weft::Backoff backoff(/*spins=*/true, seconds(30));
    while (!p2p->take(0, 5, std::as_writable_bytes(std::span(&come, 1)))) backoff.pause();
    CHECK(come == i);
  }
  sender.join();
}

void test_every_message_arrives_once_and_in_order() {
  const Mails mails;
  constexpr int kMessages = 3000;
  std::thread sender([&] {
    const auto p2p = mails.of(0);
    for (int i = 0; i < kMessages; ++i) {
      std::vector<int> data(i % 3 == 0 ? 1000 : 10, i);  // every third is longer than a slot
      const weft::Bytes bytes = std::as_writable_bytes(std::span(data));
      std::optional<std::size_t> slot;
      while (!(slot = p2p->post(1, 5, bytes))) std::this_thread::yield();
      while (!P2PSlots::fits(bytes.size()) && !p2p->sent(1, *slot)) std::this_thread::yield();
    }
  });
  const auto p2p = mails.of(1);
  for (int i = 0; i < kMessages; ++i) {
    std::vector<int> data(i % 3 == 0 ? 1000 : 10, -1);
    const weft::Bytes bytes = std::as_writable_bytes(std::span(data));
    CHECK(!p2p->take(0, 6, bytes));
    std::optional<std::size_t> size;
    while (!(size = p2p->take(0, 5, bytes))) std::this_thread::yield();
    CHECK(*size == bytes.size() && data.front() == i && data.back() == i);
  }
  sender.join();
}

}  // namespace

int main() {
  test_jobs_run_one_after_another_and_are_seen_when_done(true);
  test_jobs_run_one_after_another_and_are_seen_when_done(false);
  test_a_failed_job_is_told_to_all_who_ask_and_a_slow_one_is_late();
  test_steps_are_done_by_any_free_thread_and_never_by_two();
  test_what_a_poll_throws_passes_through_and_leaves_the_job();
  test_a_worker_that_goes_stops_its_job();
  test_numbers_go_on_over_threads();
  test_a_worker_that_rests_can_be_closed_for_good();
  test_a_worker_knows_its_thread();
  test_waiting_for_a_closed_worker_raises();
  test_a_worker_is_found_and_closed_while_another_thread_creates_it();
  test_a_reader_never_sees_half_a_call();
  test_no_message_overtakes_another();
  test_every_message_arrives_once_and_in_order();
}
