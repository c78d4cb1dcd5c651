// Which thread of a rank makes its collective calls: one at a time.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft {

// Thread contract: any thread may call enter(); only one that was let in calls leave(), as often as it
// entered. The same thread may enter again: a signal handler or a kernel runs inside a call and may
// make another one. What is written in the turn is visible to the next thread that gets it.
class CallGuard {
 public:
  // False: another thread has the turn. Nobody waits for it, because two threads that make
  // collective calls of one world at once have no order that all ranks could agree on.
  [[nodiscard]] bool enter() noexcept {
    const char* const self = &kThread;
    // Relaxed: only this thread writes its own mark, so it is the latest.
    if (owner_.load(std::memory_order_relaxed) == self) {
      ++depth_;
      return true;
    }
    const char* nobody = nullptr;
    // Acquire: see what the last thread wrote in its turn. Relaxed: who is refused reads nothing.
    if (!owner_.compare_exchange_strong(nobody, self, std::memory_order_acquire,
                                        std::memory_order_relaxed)) {
      return false;
    }
    depth_ = 1;
    return true;
  }

  void leave() noexcept {
    // Release: the next thread sees what was written in the turn.
    if (--depth_ == 0) owner_.store(nullptr, std::memory_order_release);
  }

 private:
  static inline thread_local char kThread = 0;  // its address tells threads apart

  std::atomic<const char*> owner_ = nullptr;
  std::uint32_t depth_ = 0;  // of the thread that has the turn
};

}  // namespace weft
