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
#include "backoff.hpp"
#include "failure_monitor.hpp"

namespace weft {

// How far a step of a job came.
struct Progress {
  bool over;   // well or not
  bool moved;  // something was done
  std::optional<Abort> abort;
};

using Poll = std::function<void()>;

struct Job {
  // Goes on until it is over or must wait; one thread at a time calls it. Must not throw.
  std::function<Progress(std::atomic<bool>& stop)> step;
  bool blocks = false;  // it waits inside a step: only the worker's own thread has time for it
};

// Whoever waits for a job carries it on himself, if the worker's thread does not: he is awake. A
// worker that has no core for itself leaves him a moment to come, since it would only take the
// core from the computation before it.
class Worker {
 public:
  static constexpr auto kLong = std::chrono::hours(1);
  static constexpr auto kGrace = std::chrono::microseconds(100);

  // ``bell`` is rung for what jobs wait for, and for who waits for them.
  explicit Worker(bool has_core, Doorbell* bell = nullptr) : bell_(bell) { start(has_core); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() { close(); }

  // A thread for its jobs, if it has none.
  void start(bool has_core) {
    // Relaxed, and before the lock as well: whoever closes has it while the thread ends, which may
    // want another lock that the caller holds.
    if (closing_.load(std::memory_order_relaxed)) return;
    const std::scoped_lock life(life_);
    if (thread_.joinable() || closing_.load(std::memory_order_relaxed)) return;
    has_core_ = has_core;
    const std::uint32_t before = started_.count();
    thread_ = std::thread([this] { serve(); });
    started_.wait_past(before, false, Engine::kAwake);
  }

  // Ends the thread, which can be given another place and urgency only by a new one. Jobs and
  // their numbers stay: who waits for one still finds it.
  void rest() {
    const std::scoped_lock life(life_);
    end_thread();
  }

  // What is not done never will be: it is told to stop. Whoever waits learns it.
  void close() {
    const std::scoped_lock life(life_);
    if (closing_.load(std::memory_order_relaxed)) return;
    // Relaxed: the locks below order them for a worker that sleeps; others look again anyway.
    stop_.store(true, std::memory_order_relaxed);
    closing_.store(true, std::memory_order_relaxed);
    end_thread();
    const std::scoped_lock lock(stepping_, mutex_);  // who carries a job on stops at his next step
    closed_ = true;
    cut_off();
  }

  // Relaxed: the bell of start() orders it for who started the thread.
  [[nodiscard]] pid_t thread() const noexcept { return id_.load(std::memory_order_relaxed); }

  // Whether that is the calling one: it cannot wait for its own end.
  [[nodiscard]] bool is_mine() const noexcept { return thread() == thread_id(); }

  // Gives the job's number; numbers count from one in the order of jobs.
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
      if (closed_) cut_off();
      asleep = asleep_;
    }
    if (asleep) wake_.notify_one();
    return number;
  }

  // Acquire: who finds it idle finds what the jobs wrote. Relaxed: a job of another thread's that
  // is just being handed over may be missed.
  [[nodiscard]] bool is_idle() const noexcept {
    return num_done_.load(std::memory_order_acquire) ==
           submitted_.load(std::memory_order_relaxed);
  }
  // Who sees the number sees what the job wrote. One order with the doorbell.
  [[nodiscard]] bool is_done(std::uint64_t number) const noexcept {
    return num_done_.load(std::memory_order_seq_cst) >= number;
  }

  // Whether it came in time. ``poll`` may throw. ``spins``: a core is there for who waits.
  bool wait(std::uint64_t number, Clock::duration timeout, const Poll& poll, bool spins = false) {
    const auto deadline = Clock::now() + timeout;
    Backoff backoff(spins, kLong, Background::none, bell_);
    while (!is_done(number)) {
      if (carry_on(number, /*blocking=*/false)) {
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

  // How a job that is done failed, once.
  std::optional<Abort> take_abort(std::uint64_t number) {
    const std::scoped_lock lock(mutex_);
    const auto found = aborts_.find(number);
    if (found == aborts_.end()) return std::nullopt;
    const Abort abort = found->second;
    aborts_.erase(found);
    return abort;
  }

 private:
  // What is not done is done now, and did not go well. With the lock held, and nobody at a job.
  void cut_off() {
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
    while (sleeps_until_asked()) {
      Backoff backoff(false, kLong, Background::computation, bell_);
      while (!is_idle() && !ending_.load(std::memory_order_relaxed)) {
        // Relaxed: is_idle() saw it.
        if (carry_on(submitted_.load(std::memory_order_relaxed), /*blocking=*/true)) {
          backoff.reset();
        } else {
          backoff.pause();
        }
      }
    }
  }

  // Work that comes often is awaited awake for a millisecond, where that takes no core from
  // others; else the thread sleeps. It never spins: who waits for it must let it have the core.
  // False: it is to end.
  bool sleeps_until_asked() {
    Backoff backoff(/*spins=*/false, Backoff::kYield);
    while (has_core_ && is_idle() && !backoff.is_over() &&
           !ending_.load(std::memory_order_relaxed)) {
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

  // A step of the oldest job, unless it is after ``last`` or somebody else is at it. Whether that
  // led anywhere.
  bool carry_on(std::uint64_t last, bool blocking) {
    Progress step{false, false, std::nullopt};
    {
      const std::unique_lock turn(stepping_, std::try_to_lock);
      if (!turn || closing_.load(std::memory_order_relaxed)) return false;
      // Relaxed: it is written with the turn taken.
      const std::uint64_t number = num_done_.load(std::memory_order_relaxed) + 1;
      if (number > last) return false;
      Job* job = oldest();
      if (job == nullptr || (job->blocks && !blocking)) return false;
      step = job->step(stop_);
      if (step.over) retire(number, step.abort);
    }
    // After the turn is free: who wakes may want it.
    if (step.over && bell_ != nullptr) bell_->ring_if_needed();
    return step.over || step.moved;
  }

  // It stays where it is when others are added, and only who has the turn takes it away.
  Job* oldest() {
    const std::scoped_lock lock(mutex_);
    return jobs_.empty() ? nullptr : &jobs_.front();
  }

  void retire(std::uint64_t number, const std::optional<Abort>& abort) {
    // Relaxed: later jobs must not begin in a broken world, and who begins them takes the turn.
    if (abort) stop_.store(true, std::memory_order_relaxed);
    {
      const std::scoped_lock lock(mutex_);
      if (abort) aborts_[number] = *abort;
      jobs_.pop_front();
    }
    // One order with the doorbell; and who sees the number sees what the job wrote.
    num_done_.store(number, std::memory_order_seq_cst);
  }

  bool has_core_ = false;
  Doorbell* bell_;
  std::atomic<pid_t> id_ = 0;
  EventCount started_;
  std::mutex life_;  // of who starts or ends the thread; taken before all others
  std::mutex stepping_;  // of who carries a job on; taken before the other
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  std::map<std::uint64_t, Abort> aborts_;
  bool asleep_ = false;
  bool closed_ = false;  // nobody takes a job any more
  std::atomic<bool> ending_ = false;   // the thread
  std::atomic<bool> closing_ = false;  // all of it
  std::atomic<bool> stop_ = false;
  std::atomic<std::uint64_t> submitted_ = 0;
  std::atomic<std::uint64_t> num_done_ = 0;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace weft
