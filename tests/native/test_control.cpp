// Ranks enter, meet, leave and die; the first fault stays.
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "member.hpp"

namespace {

using weft::AbortCause;
using weft::Control;
using weft::Heap;
using weft::Member;
using weft::FaultReason;

constexpr std::uint64_t kRegion = 1 << 20;
constexpr auto kTimeout = std::chrono::seconds(30);

Heap world_of(int num_ranks) {
  Heap heap = Heap::create(Control::nbytes(num_ranks) + static_cast<std::size_t>(num_ranks) * kRegion);
  Control::format(heap, num_ranks, kRegion);
  return heap;
}

// Runs ``act`` in a process of its own, which then waits to be killed.
pid_t in_child(const std::function<void()>& act) {
  int ends[2];
  CHECK(::pipe(ends) == 0);
  const pid_t child = ::fork();
  CHECK(child >= 0);
  if (child == 0) {
    act();
    CHECK(::write(ends[1], "x", 1) == 1);
    for (;;) ::pause();
  }
  char got;
  CHECK(::read(ends[0], &got, 1) == 1);
  ::close(ends[0]);
  ::close(ends[1]);
  return child;
}

void test_a_rank_is_taken_once() {
  const Heap heap = world_of(2);
  Control control(heap);
  CHECK(control.num_ranks() == 2 && control.region_bytes() == kRegion);
  control.enter(1);
  CHECK(control.pid(1) == ::getpid());
  CHECK_THROWS(control.enter(1), std::runtime_error);
  CHECK_THROWS(Member(heap.name(), 2, kTimeout), std::out_of_range);
  heap.unlink();
}

void test_what_is_no_world_is_refused() {
  const Heap heap = Heap::create(1 << 16);
  heap.unlink();
  CHECK_THROWS(Control(heap), std::runtime_error);
}

void test_the_first_fault_stays() {
  const Heap heap = world_of(2);
  heap.unlink();
  Control control(heap);
  CHECK(!control.fault() && !control.has_fault());
  CHECK(control.fail(1, FaultReason::raised, 0, "first"));
  CHECK(!control.fail(1, FaultReason::died, 1, "second"));
  CHECK(!control.fail(2, FaultReason::died, 1, std::string(5000, 'x')));
  const auto fault = control.fault();
  CHECK(fault && fault->reason == FaultReason::raised && fault->rank == 0 && fault->text == "first");
}

void test_threads_of_one_rank_that_fail_at_once_do_not_mix_their_texts() {
  for (int round = 0; round < 200; ++round) {
    const Heap heap = world_of(1);
    heap.unlink();
    Control control(heap);
    std::vector<std::thread> threads;
    std::atomic<int> come = 0;
    for (const char letter : {'x', 'y'}) {
      threads.emplace_back([&, text = std::string(900, letter)] {
        come.fetch_add(1, std::memory_order_relaxed);
        while (come.load(std::memory_order_relaxed) < 2) {
        }
        control.fail(0, FaultReason::raised, text[0], text);
      });
    }
    for (auto& thread : threads) thread.join();
    const auto fault = control.fault();
    CHECK(fault && fault->text == std::string(900, static_cast<char>(fault->rank)));
  }
}

// An end by itself proves nothing: a peer that asks for its name must get it.
void test_a_process_that_proc_does_not_show_has_no_identity() {
  CHECK(weft::Identity::self().pid == ::getpid() && !weft::Identity::self().gone());
  rlimit before{};
  CHECK(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{0, before.rlim_max};
  CHECK(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  CHECK_THROWS(weft::Identity::self(), std::runtime_error);
  CHECK(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

void test_a_long_text_is_cut() {
  const Heap heap = world_of(1);
  heap.unlink();
  Control control(heap);
  CHECK(control.fail(1, FaultReason::timeout, -1, std::string(5000, 'x')));
  CHECK(control.fault()->rank == -1);
  CHECK(control.fault()->text == std::string(Control::kText - 1, 'x'));
  control.show(0, std::string(Control::kText, 'y'));
  CHECK(control.shown(0).size() == Control::kText);
  CHECK_THROWS(control.show(0, std::string(Control::kText + 1, 'y')), std::length_error);
}

void test_a_barrier_lets_nobody_through_before_the_last() {
  const Heap heap = world_of(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      Member member(heap.name(), rank, kTimeout);
      for (int round = 0; round < 200; ++round) {
        member.control().show(rank, std::to_string(round));
        CHECK(!member.barrier({}));
        for (int peer = 0; peer < 3; ++peer) {
          CHECK(member.control().shown(peer) == std::to_string(round));
        }
        CHECK(!member.barrier({}));
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  heap.unlink();
}

void test_a_killed_rank_is_dead_and_a_stopped_one_is_not() {
  const Heap heap = world_of(3);
  heap.unlink();
  Control control(heap);
  control.enter(0);
  const pid_t child = in_child([&] { control.enter(1); });
  CHECK(!control.has_died(1) && !control.is_stopped(1));
  CHECK(::kill(child, SIGSTOP) == 0);
  CHECK(::waitpid(child, nullptr, WUNTRACED) == child);
  CHECK(!control.has_died(1) && control.is_stopped(1));
  CHECK(::kill(child, SIGKILL) == 0);
  siginfo_t info;
  CHECK(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK(control.has_died(1));  // a zombie, which nobody has waited for
  CHECK(::waitpid(child, nullptr, 0) == child);
  CHECK(control.has_died(1));
  CHECK(!control.has_died(2));  // never came
  control.leave(1);
  CHECK(!control.has_died(1) && control.has_left(1));
}

void test_who_waits_hears_of_a_death_and_of_a_goodbye() {
  for (const bool says_goodbye : {false, true}) {
    const Heap heap = world_of(2);
    Member member(heap.name(), 0, kTimeout);
    heap.unlink();
    const pid_t child = in_child([&] {
      Control control(heap);
      control.enter(1);
      if (says_goodbye) control.leave(1);
    });
    CHECK(::kill(child, SIGKILL) == 0);
    const auto abort = member.barrier({});
    CHECK(abort && abort->rank == 1);
    CHECK(abort->cause == (says_goodbye ? AbortCause::left : AbortCause::died));
    CHECK(::waitpid(child, nullptr, 0) == child);
  }
}

void test_a_process_is_read_as_the_kernel_writes_it() {
  const auto stat =
      weft::parse_stat("12 (a ) b (c)) T 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 10 1\n");
  CHECK(stat.stopped() && stat.start_time == 987654);
  CHECK(weft::parse_stat("").gone() && weft::parse_stat("1 (x) S 1").gone());
  CHECK(!weft::Identity::self().gone());
  CHECK((weft::Identity{::getpid(), 1}.gone()));  // another process had this number
}

}  // namespace

int main() {
  test_a_rank_is_taken_once();
  test_what_is_no_world_is_refused();
  test_the_first_fault_stays();
  test_threads_of_one_rank_that_fail_at_once_do_not_mix_their_texts();
  test_a_process_that_proc_does_not_show_has_no_identity();
  test_a_long_text_is_cut();
  test_a_killed_rank_is_dead_and_a_stopped_one_is_not();
  test_who_waits_hears_of_a_death_and_of_a_goodbye();
  test_a_process_is_read_as_the_kernel_writes_it();
  test_a_barrier_lets_nobody_through_before_the_last();  // last: it starts threads
}
