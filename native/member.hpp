// One rank's handle of a world: its heap, engines, worker and executions.
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

#include "binding.hpp"
#include "control.hpp"
#include "engine.hpp"
#include "executor.hpp"
#include "fault_text.hpp"
#include "heap.hpp"
#include "kernels.hpp"
#include "p2p_slots.hpp"
#include "task.hpp"
#include "call_guard.hpp"
#include "worker.hpp"

namespace weft {

// Thread contract. Collective calls (run, submit, barrier, and what Python does around them) are made
// by one thread at a time, the one inside call_guard(); PreparedProgram enters it, and a second thread gets
// AbortCause::threads. At the same time any number of threads may send and receive (p2p, wait_for), wait
// for jobs (worker), set the timeout and call leave(), which aborts the waits of other threads. The thread
// inside call_guard() starts and ends the engines and the worker's thread; a job of the worker that uses
// engines and a call that does never run at the same time (see PreparedProgram::run).
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

  // Leaves the world and ends the engines. A forked child is no member and has no threads.
  void leave() noexcept {
    // Acquire-release: of two threads that leave, one does all of it.
    if (here_.exchange(false, std::memory_order_acq_rel)) {
      if (::getpid() == pid_) {
        if (worker_) worker_->close();  // not destroyed: threads may be waiting for its jobs
        control_.leave(rank_);
        // Another thread may be in a call that uses them: then the destructor ends them.
        if (guard_.enter()) {
          engines_.clear();
          guard_.leave();
        }
      } else {
        static_cast<void>(worker_.release());
        for (auto& engine : engines_) static_cast<void>(engine.release());
      }
    }
  }

  [[nodiscard]] const Heap& heap() const noexcept { return heap_; }
  [[nodiscard]] Control& control() noexcept { return control_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }

  // Entered by the thread that makes collective calls.
  [[nodiscard]] CallGuard& call_guard() noexcept { return guard_; }

  // The doorbell of the rank whose region contains an offset of the heap.
  [[nodiscard]] Doorbell& bell_at(std::uint64_t offset) const {
    const std::uint64_t front = Control::nbytes(control_.num_ranks());
    const std::uint64_t rank = offset < front ? UINT64_MAX : (offset - front) / control_.region_bytes();
    if (rank >= static_cast<std::uint64_t>(control_.num_ranks())) throw std::out_of_range("a flag");
    return control_.bell(static_cast<int>(rank));
  }

  // The timeout of one wait. Relaxed, here and below: later waits use it, and it orders nothing else.
  void set_timeout(std::chrono::nanoseconds timeout) noexcept {
    timeout_.store(timeout, std::memory_order_relaxed);
  }
  [[nodiscard]] std::chrono::nanoseconds timeout() const noexcept {
    return timeout_.load(std::memory_order_relaxed);
  }

  // Whether every waiting thread has a core; else spinning would delay other threads.
  void set_spins(bool spins) noexcept { spins_.store(spins, std::memory_order_relaxed); }
  [[nodiscard]] bool spins() const noexcept { return spins_.load(std::memory_order_relaxed); }

  // Whether the worker has a core besides the caller's; read when the worker starts.
  void set_core_for_worker(bool has) noexcept { has_core_for_worker_.store(has, std::memory_order_relaxed); }

  // Starts the worker and the engines up to that number; returns their thread ids, so that their
  // affinity and priority can be set.
  std::vector<pid_t> start_threads(std::uint32_t num_engines) {
    need_worker();
    if (num_engines > 0) need_engine(num_engines);
    std::vector<pid_t> threads{worker_->thread()};
    for (std::uint32_t runner = 1; runner <= engines_.size(); ++runner) {
      need_engine(runner);
      threads.push_back(engines_[runner - 1]->thread());
    }
    return threads;
  }

  // Ends them while no job is in flight; new threads have default settings. Another thread may submit a
  // job meanwhile, which needs a worker.
  void end_threads() {
    if (worker_) {
      worker_->rest();
      if (!worker_->is_idle()) worker_->start(has_core_for_worker());
    }
    engines_.clear();
  }

  // Whether the calling thread is the worker's, which cannot join itself.
  [[nodiscard]] bool is_worker() const noexcept { return worker_ && worker_->is_mine(); }

  // Resolves the addresses of this rank's commands.
  [[nodiscard]] AddressResolver resolver(bool elastic = false) const {
    AddressResolver resolver;
    resolver.heap = heap_.bytes(0, heap_.size());
    resolver.self = static_cast<std::uint32_t>(rank_);
    resolver.elastic = elastic;
    for (int rank = 0; rank < control_.num_ranks(); ++rank) {
      resolver.pids.push_back(static_cast<pid_t>(control_.pid(rank)));
    }
    return resolver;
  }

  // Sets the offsets of the message slots; all ranks call it before the first message.
  void open_p2p(std::uint64_t start, std::uint64_t step) { p2p_.emplace(heap_, resolver(), start, step); }
  [[nodiscard]] P2PSlots& p2p() { return p2p_.value(); }

  // Waits until ``attempt`` returns true. ``other`` is the awaited rank.
  std::optional<Abort> wait_for(const std::function<bool()>& attempt, int other,
                                const std::function<void()>& poll) {
    const std::atomic<bool> stop = false;
    FailureMonitor monitor(control_, rank_, stop, poll);
    Backoff backoff(spins(), timeout());
    try {
      while (!attempt()) {
        backoff.pause();
        if (auto abort = monitor.check(backoff)) {
          if (abort->rank < 0) abort->rank = other;
          return abort;
        }
      }
    } catch (const Unreachable& found) {
      return abort_of(found);
    }
    return std::nullopt;
  }

  std::optional<Abort> barrier(const std::function<void()>& poll) {
    const std::uint64_t count = control_.arrive(rank_);
    const std::atomic<bool> stop = false;
    FailureMonitor monitor(control_, rank_, stop, poll, /*all=*/true);
    Backoff backoff(spins(), timeout());
    for (int rank = 0; rank < control_.num_ranks(); ++rank) {
      while (!control_.has_arrived(rank, count)) {
        backoff.pause();
        if (auto abort = monitor.check(backoff)) {
          // A rank that arrived may fail right afterwards: that is not a failure of this barrier.
          if (control_.has_arrived(rank, count)) break;
          if (abort->rank < 0) abort->rank = rank;
          return abort;
        }
      }
    }
    return std::nullopt;
  }

  // When ordinary memory is staged in the heap for the other ranks.
  void set_staging(Staging staging) noexcept { staging_ = staging; }
  [[nodiscard]] const Staging& staging() const noexcept { return staging_; }

  // An execution on bound memory, as the call of that name. ``kept`` is a reusable executor of the
  // calling thread's streams; ``alone`` is false in the background of a computation.
  std::optional<Abort> run(const Program& program, std::uint64_t execution, bool stamps, const Hooks& hooks,
                           Binding& binding, std::string_view call, std::atomic<bool>& stop,
                           Executor* kept = nullptr, bool alone = true) {
    const std::uint64_t number = call.empty() ? 0 : control_.recorder(rank_).begin(call);
    binding.publish(staging_);
    auto abort = kept != nullptr && program.engines.empty()
                     ? run(*kept, execution, stamps, hooks, stop)
                     : run(program, execution, stamps, hooks, stop, alone);
    if (abort) return abort;
    binding.collect();
    if (number != 0) control_.recorder(rank_).end(number);
    return std::nullopt;
  }

  // The same as a job of the worker, after all earlier jobs; returns its number. ``executor`` is of
  // that program, and used by jobs only. Programs with kernels may block and throw: they run in one
  // step.
  std::uint64_t submit(const Program& program, Executor& executor, std::uint64_t execution,
                       std::span<const Bound> bound, std::string call, Kernels* kernels = nullptr) {
    need_worker();
    if (kernels != nullptr || program.blocks()) {
      return submit_whole(program, execution, bound, std::move(call), kernels);
    }
    auto task = std::make_shared<Task>(control_, rank_, program, executor, execution, bound, std::move(call),
                                       staging_, timeout());
    return worker_->submit({[this, task = std::move(task)](std::atomic<bool>& stop) {
      return reported(task->call(), [&] { return task->step(stop); });
    }});
  }

  // Reports why this rank stopped waiting at ``place``: every rank raises it then.
  void report(const Abort& abort, std::string_view place) {
    if (const auto fault = fault_of(abort, control_, rank_, place, timeout())) {
      control_.fail(rank_, fault->reason, fault->rank, fault->text);
    }
  }

  // Counts uses of programs. All ranks make the same calls, so the numbers are equal.
  std::uint64_t next_use() noexcept { return ++num_uses_; }

  // Null until the first job.
  [[nodiscard]] Worker* worker() const noexcept { return worker_.get(); }
  [[nodiscard]] bool is_idle() const noexcept { return !worker_ || worker_->is_idle(); }

  // One execution of a program; ``execution`` counts from zero. The calling thread runs its
  // streams, each engine its own; the first to abort stops the others.
  std::optional<Abort> run(const Program& program, std::uint64_t execution, bool stamps, const Hooks& hooks,
                           std::atomic<bool>& stop, bool alone = true) {
    const Hooks none;
    std::vector<Part> parts;
    parts.reserve(program.engines.size() + 1);
    parts.push_back({Executor(program, 0), hooks, {}});
    for (const std::uint32_t runner : program.engines) {
      need_engine(runner);
      parts.push_back({Executor(program, runner), none, {}});
    }
    const auto run_part = [this, execution, stamps, alone, &stop](Part& part) {
      part.abort = run(part.executor, execution, stamps, part.hooks, stop, alone);
    };
    {
      Joined joined{*this, program.engines, stop};
      for (std::size_t i = 0; i < program.engines.size(); ++i) {
        Part& part = parts[i + 1];
        engines_[program.engines[i] - 1]->start([&run_part, &part] { run_part(part); });
        ++joined.num_started;
      }
      run_part(parts[0]);
      joined.ended = true;
    }
    return first_cause(parts);
  }

  // What one thread does in an execution.
  std::optional<Abort> run(Executor& executor, std::uint64_t execution, bool stamps, const Hooks& hooks,
                           std::atomic<bool>& stop, bool alone = true) {
    FailureMonitor monitor(control_, rank_, stop, hooks.poll);
    Backoff backoff(spins() && alone, timeout(), alone ? Background::none : Background::computation,
                    &control_.bell(rank_));
    auto abort = executor.run(execution, stamps, hooks, monitor, backoff);
    // Relaxed: only makes the others stop; finish() orders what is read afterwards.
    if (abort) stop.store(true, std::memory_order_relaxed);
    return abort;
  }

 private:
  // Engines are joined in one step, and a Python codec may need the GIL, which a waiting thread may
  // hold. So the worker's thread executes it all.
  std::uint64_t submit_whole(const Program& program, std::uint64_t execution, std::span<const Bound> bound,
                             std::string call, Kernels* kernels) {
    auto binding = std::make_shared<Binding>(program, bound);
    auto whole = [this, &program, execution, binding = std::move(binding), call = std::move(call),
                  kernels](std::atomic<bool>& stop) {
      Hooks hooks;
      if (kernels != nullptr) hooks.kernel = kernels->caller();
      return reported(call, [&] {
        return Progress{true, true,
                        run(program, execution, false, hooks, *binding, call, stop,
                            /*kept=*/nullptr, /*alone=*/false)};
      });
    };
    return worker_->submit({std::move(whole), /*blocks=*/true});
  }

  // A step of a job. Any failure is reported to the other ranks at once: no thread of this rank may be
  // waiting for the job.
  template <class Act>
  Progress reported(const std::string& call, const Act& act) {
    try {
      const Progress came = act();
      if (came.abort) report(*came.abort, call);
      return came;
    } catch (const std::exception& error) {
      control_.fail(rank_, FaultReason::raised, rank_,
                    "rank " + std::to_string(rank_) + " raised " + error.what() + " in " + call);
      return {true, true, Abort{AbortCause::fault}};
    }
  }

  struct Part {
    Executor executor;
    const Hooks& hooks;
    std::optional<Abort> abort;
  };

  [[nodiscard]] bool has_core_for_worker() const noexcept {
    return has_core_for_worker_.load(std::memory_order_relaxed);
  }

  void need_engine(std::uint32_t runner) {
    if (engines_.size() < runner) engines_.resize(runner);
    if (!engines_[runner - 1]) engines_[runner - 1] = std::make_unique<Engine>(spins());
  }

  void need_worker() {
    if (!worker_) {
      worker_ = std::make_unique<Worker>(has_core_for_worker(), &control_.bell(rank_));
    } else {
      worker_->start(has_core_for_worker());
    }
  }

  // Engines use the stack of run(), so its destructor waits for them; after an exception they are
  // stopped first.
  struct Joined {
    Member& member;
    const std::vector<std::uint32_t>& engines;
    std::atomic<bool>& stop;
    std::size_t num_started = 0;
    bool ended = false;
    ~Joined() {
      // Relaxed: it only makes them stop; finish() orders what is read afterwards.
      if (!ended) stop.store(true, std::memory_order_relaxed);
      for (std::size_t i = 0; i < num_started; ++i) member.engines_[engines[i] - 1]->finish();
    }
  };

  // The abort that stopped the other threads of this rank.
  static std::optional<Abort> first_cause(const std::vector<Part>& parts) {
    std::optional<Abort> result;
    for (const Part& part : parts) {
      if (part.abort && (!result || result->cause == AbortCause::stopped)) result = part.abort;
    }
    return result;
  }

  Heap heap_;
  Control control_;
  int rank_;
  std::atomic<std::chrono::nanoseconds> timeout_;
  std::atomic<bool> spins_ = false;
  std::atomic<bool> has_core_for_worker_ = true;
  CallGuard guard_;
  std::uint64_t num_uses_ = 0;
  pid_t pid_ = ::getpid();
  std::atomic<bool> here_ = true;
  Staging staging_;
  std::optional<P2PSlots> p2p_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::unique_ptr<Worker> worker_;  // last: it uses all of the above
};

}  // namespace weft
