// A program that is executed again and again: what one execution allocates serves the next.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "member.hpp"

namespace weft {

class Ready {
 public:
  explicit Ready(Program program)
      : program_(std::move(program)), executor_(program_, 0), binding_(program_) {}
  Ready(const Ready&) = delete;
  Ready& operator=(const Ready&) = delete;

  [[nodiscard]] std::uint64_t num_executions() const noexcept { return num_executions_; }

  // The number of the last call that asked for it: the same on every rank.
  [[nodiscard]] std::uint64_t asked() const noexcept { return asked_; }

  // Whether memory of these sizes can stand for its buffers.
  [[nodiscard]] bool fits(std::span<const Bound> bound) const noexcept {
    for (const Bound& each : bound) {
      if (each.buffer >= program_.own.size() || program_.finder.elastic ||
          each.memory.size() != program_.own[each.buffer].nbytes) {
        return false;
      }
    }
    return true;
  }

  // In this thread, as the call of that name.
  std::optional<Halt> run(Member& member, std::span<const Bound> bound, std::string_view call,
                          bool stamps, const Hooks& hooks) {
    std::atomic<bool> stop = false;
    const std::uint64_t execution = next(member);
    // Acquire and release: who has it finds what the last one left. A second thread has its own.
    if (busy_.test_and_set(std::memory_order_acquire)) {
      Binding binding(program_, bound);
      return member.run(program_, execution, stamps, hooks, binding, call, stop);
    }
    const Freed freed{busy_};
    binding_.bind(bound);
    return member.run(program_, execution, stamps, hooks, binding_, call, stop, &executor_);
  }

  // The same, later, by the member's worker; gives the job's number.
  std::uint64_t submit(Member& member, std::span<const Bound> bound, std::string call,
                       Kernels* kernels = nullptr) {
    if (!later_) later_ = std::make_unique<Executor>(program_, 0);
    return member.submit(program_, *later_, next(member), bound, std::move(call), kernels);
  }

 private:
  struct Freed {
    std::atomic_flag& busy;
    ~Freed() { busy.clear(std::memory_order_release); }
  };

  std::uint64_t next(Member& member) noexcept {
    asked_ = member.ask();
    return num_executions_++;
  }

  Program program_;
  Executor executor_;
  std::unique_ptr<Executor> later_;  // of the worker's jobs, which are carried out one by one
  Binding binding_;
  std::atomic_flag busy_;
  std::uint64_t num_executions_ = 0;
  std::uint64_t asked_ = 0;
};

}  // namespace weft
