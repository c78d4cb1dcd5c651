// One rank's handle of a world: its heap, its threads, and its waits for other ranks. Executions are in
// execution.hpp.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "binding.hpp"
#include "call_guard.hpp"
#include "control.hpp"
#include "executor.hpp"
#include "failure_monitor.hpp"
#include "fault_text.hpp"
#include "heap.hpp"
#include "p2p_slots.hpp"
#include "rank_threads.hpp"

namespace weft {

// Thread contract. Collective calls (those of execution.hpp, barrier, and what Python does around them) are
// made by one thread at a time, the one inside call_guard(); PreparedProgram enters it, and a second thread
// gets AbortCause::threads. The same thread calls next_use(), and set_staging() while no job is in flight.
// open_p2p() comes before all messages. At the same time any number of threads may send and receive (p2p,
// wait_for), wait for jobs, report, set the timeout and whether waits spin, and call leave(), which aborts
// the waits of other threads. threads() has a contract of its own.
class Member {
 public:
  Member(const std::string& name, int rank, std::chrono::nanoseconds timeout)
      : heap_(Heap::open(name)), control_(heap_), rank_(control_.checked_rank(rank)), timeout_(timeout) {
    heap_.populate(0, Control::nbytes(control_.num_ranks()));
    control_.enter(rank);
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member() { leave(); }

  // Leaves the world and ends the engines. A forked child is no member and has no threads.
  void leave() noexcept {
    // Acquire-release: of two threads that leave, one does all of it.
    if (here_.exchange(false, std::memory_order_acq_rel)) {
      if (::getpid() == pid_) {
        threads_.close_worker();
        control_.leave(rank_);
        // Another thread may be in a call that uses engines: then the destructor ends them.
        if (guard_.enter()) {
          threads_.close_worker();  // of a first job, submitted since: it may use engines, too
          threads_.end_engines();
          guard_.leave();
        }
      } else {
        threads_.abandon();
      }
    }
  }

  [[nodiscard]] const Heap& heap() const noexcept { return heap_; }
  [[nodiscard]] Control& control() noexcept { return control_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }

  // Entered by the thread that makes collective calls.
  [[nodiscard]] CallGuard& call_guard() noexcept { return guard_; }

  // The doorbell of the rank whose region contains an offset of the heap.
  [[nodiscard]] Doorbell& bell_at(std::uint64_t offset) const {
    const std::uint64_t front = Control::nbytes(control_.num_ranks());
    const std::uint64_t rank = offset < front ? UINT64_MAX : (offset - front) / control_.region_bytes();
    if (rank >= static_cast<std::uint64_t>(control_.num_ranks())) throw std::out_of_range("a flag");
    return control_.bell(static_cast<int>(rank));
  }

  // The timeout of one wait. Relaxed, here and below: later waits use it, and it orders nothing else.
  void set_timeout(std::chrono::nanoseconds timeout) noexcept {
    timeout_.store(timeout, std::memory_order_relaxed);
  }
  [[nodiscard]] std::chrono::nanoseconds timeout() const noexcept {
    return timeout_.load(std::memory_order_relaxed);
  }

  // Whether every waiting thread has a core; else spinning would delay other threads.
  void set_spins(bool spins) noexcept { spins_.store(spins, std::memory_order_relaxed); }
  [[nodiscard]] bool spins() const noexcept { return spins_.load(std::memory_order_relaxed); }

  // The worker and the engines.
  [[nodiscard]] RankThreads& threads() noexcept { return threads_; }
  [[nodiscard]] const RankThreads& threads() const noexcept { return threads_; }

  // Resolves the addresses of this rank's commands.
  [[nodiscard]] AddressResolver resolver(bool elastic = false) const {
    AddressResolver resolver;
    resolver.heap = heap_.bytes(0, heap_.size());
    resolver.self = static_cast<std::uint32_t>(rank_);
    resolver.elastic = elastic;
    for (int rank = 0; rank < control_.num_ranks(); ++rank) {
      resolver.pids.push_back(static_cast<pid_t>(control_.pid(rank)));
    }
    return resolver;
  }

  // Sets the offsets of the message slots; all ranks call it before the first message.
  void open_p2p(std::uint64_t start, std::uint64_t step) { p2p_.emplace(heap_, resolver(), start, step); }
  [[nodiscard]] P2PSlots& p2p() { return p2p_.value(); }

  // Waits until ``attempt`` returns true. ``other`` is the awaited rank.
  std::optional<Abort> wait_for(const std::function<bool()>& attempt, int other,
                                const std::function<void()>& poll) {
    const std::atomic<bool> stop = false;
    FailureMonitor monitor(control_, rank_, stop, poll);
    Backoff backoff(spins(), timeout());
    try {
      while (!attempt()) {
        backoff.pause();
        if (auto abort = monitor.check(backoff)) {
          if (abort->rank < 0) abort->rank = other;
          return abort;
        }
      }
    } catch (const Unreachable& found) {
      return abort_of(found);
    }
    return std::nullopt;
  }

  std::optional<Abort> barrier(const std::function<void()>& poll) {
    const std::uint64_t count = control_.arrive(rank_);
    const std::atomic<bool> stop = false;
    FailureMonitor monitor(control_, rank_, stop, poll, /*all=*/true);
    Backoff backoff(spins(), timeout());
    for (int rank = 0; rank < control_.num_ranks(); ++rank) {
      while (!control_.has_arrived(rank, count)) {
        backoff.pause();
        if (auto abort = monitor.check(backoff)) {
          // A rank that arrived may fail right afterwards: that is not a failure of this barrier.
          if (control_.has_arrived(rank, count)) break;
          if (abort->rank < 0) abort->rank = rank;
          return abort;
        }
      }
    }
    return std::nullopt;
  }

  // When ordinary memory is staged in the heap for the other ranks.
  void set_staging(Staging staging) noexcept { staging_ = staging; }
  [[nodiscard]] const Staging& staging() const noexcept { return staging_; }

  // Reports why this rank stopped waiting at ``place``: every rank raises it then.
  void report(const Abort& abort, std::string_view place) {
    if (const auto fault = fault_of(abort, control_, rank_, place, timeout())) {
      control_.fail(rank_, fault->reason, fault->rank, fault->text);
    }
  }

  // Counts uses of programs. All ranks make the same calls, so the numbers are equal.
  std::uint64_t next_use() noexcept { return ++num_uses_; }

 private:
  Heap heap_;
  Control control_;
  int rank_;
  std::atomic<std::chrono::nanoseconds> timeout_;
  std::atomic<bool> spins_ = false;
  CallGuard guard_;
  std::uint64_t num_uses_ = 0;
  pid_t pid_ = ::getpid();
  std::atomic<bool> here_ = true;
  Staging staging_;
  std::optional<P2PSlots> p2p_;
  RankThreads threads_{control_.bell(rank_)};  // last: its threads use all of the above
};

}  // namespace weft
