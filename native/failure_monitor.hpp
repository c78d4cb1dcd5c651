// What a waiting thread checks meanwhile: faults, dead ranks and its deadline.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

#include "control.hpp"
#include "backoff.hpp"

namespace weft {

enum class AbortCause : std::uint8_t {
  fault = 0,    // reported by a rank: see Control::fault()
  stopped = 1,  // another thread of this process aborted first
  timeout = 2,
  died = 3,
  left = 4,
  slot = 5,  // a slot has another size than expected
  memory = 6,    // the memory of a rank cannot be accessed: ``have`` is errno
  size = 7,      // a rank sends ``have`` bytes, expected ``want``
  disagree = 8,  // a rank made another call
  codec = 9,     // a chunk cannot be encoded or decoded: ``have`` is a Verdict, ``want`` its offset
  threads = 10,  // another thread of this rank is in a collective call
};

// Why a thread stopped waiting, at which row, and how many signals it had and wanted.
struct Abort {
  AbortCause cause;
  int rank = -1;  // the rank that died, left, or is stopped
  std::int64_t row = -1;
  std::uint64_t have = 0;
  std::uint64_t want = 0;
};

// Thread contract: used by one thread; any other may write what it reads.
class FailureMonitor {
 public:
  // ``poll`` may throw to abort; ``all``: every rank is needed, so one that left aborts.
  FailureMonitor(const Control& control, int self, const std::atomic<bool>& stop,
                 const std::function<void()>& poll, bool all = false)
      : control_(control), self_(self), stop_(stop), poll_(poll), all_(all) {}

  [[nodiscard]] std::optional<Abort> check(Backoff& backoff) {
    if (control_.has_fault()) return Abort{AbortCause::fault};
    // Relaxed: the thread that stopped us is joined before its reason is read.
    if (stop_.load(std::memory_order_relaxed)) return Abort{AbortCause::stopped};
    // Another thread of this process left the world.
    if (control_.has_left(self_)) return Abort{AbortCause::stopped};
    if (backoff.should_poll()) {
      if (poll_) poll_();
      if (auto abort = look()) return abort;
    }
    if (backoff.is_over()) return Abort{AbortCause::timeout, standing_still()};
    return std::nullopt;
  }

 private:
  std::optional<Abort> look() {
    if (const auto other = control_.disagreeing(self_)) return Abort{AbortCause::disagree, *other};
    int num_left = 0;
    int last_left = -1;
    for (int rank = 0; rank < control_.num_ranks(); ++rank) {
      if (rank == self_) continue;
      if (control_.has_died(rank)) {
        // It may have reported a fault before it ended.
        return control_.has_fault() ? Abort{AbortCause::fault} : Abort{AbortCause::died, rank};
      }
      if (control_.has_left(rank)) ++num_left, last_left = rank;
    }
    if (num_left == 0 || (!all_ && num_left < control_.num_ranks() - 1)) return std::nullopt;
    // Flags raised before leaving are visible now: check once more before aborting.
    if (!seen_left_) {
      seen_left_ = true;
      return std::nullopt;
    }
    return Abort{AbortCause::left, last_left};
  }

  [[nodiscard]] int standing_still() const {
    for (int rank = 0; rank < control_.num_ranks(); ++rank) {
      if (rank != self_ && control_.is_stopped(rank)) return rank;
    }
    return -1;
  }

  const Control& control_;
  int self_;
  const std::atomic<bool>& stop_;
  const std::function<void()>& poll_;
  bool all_;
  bool seen_left_ = false;
};

}  // namespace weft
