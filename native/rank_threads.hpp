// The threads of a rank: a worker for jobs in the background, and copy engines.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "doorbell.hpp"
#include "engine.hpp"
#include "worker.hpp"

namespace weft {

// Thread contract. Any thread may ask for the worker, wait for its jobs, close it and set whether it has a
// core. Everything else is for the thread inside the member's call guard, except that run() and
// need_engine() are also called by jobs of the worker: never while that thread uses engines (see
// PreparedProgram::run).
class RankThreads {
 public:
  // ``bell`` is the rank's; it wakes the worker's jobs and the threads that wait for them.
  explicit RankThreads(Doorbell& bell) : bell_(bell) {}
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  // Whether the worker has a core besides the caller's; read when the worker starts. Relaxed: it orders
  // nothing else.
  void set_core_for_worker(bool has) noexcept { has_core_for_worker_.store(has, std::memory_order_relaxed); }

  // Null until the first job. Acquire: another thread may just have created it.
  [[nodiscard]] Worker* worker() const noexcept { return worker_.load(std::memory_order_acquire); }
  [[nodiscard]] bool is_idle() const noexcept {
    const Worker* const made = worker();
    return made == nullptr || made->is_idle();
  }
  // Whether the calling thread is the worker's, which cannot join itself.
  [[nodiscard]] bool is_worker() const noexcept {
    const Worker* const made = worker();
    return made != nullptr && made->is_mine();
  }

  // The worker, with a thread.
  Worker& need_worker() {
    if (owned_worker_) {
      owned_worker_->start(has_core_for_worker());
    } else {
      owned_worker_ = std::make_unique<Worker>(has_core_for_worker(), &bell_);
      // Release: a thread that finds it finds it constructed.
      worker_.store(owned_worker_.get(), std::memory_order_release);
    }
    return *owned_worker_;
  }

  // Engines count from one. ``spins``: every waiting thread has a core.
  void need_engine(std::uint32_t number, bool spins) {
    if (engines_.size() < number) engines_.resize(number);
    if (!engines_[number - 1]) engines_[number - 1] = std::make_unique<Engine>(spins);
  }

  // Starts the worker and the engines up to that number; returns their thread ids, so that their
  // affinity and priority can be set.
  std::vector<pid_t> start(std::uint32_t num_engines, bool spins) {
    std::vector<pid_t> ids{need_worker().thread()};
    if (num_engines > 0) need_engine(num_engines, spins);
    for (std::uint32_t number = 1; number <= engines_.size(); ++number) {
      need_engine(number, spins);
      ids.push_back(engines_[number - 1]->thread());
    }
    return ids;
  }

  // Ends them while no job is in flight; new threads have default settings. Another thread may submit a
  // job meanwhile, which needs a worker.
  void end() {
    if (Worker* const made = worker()) {
      made->rest();
      if (!made->is_idle()) made->start(has_core_for_worker());
    }
    end_engines();
  }
  void end_engines() noexcept { engines_.clear(); }

  // Stops all jobs. The worker is not destroyed: threads may be waiting for its jobs.
  void close_worker() {
    if (Worker* const made = worker()) made->close();
  }

  // In a forked child, which has none of these threads to join.
  void abandon() noexcept {
    worker_.store(nullptr, std::memory_order_relaxed);  // the child has one thread: nothing to order
    static_cast<void>(owned_worker_.release());
    for (auto& engine : engines_) static_cast<void>(engine.release());
  }

  // Calls ``act(0)`` in this thread and ``act(i + 1)`` on the i-th of these engines, which exist. They use
  // the caller's stack, so this returns or throws after all have ended; after an exception ``stop`` makes
  // them end.
  template <class Act>
  void run(const std::vector<std::uint32_t>& engines, std::atomic<bool>& stop, const Act& act) {
    Joined joined{engines_, engines, stop};
    for (std::size_t i = 0; i < engines.size(); ++i) {
      engines_[engines[i] - 1]->start([&act, i] { act(i + 1); });
      ++joined.num_started;
    }
    act(0);
    joined.ended = true;
  }

 private:
  struct Joined {
    const std::vector<std::unique_ptr<Engine>>& all;
    const std::vector<std::uint32_t>& used;
    std::atomic<bool>& stop;
    std::size_t num_started = 0;
    bool ended = false;
    ~Joined() {
      // Relaxed: it only makes them stop; finish() orders what is read afterwards.
      if (!ended) stop.store(true, std::memory_order_relaxed);
      for (std::size_t i = 0; i < num_started; ++i) all[used[i] - 1]->finish();
    }
  };

  [[nodiscard]] bool has_core_for_worker() const noexcept {
    return has_core_for_worker_.load(std::memory_order_relaxed);
  }

  Doorbell& bell_;
  std::atomic<bool> has_core_for_worker_ = true;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::atomic<Worker*> worker_ = nullptr;
  std::unique_ptr<Worker> owned_worker_;  // last: its jobs use all of the above
};

}  // namespace weft
