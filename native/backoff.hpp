// How a thread waits: it spins a moment, then yields, then sleeps, and it never waits forever.
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

// Yielding costs half a microsecond a round, sleeping 50: waits of a step spin or yield, and
// only what hangs or computes for long sleeps: the longer it waited, the longer, so that a
// thread that waits for minutes takes nothing from one that computes on its core, and a sixteenth
// is the most that it comes late. With more threads than cores spinning would keep the one we
// wait for from running, and so it does where two ranks happen to share a core of several: 20 us
// of it made a call of 9 us one of 25 on a busy machine.
//
// What counts before sleeping is the time we had, not the clock: a yield that gave the core
// away for a slice says nothing about how long the other rank will take.
//
// A thread in the background of one that computes is different: the core comes back to it from a
// yield only after the other's slice, milliseconds later, and from a sleep at once.
//
// Where a doorbell wakes it, a thread can sleep for long. It does so early where ranks share cores:
// a core on which somebody yields is not idle, so the system moves nobody there that waits for the
// other one. Four ranks of a training step on two cores: 26 against 29 ms.
enum class Background : std::uint8_t { none, computation };

class Backoff {
 public:
  static constexpr auto kBackground = std::chrono::microseconds(20);
  static constexpr auto kSpin = std::chrono::microseconds(2);
  static constexpr auto kMaxYieldCounted = std::chrono::microseconds(2);  // the most that one yield counts
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

  // What was waited for came.
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
      std::this_thread::sleep_for(
          std::clamp<Clock::duration>((now_ - since_) / 16, kShortSleep, kLongSleep));
    }
    const auto last = std::exchange(now_, Clock::now());
    awake_ += std::min<Clock::duration>(now_ - last, kMaxYieldCounted);
  }

  // For who waits elsewhere: looks at the clock without pausing.
  void note() noexcept {
    if (!waiting_) return begin();
    now_ = Clock::now();
  }

  // Whether it is time again to look if the others live; true once every kLook.
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

  // The first time it only begins to listen: what came before that is not rung for.
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
