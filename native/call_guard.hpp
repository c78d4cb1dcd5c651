// Ensures that one thread of a rank at a time makes collective calls.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft {

// Thread contract: any thread may call enter(); only a thread that entered calls leave(), as often as it
// entered. The same thread may enter again: a signal handler or a kernel runs inside a call and may
// make another one. What a thread writes inside is visible to the next one that enters.
class CallGuard {
 public:
  // False: another thread is inside. It does not wait, because ranks cannot agree on an order of
  // collective calls that two threads make at once.
  [[nodiscard]] bool enter() noexcept {
    const char* const self = &kThread;
    // Relaxed: only this thread writes its own mark, so it is the latest.
    if (owner_.load(std::memory_order_relaxed) == self) {
      ++depth_;
      return true;
    }
    const char* nobody = nullptr;
    // Acquire: see what the last thread wrote inside. Relaxed: a failed attempt reads nothing.
    if (!owner_.compare_exchange_strong(nobody, self, std::memory_order_acquire, std::memory_order_relaxed)) {
      return false;
    }
    depth_ = 1;
    return true;
  }

  void leave() noexcept {
    // Release: the next thread sees what was written inside.
    if (--depth_ == 0) owner_.store(nullptr, std::memory_order_release);
  }

 private:
  static inline thread_local char kThread = 0;  // its address identifies the thread

  std::atomic<const char*> owner_ = nullptr;
  std::uint32_t depth_ = 0;  // of the thread that is inside
};

}  // namespace weft
