// The thread that executes what a rank does not wait for, one after another.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "engine.hpp"
#include "patience.hpp"
#include "watch.hpp"

namespace weft {

class Worker {
 public:
  static constexpr auto kLong = std::chrono::hours(1);
  using Job = std::function<std::optional<Halt>(std::atomic<bool>& stop)>;

  explicit Worker(bool spins) : spins_(spins), thread_([this] { serve(); }) {
    started_.wait_past(0, false, Engine::kAwake);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() { close(); }

  // What has not begun never does; what has is told to stop. Whoever waits learns it.
  void close() {
    if (!thread_.joinable()) return;
    // Relaxed: the lock below orders it for a worker that sleeps; others look again anyway.
    stop_.store(true, std::memory_order_relaxed);
    {
      const std::scoped_lock lock(mutex_);
      closing_.store(true, std::memory_order_relaxed);
    }
    wake_.notify_all();
    thread_.join();
    const std::scoped_lock lock(mutex_);
    const std::uint64_t last = submitted_.load(std::memory_order_relaxed);
    for (std::uint64_t number = last - jobs_.size() + 1; number <= last; ++number) {
      halts_[number] = Halt{Cause::stopped};
    }
    jobs_.clear();
    num_done_.store(last, std::memory_order_release);
  }

  [[nodiscard]] pid_t thread() const noexcept { return id_; }

  // Gives the job's number; numbers count from one in the order of jobs.
  std::uint64_t submit(Job job) {
    bool asleep;
    std::uint64_t number;
    {
      const std::scoped_lock lock(mutex_);
      jobs_.push_back(std::move(job));
      number = ++num_submitted_;
      // Release: a worker that spins sees the job before it looks for it under the lock.
      submitted_.store(number, std::memory_order_release);
      asleep = asleep_;
    }
    if (asleep) wake_.notify_one();
    return number;
  }

  [[nodiscard]] bool is_idle() const noexcept {
    return num_done_.load(std::memory_order_acquire) ==
           submitted_.load(std::memory_order_relaxed);
  }
  // Acquire: who sees the number sees what the job wrote.
  [[nodiscard]] bool is_done(std::uint64_t number) const noexcept {
    return num_done_.load(std::memory_order_acquire) >= number;
  }

  // Whether it came in time. ``poll`` may throw.
  bool wait(std::uint64_t number, Clock::duration timeout, const std::function<void()>& poll) const {
    Patience patience(spins_, timeout);
    while (!is_done(number)) {
      patience.pause();
      if (patience.should_look() && poll) poll();
      if (patience.is_over()) return is_done(number);
    }
    return true;
  }

  void drain(const std::function<void()>& poll) const {
    while (!is_idle()) static_cast<void>(wait(submitted_.load(std::memory_order_relaxed), kLong, poll));
  }

  // How a job that is done failed, once.
  std::optional<Halt> take_halt(std::uint64_t number) {
    const std::scoped_lock lock(mutex_);
    const auto found = halts_.find(number);
    if (found == halts_.end()) return std::nullopt;
    const Halt halt = found->second;
    halts_.erase(found);
    return halt;
  }

 private:
  void serve() {
    id_ = thread_id();
    started_.ring();
    std::uint64_t number = 0;
    while (const auto job = next(number)) {
      const auto halt = (*job)(stop_);
      ++number;
      if (halt) {
        const std::scoped_lock lock(mutex_);
        halts_[number] = *halt;
      }
      num_done_.store(number, std::memory_order_release);
    }
  }

  // Work that comes often is awaited awake for a millisecond; else the thread sleeps.
  std::optional<Job> next(std::uint64_t num_done) {
    Patience patience(spins_, Patience::kYield);
    while (submitted_.load(std::memory_order_acquire) == num_done && !patience.is_over() &&
           !closing_.load(std::memory_order_relaxed)) {
      patience.pause();
    }
    std::unique_lock lock(mutex_);
    asleep_ = true;
    wake_.wait(lock, [this] { return !jobs_.empty() || closing_.load(std::memory_order_relaxed); });
    asleep_ = false;
    if (closing_.load(std::memory_order_relaxed)) return std::nullopt;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    return job;
  }

  bool spins_;
  pid_t id_ = 0;
  Bell started_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  std::map<std::uint64_t, Halt> halts_;
  std::uint64_t num_submitted_ = 0;
  bool asleep_ = false;
  std::atomic<bool> closing_ = false;
  std::atomic<bool> stop_ = false;
  std::atomic<std::uint64_t> submitted_ = 0;
  std::atomic<std::uint64_t> num_done_ = 0;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace weft
