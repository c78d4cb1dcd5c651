// Wakes a sleeping rank when one of its flags is raised.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

#include "flag.hpp"

namespace weft {

// One for each rank, in shared memory. A thread that raises a flag of a rank rings if that rank
// has sleepers. A sleeper registers first, then reads the flags once more, then waits for a ring after
// its registration. All of it, and the flags themselves, have one order for all threads (seq_cst), so
// either the sleeper sees the flag or the raising thread sees the sleeper.
struct alignas(kLine) Doorbell {
  std::uint32_t rung;
  std::uint32_t sleepers;

  void ring_if_needed() noexcept {
    if (std::atomic_ref(sleepers).load(std::memory_order_seq_cst) == 0) return;
    std::atomic_ref(rung).fetch_add(1, std::memory_order_seq_cst);
    static_cast<void>(::syscall(SYS_futex, &rung, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0));
  }

  void enter() noexcept { std::atomic_ref(sleepers).fetch_add(1, std::memory_order_seq_cst); }
  void leave() noexcept { std::atomic_ref(sleepers).fetch_sub(1, std::memory_order_seq_cst); }
  [[nodiscard]] std::uint32_t count() noexcept {
    return std::atomic_ref(rung).load(std::memory_order_seq_cst);
  }

  // Returns when it was rung since ``seen``, after the timeout, or spuriously.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds most) noexcept {
    const timespec time{most.count() / 1'000'000'000, most.count() % 1'000'000'000};
    static_cast<void>(::syscall(SYS_futex, &rung, FUTEX_WAIT, seen, &time, nullptr, 0));
  }
};

}  // namespace weft
