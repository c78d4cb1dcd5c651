// Signals between processes in memory that they share: a word is 0 or 1, as in torch's symmetric
// memory. Any thread of any process may put a signal and take it; a word has one waiter at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "backoff.hpp"

namespace weft {

// Changes the word from ``from`` to ``to`` as soon as it is ``from``; false after the timeout.
inline bool change_signal(std::uint32_t* word, std::uint32_t from, std::uint32_t to,
                          Clock::duration timeout) {
  std::atomic_ref<std::uint32_t> signal(*word);
  Backoff backoff(std::thread::hardware_concurrency() > 1, timeout);
  for (;;) {
    std::uint32_t expected = from;
    // Acquire and release: what was written before a signal was put is seen after it was taken.
    if (signal.compare_exchange_strong(expected, to, std::memory_order_acq_rel, std::memory_order_relaxed)) {
      return true;
    }
    if (backoff.is_over()) return false;
    backoff.pause();
  }
}

inline bool put_signal(std::uint32_t* word, Clock::duration timeout) {
  return change_signal(word, 0, 1, timeout);
}
inline bool take_signal(std::uint32_t* word, Clock::duration timeout) {
  return change_signal(word, 1, 0, timeout);
}

}  // namespace weft
