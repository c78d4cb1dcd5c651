// One rank's part of a world: its view of the heap, its engines, and its executions.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control.hpp"
#include "engine.hpp"
#include "executor.hpp"
#include "heap.hpp"

namespace weft {

class Member {
 public:
  Member(const std::string& name, int rank, std::chrono::nanoseconds timeout)
      : heap_(Heap::open(name)), control_(heap_), rank_(rank), timeout_(timeout) {
    if (rank < 0 || rank >= control_.num_ranks()) throw std::out_of_range("rank");
    heap_.populate(0, Control::nbytes(control_.num_ranks()));
    control_.enter(rank);
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member() { leave(); }

  // Says goodbye and ends the engines. A forked child has neither said hello nor threads.
  void leave() noexcept {
    if (std::exchange(here_, false)) {
      if (::getpid() == pid_) {
        control_.leave(rank_);
        engines_.clear();
      } else {
        for (auto& engine : engines_) static_cast<void>(engine.release());
      }
    }
  }

  [[nodiscard]] const Heap& heap() const noexcept { return heap_; }
  [[nodiscard]] Control& control() noexcept { return control_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }

  // How long one wait may last.
  void set_timeout(std::chrono::nanoseconds timeout) noexcept { timeout_ = timeout; }

  // Whether a core is there for every thread that waits; else spinning only takes them away.
  void set_spins(bool spins) noexcept { spins_ = spins; }

  std::optional<Halt> barrier(const std::function<void()>& poll) {
    const std::uint64_t count = control_.arrive(rank_);
    const std::atomic<bool> stop = false;
    Watch watch(control_, rank_, stop, poll, /*all=*/true);
    Patience patience(spins_, timeout_);
    for (int rank = 0; rank < control_.num_ranks(); ++rank) {
      while (!control_.has_arrived(rank, count)) {
        patience.pause();
        if (auto halt = watch.check(patience)) {
          if (halt->rank < 0) halt->rank = rank;
          return halt;
        }
      }
    }
    return std::nullopt;
  }

  // One execution of a program; ``execution`` counts from zero. The calling thread runs its
  // strands, each engine its own; the first to give up stops the others.
  std::optional<Halt> run(const Program& program, std::uint64_t execution, bool stamps,
                          const Hooks& hooks) {
    const Hooks none;
    std::atomic<bool> stop = false;
    std::vector<Part> parts;
    parts.reserve(program.engines.size() + 1);
    parts.push_back({Executor(program, 0, execution, stamps, hooks), hooks, {}});
    for (const std::uint32_t runner : program.engines) {
      need_engine(runner);
      parts.push_back({Executor(program, runner, execution, stamps, none), none, {}});
    }
    {
      Joined joined{*this, program.engines, stop};
      for (std::size_t i = 0; i < program.engines.size(); ++i) {
        Part& part = parts[i + 1];
        engines_[program.engines[i] - 1]->start([this, &part, &stop] { run(part, stop); });
        ++joined.num_started;
      }
      run(parts[0], stop);
      joined.ended = true;
    }
    return first_cause(parts);
  }

 private:
  // What one thread does in an execution.
  struct Part {
    Executor executor;
    const Hooks& hooks;
    std::optional<Halt> halt;
  };

  void run(Part& part, std::atomic<bool>& stop) {
    Watch watch(control_, rank_, stop, part.hooks.poll);
    Patience patience(spins_, timeout_);
    part.halt = part.executor.run(watch, patience);
    // Relaxed: only makes the others stop; finish() orders what is read afterwards.
    if (part.halt) stop.store(true, std::memory_order_relaxed);
  }

  void need_engine(std::uint32_t runner) {
    if (engines_.size() < runner) engines_.resize(runner);
    if (!engines_[runner - 1]) engines_[runner - 1] = std::make_unique<Engine>();
  }

  // Engines use what stands on the stack of run(), so it is not left before they end, and
  // they end at once when it is left by an exception.
  struct Joined {
    Member& member;
    const std::vector<std::uint32_t>& engines;
    std::atomic<bool>& stop;
    std::size_t num_started = 0;
    bool ended = false;
    ~Joined() {
      if (!ended) stop.store(true, std::memory_order_relaxed);
      for (std::size_t i = 0; i < num_started; ++i) member.engines_[engines[i] - 1]->finish();
    }
  };

  // The halt that stopped the other threads of this rank.
  static std::optional<Halt> first_cause(const std::vector<Part>& parts) {
    std::optional<Halt> result;
    for (const Part& part : parts) {
      if (part.halt && (!result || result->cause == Cause::stopped)) result = part.halt;
    }
    return result;
  }

  Heap heap_;
  Control control_;
  int rank_;
  std::chrono::nanoseconds timeout_;
  bool spins_ = false;
  pid_t pid_ = ::getpid();
  bool here_ = true;
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace weft
