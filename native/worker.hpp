// The worker: a thread that executes asynchronous jobs in order.
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
#include "backoff.hpp"
#include "failure_monitor.hpp"

namespace weft {

// The progress of one step of a job.
struct Progress {
  bool over;   // with or without an error
  bool moved;  // something was done
  std::optional<Abort> abort;
};

using Poll = std::function<void()>;

struct Job {
  // Runs until it is over or must wait; one thread at a time calls it. Must not throw.
  std::function<Progress(std::atomic<bool>& stop)> step;
  bool blocks = false;  // it waits inside a step: only the worker's own thread runs it
};

// A thread that waits for a job executes it, unless the worker's thread does. A worker without a core
// of its own starts a job later, because it would only take the core from the computation.
class Worker {
 public:
  static constexpr auto kLong = std::chrono::hours(1);
  static constexpr auto kGrace = std::chrono::microseconds(100);

  // ``bell`` wakes jobs that wait for flags, and threads that wait for jobs.
  explicit Worker(bool has_core, Doorbell* bell = nullptr) : bell_(bell) { start(has_core); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() { close(); }

  // Starts the thread, if there is none.
  void start(bool has_core) {
    // Relaxed, and before the lock as well: the closing thread has it while the thread ends, which may
    // want another lock that the caller holds.
    if (closing_.load(std::memory_order_relaxed)) return;
    const std::scoped_lock life(life_);
    if (thread_.joinable() || closing_.load(std::memory_order_relaxed)) return;
    has_core_ = has_core;
    const std::uint32_t before = started_.count();
    thread_ = std::thread([this] { serve(); });
    started_.wait_past(before, false, Engine::kAwake);
  }

  // Ends the thread; only a new one can get another affinity and priority. Jobs and their numbers stay.
  void rest() {
    const std::scoped_lock life(life_);
    end_thread();
  }

  // Stops all jobs; threads that wait for one get AbortCause::stopped.
  void close() {
    const std::scoped_lock life(life_);
    if (closing_.load(std::memory_order_relaxed)) return;
    // Relaxed: the locks below order them for a sleeping worker; other threads poll.
    stop_.store(true, std::memory_order_relaxed);
    closing_.store(true, std::memory_order_relaxed);
    end_thread();
    const std::scoped_lock lock(stepping_, mutex_);  // a thread inside a step ends it first
    closed_ = true;
    stop_all();
  }

  // Relaxed: the bell of start() orders it for the thread that called start().
  [[nodiscard]] pid_t thread() const noexcept { return id_.load(std::memory_order_relaxed); }

  // Whether that is the calling thread, which cannot join itself.
  [[nodiscard]] bool is_mine() const noexcept { return thread() == thread_id(); }

  // Returns the number of the job; numbers count from one in the order of jobs.
  std::uint64_t submit(Job job) {
    bool asleep;
    std::uint64_t number;
    {
      const std::scoped_lock lock(mutex_);
      jobs_.push_back(std::move(job));
      // Relaxed: it is written with the lock held.
      number = submitted_.load(std::memory_order_relaxed) + 1;
      // Release: a worker that is awake sees the job before it looks for it under the lock.
      submitted_.store(number, std::memory_order_release);
      if (closed_) stop_all();
      asleep = asleep_;
    }
    if (asleep) wake_.notify_one();
    return number;
  }

  // Acquire: a thread that finds it idle sees what the jobs wrote. Relaxed: a job of another thread's that
  // is just being handed over may be missed.
  [[nodiscard]] bool is_idle() const noexcept {
    return num_done_.load(std::memory_order_acquire) == submitted_.load(std::memory_order_relaxed);
  }
  // Who sees the number sees what the job wrote. One order with the doorbell.
  [[nodiscard]] bool is_done(std::uint64_t number) const noexcept {
    return num_done_.load(std::memory_order_seq_cst) >= number;
  }

  // Whether it came in time. ``poll`` may throw. ``spins``: the waiting thread has a core.
  bool wait(std::uint64_t number, Clock::duration timeout, const Poll& poll, bool spins = false) {
    const auto deadline = Clock::now() + timeout;
    Backoff backoff(spins, kLong, Background::none, bell_);
    while (!is_done(number)) {
      if (make_step(number, /*blocking=*/false)) {
        backoff.reset();
        continue;
      }
      backoff.pause();
      // Not in a step: what it calls may come back to us, and would wait for its own turn.
      if (backoff.should_poll() && poll) poll();
      if (Clock::now() >= deadline) return is_done(number);
    }
    return true;
  }

  void drain(const Poll& poll) {
    // Relaxed: it is about the jobs that the caller knows of.
    while (!is_idle()) static_cast<void>(wait(submitted_.load(std::memory_order_relaxed), kLong, poll));
  }

  // Returns why a job failed, to every caller. A failed world gets no more jobs, so few are kept.
  std::optional<Abort> abort_of_job(std::uint64_t number) {
    const std::scoped_lock lock(mutex_);
    const auto found = aborts_.find(number);
    return found == aborts_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  // Ends all jobs as stopped. Call with the lock held, and no thread inside a step.
  void stop_all() {
    const std::uint64_t last = submitted_.load(std::memory_order_relaxed);
    for (std::uint64_t number = last - jobs_.size() + 1; number <= last; ++number) {
      aborts_[number] = Abort{AbortCause::stopped};
    }
    jobs_.clear();
    // One order with the doorbell: see is_done().
    num_done_.store(last, std::memory_order_seq_cst);
    if (bell_ != nullptr) bell_->ring_if_needed();
  }

  void end_thread() {
    if (!thread_.joinable()) return;
    {
      // Relaxed: the lock orders it for a thread that sleeps; one that is awake looks again.
      const std::scoped_lock lock(mutex_);
      ending_.store(true, std::memory_order_relaxed);
    }
    wake_.notify_all();
    thread_.join();
    ending_.store(false, std::memory_order_relaxed);
  }

  void serve() {
    id_.store(thread_id(), std::memory_order_relaxed);  // the bell publishes it
    started_.ring();
    while (wait_for_jobs()) {
      Backoff backoff(false, kLong, Background::computation, bell_);
      while (!is_idle() && !ending_.load(std::memory_order_relaxed)) {
        // Relaxed: is_idle() saw it.
        if (make_step(submitted_.load(std::memory_order_relaxed), /*blocking=*/true)) {
          backoff.reset();
        } else {
          backoff.pause();
        }
      }
    }
  }

  // Polls for a millisecond for frequent jobs, if it has a core of its own; then sleeps. It never spins:
  // a thread that waits for it must get the core. Returns false if it shall end.
  bool wait_for_jobs() {
    Backoff backoff(/*spins=*/false, Backoff::kYield);
    while (has_core_ && is_idle() && !backoff.is_over() && !ending_.load(std::memory_order_relaxed)) {
      backoff.pause();
    }
    std::unique_lock lock(mutex_);
    asleep_ = true;
    wake_.wait(lock, [this] { return !jobs_.empty() || ending_.load(std::memory_order_relaxed); });
    asleep_ = false;
    if (!has_core_) {
      wake_.wait_for(lock, kGrace, [this] { return ending_.load(std::memory_order_relaxed); });
    }
    return !ending_.load(std::memory_order_relaxed);
  }

  // A step of the oldest job, unless it is after ``last`` or another thread is at it. Returns whether
  // there was progress.
  bool make_step(std::uint64_t last, bool blocking) {
    Progress step{false, false, std::nullopt};
    {
      const std::unique_lock turn(stepping_, std::try_to_lock);
      if (!turn || closing_.load(std::memory_order_relaxed)) return false;
      // Relaxed: it is written with stepping_ held.
      const std::uint64_t number = num_done_.load(std::memory_order_relaxed) + 1;
      if (number > last) return false;
      Job* job = oldest();
      if (job == nullptr || (job->blocks && !blocking)) return false;
      step = job->step(stop_);
      if (step.over) retire(number, step.abort);
    }
    // After stepping_ is free: a woken thread may need it.
    if (step.over && bell_ != nullptr) bell_->ring_if_needed();
    return step.over || step.moved;
  }

  // A deque keeps it in place when others are added; only the holder of stepping_ removes it.
  Job* oldest() {
    const std::scoped_lock lock(mutex_);
    return jobs_.empty() ? nullptr : &jobs_.front();
  }

  void retire(std::uint64_t number, const std::optional<Abort>& abort) {
    // Relaxed: later jobs must not begin in a failed world, and starting one takes stepping_.
    if (abort) stop_.store(true, std::memory_order_relaxed);
    {
      const std::scoped_lock lock(mutex_);
      if (abort) aborts_[number] = *abort;
      jobs_.pop_front();
    }
    // One order with the doorbell; and a thread that sees the number sees what the job wrote.
    num_done_.store(number, std::memory_order_seq_cst);
  }

  bool has_core_ = false;
  Doorbell* bell_;
  std::atomic<pid_t> id_ = 0;
  EventCount started_;
  std::mutex life_;  // held while the thread is started or ended; locked before all others
  std::mutex stepping_;  // held by the thread inside a step; locked before mutex_
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  std::map<std::uint64_t, Abort> aborts_;
  bool asleep_ = false;
  bool closed_ = false;  // no job is executed any more
  std::atomic<bool> ending_ = false;   // the thread
  std::atomic<bool> closing_ = false;  // all of it
  std::atomic<bool> stop_ = false;
  std::atomic<std::uint64_t> submitted_ = 0;
  std::atomic<std::uint64_t> num_done_ = 0;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace weft
