// Threads of one rank that send and receive at once: every message arrives once, whole, in its order.
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "check.hpp"
#include "p2p_slots.hpp"
#include "backoff.hpp"
#include "call_guard.hpp"

namespace {

using weft::Bytes;
using weft::Heap;
using weft::P2PSlots;
using weft::CallGuard;

constexpr std::uint32_t kRanks = 3;

struct Ranks {
  Heap heap = Heap::create(1 << 20);
  std::array<std::unique_ptr<P2PSlots>, kRanks> mails;

  Ranks() {
    heap.unlink();
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      weft::AddressResolver resolver;
      resolver.heap = heap.bytes(0, heap.size());
      resolver.self = rank;
      resolver.pids.assign(kRanks, ::getpid());
      mails[rank] = std::make_unique<P2PSlots>(heap, resolver, 0, P2PSlots::nbytes(kRanks));
    }
  }
};

// Every third message is longer than a slot; all of a message is one number.
std::vector<int> message(int number) { return std::vector<int>(number % 3 == 0 ? 1000 : 10, number); }

void send(P2PSlots& p2p, std::uint32_t to, std::uint64_t tag, int number) {
  std::vector<int> data = message(number);
  const Bytes bytes = std::as_writable_bytes(std::span(data));
  weft::Backoff backoff(/*spins=*/false, std::chrono::seconds(30));
  std::optional<std::size_t> slot;
  while (!(slot = p2p.post(to, tag, bytes))) {
    backoff.pause();
    CHECK(!backoff.is_over());
  }
  while (!P2PSlots::fits(bytes.size()) && !p2p.sent(to, *slot)) {
    backoff.pause();
    CHECK(!backoff.is_over());
  }
}

void receive(P2PSlots& p2p, std::uint32_t from, std::uint64_t tag, int number) {
  std::vector<int> data = message(number);
  for (int& each : data) each = -1;
  const Bytes bytes = std::as_writable_bytes(std::span(data));
  weft::Backoff backoff(/*spins=*/false, std::chrono::seconds(30));
  std::optional<std::size_t> size;
  while (!(size = p2p.take(from, tag, bytes))) {
    backoff.pause();
    CHECK(!backoff.is_over());
  }
  CHECK(*size == bytes.size());
  for (const int each : data) CHECK(each == number);
}

// Threads 0 and 1 of rank 0 send to rank 1, thread 2 to rank 2; each with a tag of its own, and so
// they are received, by as many threads.
void test_threads_with_tags_of_their_own_do_not_mix() {
  const Ranks ranks;
  constexpr int kMessages = 3000;
  std::vector<std::thread> threads;
  for (const std::uint32_t number : {0U, 1U, 2U}) {
    const std::uint32_t to = number < 2 ? 1 : 2;
    threads.emplace_back([&ranks, number, to] {
      for (int i = 0; i < kMessages; ++i) send(*ranks.mails[0], to, number, i);
    });
    threads.emplace_back([&ranks, number, to] {
      for (int i = 0; i < kMessages; ++i) receive(*ranks.mails[to], 0, number, i);
    });
  }
  for (std::thread& each : threads) each.join();
}

// With one tag nobody says which thread gets which message: each arrives at one of them, whole, and no
// receiver sees those of one sender out of order.
void test_threads_that_share_a_tag_get_every_message_once() {
  const Ranks ranks;
  constexpr int kSenders = 3, kReceivers = 3, kMessages = 4000;
  std::array<std::array<std::atomic<int>, kMessages>, kSenders> seen{};
  std::vector<std::thread> threads;
  for (int sender = 0; sender < kSenders; ++sender) {
    threads.emplace_back([&ranks, sender] {
      for (int i = 0; i < kMessages; ++i) {
        std::array<int, 40> data;
        data.fill(sender * kMessages + i);
        weft::Backoff backoff(/*spins=*/false, std::chrono::seconds(30));
        while (!ranks.mails[0]->post(1, 7, std::as_writable_bytes(std::span(data)))) {
          backoff.pause();
          CHECK(!backoff.is_over());
        }
      }
    });
  }
  std::atomic<int> left = kSenders * kMessages;
  for (int receiver = 0; receiver < kReceivers; ++receiver) {
    threads.emplace_back([&ranks, &seen, &left] {
      std::array<int, kSenders> last;
      last.fill(-1);
      // Relaxed: it only counts.
      while (left.fetch_sub(1, std::memory_order_relaxed) > 0) {
        std::array<int, 40> data{};
        weft::Backoff backoff(/*spins=*/false, std::chrono::seconds(30));
        while (!ranks.mails[1]->take(0, 7, std::as_writable_bytes(std::span(data)))) {
          backoff.pause();
          CHECK(!backoff.is_over());
        }
        for (const int each : data) CHECK(each == data[0]);
        const auto sender = static_cast<std::size_t>(data[0] / kMessages);
        const auto number = static_cast<std::size_t>(data[0] % kMessages);
        CHECK(static_cast<int>(number) > last.at(sender));
        last[sender] = static_cast<int>(number);
        CHECK(seen[sender].at(number).fetch_add(1, std::memory_order_relaxed) == 0);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  for (const auto& sender : seen) {
    for (const auto& count : sender) CHECK(count.load(std::memory_order_relaxed) == 1);
  }
}

// As many long messages as there are slots, all taken and none asked about: the next has room.
void test_slots_of_messages_that_were_taken_are_used_again() {
  const Ranks ranks;
  P2PSlots& sender = *ranks.mails[0];
  std::vector<std::vector<int>> data;
  std::vector<std::size_t> numbers;
  for (int i = 0; i <= static_cast<int>(P2PSlots::kSlots); ++i) data.emplace_back(1000, i);
  for (std::size_t i = 0; i < P2PSlots::kSlots; ++i) {
    numbers.push_back(sender.post(1, i, std::as_writable_bytes(std::span(data[i]))).value());
    CHECK(!sender.sent(1, numbers.back()));
  }
  std::vector<int> into(1000);
  for (std::size_t i = 0; i < P2PSlots::kSlots; ++i) {
    CHECK(ranks.mails[1]->take(0, i, std::as_writable_bytes(std::span(into))));
    CHECK(into.back() == static_cast<int>(i));
  }
  const auto last = sender.post(1, 9, std::as_writable_bytes(std::span(data.back())));
  CHECK(last && !sender.sent(1, *last));
  for (const std::size_t number : numbers) CHECK(sender.sent(1, number));
  CHECK(ranks.mails[1]->take(0, 9, std::as_writable_bytes(std::span(into))));
  CHECK(into.back() == static_cast<int>(P2PSlots::kSlots) && sender.sent(1, *last));
}

// Messages of two tags fill the row, short ones and long ones; one of a third tag is taken first, then
// those in their order.
void test_a_message_is_taken_before_those_of_other_tags_that_fill_the_row() {
  const Ranks ranks;
  constexpr int kMessages = 3 * static_cast<int>(P2PSlots::kSlots);
  std::thread sender([&] {
    std::vector<std::vector<int>> data;
    for (int i = 0; i < kMessages; ++i) data.push_back(message(i));
    for (int i = 0; i < kMessages; ++i) {
      const auto tag = static_cast<std::uint64_t>(i % 2);
      weft::Backoff backoff(/*spins=*/false, std::chrono::seconds(30));
      while (!ranks.mails[0]->post(1, tag, std::as_writable_bytes(std::span(data[i])))) {
        backoff.pause();
        CHECK(!backoff.is_over());
      }
    }
    send(*ranks.mails[0], 1, 2, 1);
    send(*ranks.mails[0], 1, 3, 0);  // long: it is read when all before it were
  });
  receive(*ranks.mails[1], 0, 2, 1);
  // Most of those before it were put aside by now, the last of them are in slots.
  CHECK((ranks.mails[1]->waiting_tags(0, 2) == std::vector<std::uint64_t>{0, 1}));
  CHECK((ranks.mails[1]->waiting_tags(0, 1) == std::vector<std::uint64_t>{0}));
  CHECK(ranks.mails[1]->waiting_tags(2, 9).empty());
  for (const int parity : {1, 0}) {
    for (int i = parity; i < kMessages; i += 2) {
      receive(*ranks.mails[1], 0, static_cast<std::uint64_t>(parity), i);
    }
  }
  receive(*ranks.mails[1], 0, 3, 0);
  sender.join();
}

// What the thread that has the turn writes, the next one reads; all others are refused.
void test_a_turn_has_one_thread_which_may_enter_again() {
  CallGuard guard;
  int writes = 0;  // no lock: the turn orders it
  std::atomic<int> entered = 0, refused = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int tries = 0; tries < 20'000; ++tries) {
        if (!guard.enter()) {
          refused.fetch_add(1, std::memory_order_relaxed);
          continue;
        }
        CHECK(guard.enter());
        ++writes;
        guard.leave();
        ++writes;
        guard.leave();
        entered.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  CHECK(writes == 2 * entered.load(std::memory_order_relaxed));
  CHECK(entered.load(std::memory_order_relaxed) + refused.load(std::memory_order_relaxed) == 60'000);
  CHECK(guard.enter());
  std::thread([&] { CHECK(!guard.enter()); }).join();
  guard.leave();
  std::thread([&] {
    CHECK(guard.enter());
    guard.leave();
  }).join();
}

}  // namespace

int main() {
  test_threads_with_tags_of_their_own_do_not_mix();
  test_threads_that_share_a_tag_get_every_message_once();
  test_slots_of_messages_that_were_taken_are_used_again();
  test_a_message_is_taken_before_those_of_other_tags_that_fill_the_row();
  test_a_turn_has_one_thread_which_may_enter_again();
}
