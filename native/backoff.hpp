// Backoff of a waiting thread: it spins, then yields, then sleeps, always with a deadline.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "doorbell.hpp"

namespace weft {

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC: one clock for all processes

inline void relax() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A yield takes half a microsecond, a sleep 50: waits of a step spin or yield, and only longer waits
// sleep, for a sixteenth of the time waited so far. So a thread that waits for minutes takes no time
// from one that computes on its core, and it is at most a sixteenth late. With more threads than
// cores, spinning would keep the awaited thread from running; it also does where two ranks share one
// of several cores: 20 us of spinning made a call of 9 us take 25 us on a busy machine.
//
// The limit before sleeping counts the time this thread had, not wall-clock time: a yield that gave
// the core away for a time slice says nothing about the awaited rank.
//
// A thread in the background of a computation differs: after a yield it gets the core back only at
// the end of the other thread's time slice, milliseconds later, after a sleep at once.
//
// With a doorbell a thread can sleep for long. It does so early if ranks share cores: a core with a
// yielding thread is not idle, so the scheduler does not move a waiting thread to it. Four ranks of a
// training step on two cores: 26 ms with early sleep, 29 ms without.
enum class Background : std::uint8_t { none, computation };

class Backoff {
 public:
  static constexpr auto kBackground = std::chrono::microseconds(20);
  static constexpr auto kSpin = std::chrono::microseconds(2);
  static constexpr auto kMaxYieldCounted = std::chrono::microseconds(2);  // of one yield
  static constexpr auto kYield = std::chrono::milliseconds(1);
  static constexpr auto kYieldCrowded = std::chrono::microseconds(100);
  static constexpr auto kShortSleep = std::chrono::microseconds(60);
  static constexpr auto kLongSleep = std::chrono::milliseconds(1);
  static constexpr auto kUntilRung = std::chrono::milliseconds(4);
  static constexpr auto kPollInterval = std::chrono::milliseconds(10);

  Backoff(bool spins, Clock::duration timeout, Background background = Background::none,
          Doorbell* bell = nullptr) noexcept
      : spins_(spins), background_(background), bell_(bell), timeout_(timeout) {}
  Backoff(const Backoff&) = delete;
  Backoff& operator=(const Backoff&) = delete;
  ~Backoff() { reset(); }

  // The condition was met.
  void reset() noexcept {
    waiting_ = false;
    if (std::exchange(listening_, false)) bell_->leave();
  }

  void pause() {
    if (!waiting_) begin();
    if (spins_ && awake_ < kSpin) {
      for (int i = 0; i < 8; ++i) relax();
    } else if (background_ == Background::none ? awake_ < most_yielding() : now_ - since_ < kBackground) {
      ::sched_yield();
    } else if (bell_ != nullptr) {
      listen();
    } else {
      std::this_thread::sleep_for(std::clamp<Clock::duration>((now_ - since_) / 16, kShortSleep, kLongSleep));
    }
    const auto last = std::exchange(now_, Clock::now());
    awake_ += std::min<Clock::duration>(now_ - last, kMaxYieldCounted);
  }

  // Reads the clock without pausing, for a thread that waits elsewhere.
  void note() noexcept {
    if (!waiting_) return begin();
    now_ = Clock::now();
  }

  // Whether to check again that the other ranks are alive; true once every kPollInterval.
  bool should_poll() noexcept {
    if (!waiting_ || now_ - looked_ < kPollInterval) return false;
    looked_ = now_;
    return true;
  }

  [[nodiscard]] bool is_over() const noexcept { return waiting_ && now_ - since_ >= timeout_; }

 private:
  [[nodiscard]] Clock::duration most_yielding() const noexcept {
    return spins_ || bell_ == nullptr ? kYield : kYieldCrowded;
  }

  // The first call only registers the sleeper: earlier raises did not ring.
  void listen() noexcept {
    if (std::exchange(listening_, true)) {
      bell_->sleep(heard_, kUntilRung);
    } else {
      bell_->enter();
    }
    heard_ = bell_->count();
  }

  void begin() noexcept {
    waiting_ = true;
    awake_ = Clock::duration::zero();
    since_ = now_ = looked_ = Clock::now();
  }

  bool spins_;
  Background background_;
  bool waiting_ = false;
  bool listening_ = false;
  std::uint32_t heard_ = 0;
  Doorbell* bell_;
  Clock::duration timeout_;
  Clock::duration awake_{};
  Clock::time_point since_{};
  Clock::time_point now_{};
  Clock::time_point looked_{};
};

}  // namespace weft
