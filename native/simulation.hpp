// Threads of commands in time: flags, launches, submissions, and flows that share resources.
//
// The commands come priced: how long each takes before its bytes move, what it demands while
// they do, and how late its signal arrives. This file only lets time pass.
#pragma once

#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <span>
#include <vector>

#include "grid_scheduler.hpp"
#include "running_flows.hpp"
#include "simulation_rows.hpp"

namespace weft {

class Simulation {
 public:
  Simulation(Rows rows, Threads threads, Pools pools, Demands demands, std::span<const double> capacity,
             size_t num_flags, double tolerance, std::span<double> start, std::span<double> end,
             GridKernels kernels = {})
      : rows_(rows),
        threads_(threads),
        pools_(pools),
        components_(rows_, threads_, pools_, demands, kernels, capacity.size()),
        flows_(demands, capacity, rows_.size, tolerance, components_),
        start_(start),
        end_(end),
        row_(threads.first.begin(), threads.first.end()),
        stage_(threads.first.size(), Stage::kArrive),
        batches_(threads.first.size()),
        batch_(threads.first.size(), 0),
        flags_(num_flags, 0),
        waiting_(num_flags),
        lanes_left_(rows.step.size(), 0),
        held_(pools.units.size(), 0),
        queued_(pools.units.size()),
        grids_(rows_, threads_, pools_, kernels, flows_, capacity, held_, components_),
        dispatchers_(pools.units.size()),
        admit_(threads.first.size()),
        version_(at(components_.count), 0),
        is_changed_(at(components_.count), false) {}
  Simulation(const Simulation&) = delete;  // its parts refer to each other
  Simulation& operator=(const Simulation&) = delete;

  // Runs to the end. `alive` is asked now and then whether to go on.
  void run(const std::function<void()>& alive) {
    for (size_t t = 0; t < threads_.first.size(); ++t) {
      if (threads_.launch[t] < 0) runnable_.push_back(static_cast<int32_t>(t));
    }
    drain();
    while (!events_.empty()) {
      const double time = events_.top().time;
      now_ = time;
      while (!events_.empty() && events_.top().time == time) {
        const Event event = events_.top();
        events_.pop();
        handle(event);
        drain_threads();
      }
      drain();
      if ((++turns_ & 0xfff) == 0) alive();
    }
  }

  uint64_t num_solves() const { return num_solves_; }

 private:
  enum class Stage : uint8_t { kArrive, kStarved, kHeld, kFetched, kBehind, kAct, kEnd };
  enum class What : uint8_t { kResume, kSignal, kFlowEnd, kLetGo, kSolve, kGrant, kDispatch };
  struct Event {
    double time;
    uint64_t number;  // equal times keep the order in which they were set
    What what;
    int32_t id;
    uint64_t version;  // of its component's solution that it follows from
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  struct Batch {
    int64_t limit;  // commands with a smaller number are handed over
    int32_t hold;
    double fetched;  // when they can be there: fetching begins with the doorbell, busy or not
  };

  void set(double time, What what, int32_t id, uint64_t version = 0) {
    events_.push({time, next_number_++, what, id, version});
  }

  void handle(const Event& event) {
    switch (event.what) {
      case What::kResume: runnable_.push_back(event.id); break;
      case What::kSignal: raise(event.id); break;
      case What::kFlowEnd:
        if (event.version == version_[at(components_.of_flow[at(event.id)])]) end_flow(event.id);
        break;
      case What::kLetGo: finish_flow(event.id); break;
      case What::kSolve:
        if (event.version == version_[at(event.id)]) change(event.id);
        break;
      case What::kGrant:
        if (event.version == version_[at(components_.of_pool[at(event.id)])]) grant(event.id, true);
        break;
      case What::kDispatch: dispatch_next(event.id); break;
    }
  }

  void drain_threads() {
    while (!runnable_.empty()) {
      const int32_t thread = runnable_.front();
      runnable_.pop_front();
      advance(thread);
    }
  }

  // Advances every thread as far as it can at this instant, then shares the resources anew.
  void drain() {
    drain_threads();
    if (changed_.empty()) return;
    if (!events_.empty() && events_.top().time == now_) return;  // more happens at this instant
    for (const int32_t component : changed_) {
      is_changed_[at(component)] = false;
      solve(component);
    }
    changed_.clear();
  }

  // Rates of a component are shared out anew at the end of this instant.
  void change(int32_t component) {
    if (is_changed_[at(component)]) return;
    is_changed_[at(component)] = true;
    changed_.push_back(component);
  }

  void solve(int32_t component) {
    flows_.join(component, now_, [this](int32_t row) { grids_.begin(row); });
    if (!flows_.is_exact()) {
      flows_.let_go(component, now_, [this](int32_t row, double time) {
        set(time, What::kLetGo, row);
        drop(row);
      });
    }
    grids_.solve(component, now_);
    ++num_solves_;
    const uint64_t version = ++version_[at(component)];
    const double wait = flows_.share_out(component, now_);
    if (wait < RunningFlows::kNever) {
      const double last = flows_.each_ending(
          component, now_, wait, [&](int32_t row, double time) { set(time, What::kFlowEnd, row, version); });
      if (!flows_.is_exact()) set(last, What::kSolve, component, version);
    }
    if (!grids_.empty(component)) set_grants(component);
  }

  void drop(int32_t row) {
    flows_.drop(row);
    grids_.end(row);
  }

  void end_flow(int32_t row) {
    drop(row);
    if (flows_.is_exact()) change(components_.of_flow[at(row)]);
    finish_flow(row);
  }

  void finish_flow(int32_t row) {
    complete(rows_.thread[at(row)]);
    runnable_.push_back(rows_.thread[at(row)]);
    if (grids_.is_grid(row)) grant(threads_.pool[at(rows_.thread[at(row)])], true);
  }

  void raise(int32_t flag) {
    ++flags_[at(flag)];
    auto& waiting = waiting_[at(flag)];
    // Few wait for one flag; those that still cannot go stay in their order.
    std::erase_if(waiting, [this, flag](int32_t thread) {
      if (flags_[at(flag)] < threshold(thread)) return false;
      runnable_.push_back(thread);
      return true;
    });
  }

  int64_t threshold(int32_t thread) const {
    return stage_[at(thread)] == Stage::kAct ? rows_.count[at(row_[at(thread)])] : 1;
  }

  void advance(int32_t thread) {
    while (row_[at(thread)] >= 0) {
      const int32_t row = row_[at(thread)];
      switch (stage_[at(thread)]) {
        case Stage::kArrive:
        case Stage::kStarved:
        case Stage::kHeld:
          if (!handed_over(thread, row)) return;
          [[fallthrough]];
        case Stage::kFetched:
        case Stage::kBehind:
          if (!dispatched(thread, row)) return;
          start_[at(row)] = now_;
          stage_[at(thread)] = Stage::kAct;
          if (rows_.before[at(row)] > 0) {
            set(now_ + rows_.before[at(row)], What::kResume, thread);
            return;
          }
          [[fallthrough]];
        case Stage::kAct:
          if (!act(thread, row)) return;
          break;
        case Stage::kEnd: break;
      }
      complete(thread);
    }
    finish_thread(thread);
  }

  // Ends the thread's command at this instant and moves on to the next.
  void complete(int32_t thread) {
    const int32_t row = row_[at(thread)];
    end_[at(row)] = now_;
    row_[at(thread)] = rows_.next[at(row)];
    stage_[at(thread)] = Stage::kArrive;
  }

  void finish_thread(int32_t thread) {
    const int32_t launch = threads_.launch[at(thread)];
    if (launch < 0) return;
    if (--lanes_left_[at(launch)] == 0) {
      release(launch);
      const int32_t parent = rows_.thread[at(launch)];
      complete(parent);
      runnable_.push_back(parent);
    }
  }

  // Whether the command may start; sets what wakes the thread where not.
  bool handed_over(int32_t thread, int32_t row) {
    const int32_t number = rows_.fed[at(row)];
    if (!threads_.is_fed[at(thread)] || number < 0) return true;
    auto& batches = batches_[at(thread)];
    auto& current = batch_[at(thread)];
    while (current < batches.size() && number >= batches[current].limit) ++current;
    if (current == batches.size()) {
      stage_[at(thread)] = Stage::kStarved;
      return false;  // a submission wakes it
    }
    if (number != (current == 0 ? 0 : batches[current - 1].limit)) return true;
    const Batch& batch = batches[current];  // this command is its first
    if (batch.hold >= 0) {
      if (flags_[at(batch.hold)] >= 1) return true;
      stage_[at(thread)] = Stage::kHeld;
      waiting_[at(batch.hold)].push_back(thread);
      return false;
    }
    if (batch.fetched <= now_) return true;
    stage_[at(thread)] = Stage::kFetched;
    set(batch.fetched, What::kResume, thread);
    return false;
  }

  // Workgroups are dispatched in the order of their kernels: while one that does not fit at once
  // has some waiting, none of another stream starts, unless that has a higher priority.
  struct Dispatcher {
    double until = 0;
    int32_t thread = -1;  // that keeps it
    std::vector<int32_t> behind;
  };

  bool dispatched(int32_t thread, int32_t row) {
    if (rows_.dispatch.empty() || rows_.dispatch[at(row)] < 0) return true;
    Dispatcher& mine = dispatchers_[at(threads_.pool[at(thread)])];
    if (mine.until > now_ && mine.thread != thread &&
        threads_.priority[at(thread)] <= threads_.priority[at(mine.thread)]) {
      stage_[at(thread)] = Stage::kBehind;
      mine.behind.push_back(thread);
      return false;
    }
    const double until = now_ + rows_.dispatch[at(row)];
    if (until > now_ && until >= mine.until) {
      mine.until = until;
      mine.thread = thread;
      set(until, What::kDispatch, threads_.pool[at(thread)]);
    }
    return true;
  }

  void dispatch_next(int32_t pool) {
    Dispatcher& mine = dispatchers_[at(pool)];
    if (mine.until > now_) return;  // another has come since
    runnable_.insert(runnable_.end(), mine.behind.begin(), mine.behind.end());
    mine.behind.clear();
  }

  // Does what the command does; false where it takes time.
  bool act(int32_t thread, int32_t row) {
    switch (static_cast<Step>(rows_.step[at(row)])) {
      case Step::kFlow: return !begin_flow(row);
      case Step::kSignal: send(row); return true;
      case Step::kWait: return !must_wait(thread, row);
      case Step::kLaunch: return !launch(thread, row);
      case Step::kSubmit: submit(row); return true;
      case Step::kNothing: return true;
    }
    return true;
  }

  bool begin_flow(int32_t row) {
    if (rows_.size[at(row)] <= 0) return false;
    flows_.begin(row);
    change(components_.of_flow[at(row)]);
    return true;
  }

  void send(int32_t row) {
    const double latency = rows_.latency[at(row)];
    if (latency > 0) {
      set(now_ + latency, What::kSignal, rows_.flag[at(row)]);
    } else {
      raise(rows_.flag[at(row)]);
    }
  }

  bool must_wait(int32_t thread, int32_t row) {
    const int32_t flag = rows_.flag[at(row)];
    if (flags_[at(flag)] >= rows_.count[at(row)]) return false;
    waiting_[at(flag)].push_back(thread);
    return true;
  }

  void submit(int32_t row) {
    const int32_t target = rows_.target[at(row)];
    auto& batches = batches_[at(target)];
    const int64_t before = batches.empty() ? 0 : batches.back().limit;
    const double fetched = now_ + threads_.fetch[at(target)];
    batches.push_back({before + rows_.count[at(row)], rows_.flag[at(row)], fetched});
    if (stage_[at(target)] != Stage::kStarved) return;
    stage_[at(target)] = Stage::kArrive;  // woken once, however many submissions come now
    runnable_.push_back(target);
  }

  // Starts the lanes as soon as there are units for them. True: the thread must wait.
  bool launch(int32_t thread, int32_t row) {
    const int32_t pool = threads_.pool[at(thread)];
    if (pool >= 0 && rows_.units[at(row)] > 0) {
      queued_[at(pool)].push_back(thread);
      admit_[at(thread)] = grids_.admission(pool, thread, rows_.units[at(row)], now_);
      grant(pool, false);
      if (admit_[at(thread)].row >= 0) change(components_.of_pool[at(pool)]);  // so that its turn is set
      return true;  // its lanes or, if it has none, its place in runnable_ end it
    }
    return start_lanes(row);
  }

  // Assigns units to waiting launches: higher priority first, then in the order they came.
  void grant(int32_t pool, bool waited) {
    auto& queue = queued_[at(pool)];
    while (!queue.empty()) {
      auto best = std::max_element(queue.begin(), queue.end(), [this](int32_t a, int32_t b) {
        return threads_.priority[at(a)] < threads_.priority[at(b)];
      });
      const int32_t thread = *best;
      const int32_t row = row_[at(thread)];
      if (held_[at(pool)] + rows_.units[at(row)] > pools_.units[at(pool)]) return;
      if (grids_.is_waited_for(admit_[at(thread)], now_)) return;
      queue.erase(best);
      if (waited || admit_[at(thread)].row >= 0) start_[at(row)] = now_;  // it runs from here on
      hold(pool, rows_.units[at(row)]);
      if (!start_lanes(row)) {
        release(row);
        stage_[at(thread)] = Stage::kEnd;
        runnable_.push_back(thread);
      }
    }
  }

  void set_grants(int32_t component) {
    for (const size_t pool : grids_.pools(component)) {
      for (const int32_t thread : queued_[pool]) {
        const GridScheduler::Admission& admit = admit_[at(thread)];
        if (!grids_.is_waited_for(admit, now_)) continue;
        const double rate = flows_.rate(admit.row);
        const double wait = (flows_.left(admit.row, now_) - admit.left) / rate;
        const uint64_t version = version_[at(component)];
        if (rate > 0) set(now_ + wait, What::kGrant, static_cast<int32_t>(pool), version);
      }
    }
  }

  bool start_lanes(int32_t row) {
    const int64_t first = rows_.lanes_start[at(row)];
    const int64_t last = rows_.lanes_start[at(row) + 1];
    lanes_left_[at(row)] = static_cast<int32_t>(last - first);
    for (int64_t lane = first; lane < last; ++lane) runnable_.push_back(rows_.lanes[at(lane)]);
    return last > first;
  }

  void hold(int32_t pool, int32_t units) {
    held_[at(pool)] += units;
    if (grids_.any_on(pool)) change(components_.of_pool[at(pool)]);
    const int32_t resource = pools_.resource[at(pool)];
    if (resource >= 0) {
      flows_.share().set_capacity(resource, pools_.units[at(pool)] - held_[at(pool)]);
      change(components_.of_resource[at(resource)]);
    }
  }

  void release(int32_t row) {
    const int32_t pool = threads_.pool[at(rows_.thread[at(row)])];
    if (pool < 0 || rows_.units[at(row)] <= 0) return;
    hold(pool, -rows_.units[at(row)]);
    if (!queued_[at(pool)].empty()) grant(pool, true);
  }

  Rows rows_;
  Threads threads_;
  Pools pools_;
  Components components_;
  RunningFlows flows_;
  std::span<double> start_;
  std::span<double> end_;

  std::vector<int32_t> row_;  // where each thread stands
  std::vector<Stage> stage_;
  std::vector<std::vector<Batch>> batches_;  // what was handed over to each thread
  std::vector<size_t> batch_;                // the one it stands in
  std::vector<int64_t> flags_;
  std::vector<std::vector<int32_t>> waiting_;  // threads, by flag
  std::vector<int32_t> lanes_left_;            // by launch row
  std::vector<int32_t> held_;                  // units, by pool
  std::vector<std::deque<int32_t>> queued_;    // threads at a launch, by pool

  GridScheduler grids_;
  std::vector<Dispatcher> dispatchers_;          // by pool
  std::vector<GridScheduler::Admission> admit_;  // by thread

  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::deque<int32_t> runnable_;
  double now_ = 0;
  std::vector<int32_t> changed_;   // components to be shared out anew
  std::vector<uint64_t> version_;  // how often each component was
  std::vector<bool> is_changed_;
  uint64_t next_number_ = 0;
  uint64_t num_solves_ = 0;
  uint64_t turns_ = 0;
};

}  // namespace weft
