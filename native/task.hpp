// A call that is executed in steps, by the worker or by a waiting thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "binding.hpp"
#include "control.hpp"
#include "executor.hpp"
#include "backoff.hpp"
#include "failure_monitor.hpp"
#include "worker.hpp"

namespace weft {

class Task {
 public:
  // ``executor`` is of the program, and used by nothing else between the first and the last step.
  Task(Control& control, int rank, const Program& program, Executor& executor, std::uint64_t execution,
       std::span<const Bound> bound, std::string call, const Staging& staging, Clock::duration timeout)
      : control_(control),
        rank_(rank),
        executor_(executor),
        execution_(execution),
        call_(std::move(call)),
        staging_(staging),
        binding_(program, bound),
        backoff_(false, timeout) {}
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  [[nodiscard]] const std::string& call() const noexcept { return call_; }

  // Different threads may make steps, one at a time.
  Progress step(const std::atomic<bool>& stop) {
    if (!monitor_) {
      begin(stop);
      if (const auto abort = monitor_->check(backoff_)) return {true, true, abort};
    }
    Progress result{false, false, std::nullopt};
    result.abort = executor_.step(*monitor_, backoff_, result.moved);
    result.over = result.abort || executor_.is_done();
    if (result.over && !result.abort) end();
    return result;
  }

 private:
  void begin(const std::atomic<bool>& stop) {
    monitor_.emplace(control_, rank_, stop, hooks_.poll);
    if (!call_.empty()) number_ = control_.recorder(rank_).begin(call_);
    binding_.publish(staging_);
    executor_.begin(execution_, false, hooks_);
  }

  void end() {
    binding_.collect();
    if (number_ != 0) control_.recorder(rank_).end(number_);
  }

  Control& control_;
  int rank_;
  Executor& executor_;
  std::uint64_t execution_;
  std::string call_;
  Staging staging_;
  Binding binding_;
  Backoff backoff_;  // never pauses: only its clock is used
  const Hooks hooks_{};  // none: another thread may make the steps
  std::optional<FailureMonitor> monitor_;
  std::uint64_t number_ = 0;
};

}  // namespace weft
