// A copy engine: a thread that does one job at a time and sleeps between them.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

#include "backoff.hpp"

namespace weft {

// The kernel's id of the calling thread, by which its affinity and priority can be set.
inline pid_t thread_id() noexcept { return static_cast<pid_t>(::syscall(SYS_gettid)); }

// A counter that one thread raises and another waits for: it polls for a while, then sleeps.
class EventCount {
 public:
  // Release and acquire: a reader of the count sees what was written before the ring.
  void ring() noexcept {
    rung_.fetch_add(1, std::memory_order_release);
    rung_.notify_all();
  }
  [[nodiscard]] std::uint32_t count() const noexcept { return rung_.load(std::memory_order_acquire); }
  // Returns when the count is no longer ``old``.
  void wait_past(std::uint32_t old, bool spins, Clock::duration awake) const {
    Backoff backoff(spins, awake);
    while (count() == old && !backoff.is_over()) backoff.pause();
    rung_.wait(old, std::memory_order_acquire);
  }

 private:
  std::atomic<std::uint32_t> rung_ = 0;
};

class Engine {
 public:
  // Waking an engine takes 20 us or more, so it polls for a while after a job.
  static constexpr auto kAwake = std::chrono::microseconds(50);

  explicit Engine(bool spins) : spins_(spins), thread_([this] { serve(); }) {
    started_.wait_past(0, false, kAwake);  // its thread id is set then
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() {
    job_ = nullptr;
    given_.ring();
    thread_.join();
  }

  [[nodiscard]] pid_t thread() const noexcept { return id_; }

  // The job must not throw, and the last one must have ended.
  void start(std::function<void()> job) {
    job_ = std::move(job);
    given_.ring();
  }

  // Returns when the job has ended, which every job does by its own deadline; what it wrote
  // is visible then.
  void finish() const {
    const std::uint32_t given = given_.count();
    for (std::uint32_t done = done_.count(); done != given; done = done_.count()) {
      done_.wait_past(done, spins_, Backoff::kYield);
    }
  }

 private:
  void serve() {
    id_ = thread_id();
    started_.ring();
    for (std::uint32_t seen = 0;; ++seen) {
      given_.wait_past(seen, spins_, kAwake);
      if (!job_) return;
      job_();
      job_ = nullptr;
      done_.ring();
    }
  }

  bool spins_;
  pid_t id_ = 0;
  std::function<void()> job_;
  EventCount started_, given_, done_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace weft
