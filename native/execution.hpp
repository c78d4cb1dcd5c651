// Executions of programs by a rank: in the calling thread and its engines, or as jobs of its worker.
//
// Thread contract: run_program(), run_bound() and submit_bound() are collective calls, for the thread inside
// the member's call guard; the worker's thread calls run_bound() in a job. run_part() and reported() are for
// every thread that takes part in an execution.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "binding.hpp"
#include "executor.hpp"
#include "fault_text.hpp"
#include "kernels.hpp"
#include "member.hpp"
#include "task.hpp"

namespace weft {

// What one thread does in an execution; ``alone`` is false in the background of a computation.
inline std::optional<Abort> run_part(Member& member, Executor& executor, std::uint64_t execution, bool stamps,
                                     const Hooks& hooks, std::atomic<bool>& stop, bool alone) {
  Control& control = member.control();
  FailureMonitor monitor(control, member.rank(), stop, hooks.poll);
  Backoff backoff(member.spins() && alone, member.timeout(),
                  alone ? Background::none : Background::computation, &control.bell(member.rank()));
  auto abort = executor.run(execution, stamps, hooks, monitor, backoff);
  // Relaxed: only makes the others stop; finish() orders what is read afterwards.
  if (abort) stop.store(true, std::memory_order_relaxed);
  return abort;
}

// One execution of a program; ``execution`` counts from zero. The calling thread runs its streams, each
// engine its own; the first to abort stops the others.
inline std::optional<Abort> run_program(Member& member, const Program& program, std::uint64_t execution,
                                        bool stamps, const Hooks& hooks, std::atomic<bool>& stop,
                                        bool alone = true) {
  struct Part {
    Executor executor;
    const Hooks& hooks;
    std::optional<Abort> abort;
  };
  const Hooks none;
  std::vector<Part> parts;
  parts.reserve(program.engines.size() + 1);
  parts.push_back({Executor(program, 0), hooks, {}});
  for (const std::uint32_t engine : program.engines) {
    member.threads().need_engine(engine, member.spins());
    parts.push_back({Executor(program, engine), none, {}});
  }
  member.threads().run(program.engines, stop, [&](std::size_t i) {
    Part& part = parts[i];
    part.abort = run_part(member, part.executor, execution, stamps, part.hooks, stop, alone);
  });
  // The abort that stopped the other threads of this rank.
  std::optional<Abort> cause;
  for (const Part& part : parts) {
    if (part.abort && (!cause || cause->cause == AbortCause::stopped)) cause = part.abort;
  }
  return cause;
}

// An execution on bound memory, as the call of that name. ``kept`` is a reusable executor of the calling
// thread's streams.
inline std::optional<Abort> run_bound(Member& member, const Program& program, std::uint64_t execution,
                                      bool stamps, const Hooks& hooks, Binding& binding,
                                      std::string_view call, std::atomic<bool>& stop,
                                      Executor* kept = nullptr, bool alone = true) {
  FlightRecorder& recorder = member.control().recorder(member.rank());
  const std::uint64_t number = call.empty() ? 0 : recorder.begin(call);
  binding.publish(member.staging());
  auto abort = kept != nullptr && program.engines.empty()
                   ? run_part(member, *kept, execution, stamps, hooks, stop, alone)
                   : run_program(member, program, execution, stamps, hooks, stop, alone);
  if (abort) return abort;
  binding.collect();
  if (number != 0) recorder.end(number);
  return std::nullopt;
}

// A step of a job. Any failure is reported to the other ranks at once: no thread of this rank may be
// waiting for the job.
template <class Act>
Progress reported(Member& member, const std::string& call, const Act& act) {
  try {
    const Progress came = act();
    if (came.abort) member.report(*came.abort, call);
    return came;
  } catch (const std::exception& error) {
    const int rank = member.rank();
    member.control().fail(rank, FaultReason::raised, rank, raised_text(rank, error.what(), call));
    return {true, true, Abort{AbortCause::fault}};
  }
}

// The same as run_bound(), as a job of the worker after all earlier jobs; returns its number. The program
// and ``executor``, which is of that program and used by jobs only, live until the job is done.
inline std::uint64_t submit_bound(Member& member, const Program& program, Executor& executor,
                                  std::uint64_t execution, std::span<const Bound> bound, std::string call,
                                  Kernels* kernels = nullptr) {
  Worker& worker = member.threads().need_worker();
  if (kernels == nullptr && !program.blocks()) {
    auto task = std::make_shared<Task>(member.control(), member.rank(), program, executor, execution, bound,
                                       std::move(call), member.staging(), member.timeout());
    return worker.submit({[&member, task = std::move(task)](std::atomic<bool>& stop) {
      return reported(member, task->call(), [&] { return task->step(stop); });
    }});
  }
  // In one step of the worker's own thread: engines are joined in one, kernels may block and throw, and a
  // Python codec may need the GIL, which a waiting thread may hold.
  auto binding = std::make_shared<Binding>(program, bound);
  auto whole = [&member, &program, execution, binding = std::move(binding), call = std::move(call),
                kernels](std::atomic<bool>& stop) {
    Hooks hooks;
    if (kernels != nullptr) hooks.kernel = kernels->caller();
    return reported(member, call, [&] {
      return Progress{true, true,
                      run_bound(member, program, execution, false, hooks, *binding, call, stop,
                                /*kept=*/nullptr, /*alone=*/false)};
    });
  };
  return worker.submit({std::move(whole), /*blocks=*/true});
}

}  // namespace weft
