// A program with the buffers that its executions reuse.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "execution.hpp"
#include "member.hpp"

namespace weft {

// Thread contract: run() and submit() enter the member's call guard; a second thread gets
// AbortCause::threads. So one thread at a time counts executions and uses the kept executor. The worker's jobs
// have an executor of their own. The getters are for any thread.
class PreparedProgram {
 public:
  explicit PreparedProgram(Program program)
      : program_(std::move(program)), executor_(program_, 0), binding_(program_) {}
  PreparedProgram(const PreparedProgram&) = delete;
  PreparedProgram& operator=(const PreparedProgram&) = delete;

  // Relaxed, here and below: only the thread inside the call guard writes them.
  [[nodiscard]] std::uint64_t num_executions() const noexcept {
    return num_executions_.load(std::memory_order_relaxed);
  }

  // The number of its last use, the same on every rank: the order of an LRU cache.
  [[nodiscard]] std::uint64_t last_use() const noexcept { return last_use_.load(std::memory_order_relaxed); }

  // Whether memory of these sizes can be bound to its buffers.
  [[nodiscard]] bool fits(std::span<const Bound> bound) const noexcept {
    for (const Bound& each : bound) {
      if (each.buffer >= program_.own.size() || program_.resolver.elastic ||
          each.memory.size() != program_.own[each.buffer].nbytes) {
        return false;
      }
    }
    return true;
  }

  // Executes in this thread, as the call of that name.
  std::optional<Abort> run(Member& member, std::span<const Bound> bound, std::string_view call, bool stamps,
                           const Hooks& hooks) {
    const CallScope entered(member.call_guard());
    if (!entered) return Abort{AbortCause::threads};
    // An earlier job of this program, or one that uses the engines, ends first.
    if (has_job(member) || (!program_.engines.empty() && !member.threads().is_idle())) {
      member.threads().worker()->drain(hooks.poll);
    }
    std::atomic<bool> stop = false;
    const std::uint64_t execution = next(member);
    if (busy_) {  // called by a signal handler inside of a call: use a binding of its own
      Binding binding(program_, bound);
      return run_bound(member, program_, execution, stamps, hooks, binding, call, stop);
    }
    busy_ = true;
    const Freed freed{busy_};
    binding_.bind(bound);
    return run_bound(member, program_, execution, stamps, hooks, binding_, call, stop, &executor_);
  }

  // The same as a job of the member's worker; returns its number, or zero if another thread is in a
  // collective call.
  std::uint64_t submit(Member& member, std::span<const Bound> bound, std::string call,
                       Kernels* kernels = nullptr) {
    const CallScope entered(member.call_guard());
    if (!entered) return 0;
    if (!worker_executor_) worker_executor_ = std::make_unique<Executor>(program_, 0);
    job_ = submit_bound(member, program_, *worker_executor_, next(member), bound, std::move(call), kernels);
    return job_;
  }

 private:
  class CallScope {
   public:
    explicit CallScope(CallGuard& guard) noexcept : guard_(guard.enter() ? &guard : nullptr) {}
    CallScope(const CallScope&) = delete;
    CallScope& operator=(const CallScope&) = delete;
    ~CallScope() {
      if (guard_ != nullptr) guard_->leave();
    }
    explicit operator bool() const noexcept { return guard_ != nullptr; }

   private:
    CallGuard* guard_;
  };

  struct Freed {
    bool& busy;
    ~Freed() { busy = false; }
  };

  [[nodiscard]] bool has_job(const Member& member) const noexcept {
    return job_ != 0 && !member.threads().worker()->is_done(job_);
  }

  std::uint64_t next(Member& member) noexcept {
    last_use_.store(member.next_use(), std::memory_order_relaxed);
    const std::uint64_t execution = num_executions();
    num_executions_.store(execution + 1, std::memory_order_relaxed);
    return execution;
  }

  Program program_;
  Executor executor_;
  std::unique_ptr<Executor> worker_executor_;  // of the worker's jobs, which run one by one
  Binding binding_;
  bool busy_ = false;      // the kept executor and binding are in use
  std::uint64_t job_ = 0;  // the last that was submitted
  std::atomic<std::uint64_t> num_executions_ = 0;
  std::atomic<std::uint64_t> last_use_ = 0;
};

}  // namespace weft
