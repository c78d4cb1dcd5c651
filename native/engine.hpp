// A copy engine: a thread that does one job at a time and sleeps between them.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace weft {

class Engine {
 public:
  Engine() : thread_([this] { serve(); }) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() {
    {
      const std::scoped_lock lock(mutex_);
      closing_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  // The job must not throw, and the last one must have ended.
  void start(std::function<void()> job) {
    {
      const std::scoped_lock lock(mutex_);
      job_ = std::move(job);
      busy_ = true;
    }
    wake_.notify_all();
  }

  // Returns when the job has ended, which every job does by its own deadline; what it wrote
  // is visible then.
  void finish() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return !busy_; });
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return closing_ || (busy_ && job_); });
      if (!job_) return;
      const std::function<void()> job = std::exchange(job_, nullptr);
      lock.unlock();
      job();
      lock.lock();
      busy_ = false;
      wake_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::function<void()> job_;
  bool busy_ = false;
  bool closing_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace weft
