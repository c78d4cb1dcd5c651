// A call that is carried on in steps, by whichever thread has time for it.
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
#include "patience.hpp"
#include "watch.hpp"
#include "worker.hpp"

namespace weft {

class Task {
 public:
  // ``executor`` is of the program, and nobody else's between the first step and the last.
  Task(Control& control, int rank, const Program& program, Executor& executor,
       std::uint64_t execution, std::span<const Bound> bound, std::string call,
       const Staging& staging, Clock::duration timeout)
      : control_(control),
        rank_(rank),
        executor_(executor),
        execution_(execution),
        call_(std::move(call)),
        staging_(staging),
        binding_(program, bound),
        patience_(false, timeout) {}
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  [[nodiscard]] const std::string& call() const noexcept { return call_; }

  // Steps may be done by different threads, one after another.
  Headway step(const std::atomic<bool>& stop) {
    if (!watch_) {
      begin(stop);
      if (const auto halt = watch_->check(patience_)) return {true, true, halt};
    }
    Headway result{false, false, std::nullopt};
    result.halt = executor_.step(*watch_, patience_, result.moved);
    result.over = result.halt || executor_.is_done();
    if (result.over && !result.halt) end();
    return result;
  }

 private:
  void begin(const std::atomic<bool>& stop) {
    watch_.emplace(control_, rank_, stop, hooks_.poll);
    if (!call_.empty()) number_ = control_.calls(rank_).begin(call_);
    binding_.publish(staging_);
    executor_.begin(execution_, false, hooks_);
  }

  void end() {
    binding_.collect();
    if (number_ != 0) control_.calls(rank_).end(number_);
  }

  Control& control_;
  int rank_;
  Executor& executor_;
  std::uint64_t execution_;
  std::string call_;
  Staging staging_;
  Binding binding_;
  Patience patience_;  // never pauses: it is the clock of the waits
  const Hooks hooks_{};  // none: nothing is called between steps, or on another's behalf
  std::optional<Watch> watch_;
  std::uint64_t number_ = 0;
};

}  // namespace weft
