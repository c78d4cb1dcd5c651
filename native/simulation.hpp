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

#include "fair_share.hpp"
#include "grids.hpp"

namespace weft {

enum class Step : uint8_t { kFlow = 0, kSignal = 1, kWait = 2, kLaunch = 3, kSubmit = 4, kNothing = 5 };

// Columns by row, by thread and by pool. -1 means none.
struct Rows {
  std::span<const uint8_t> step;
  std::span<const int32_t> thread;
  std::span<const int32_t> next;  // row after this one in its thread
  std::span<const double> before;  // seconds before it starts to act
  std::span<const double> size;    // of its flow
  std::span<const double> latency;  // of its signal
  std::span<const int32_t> flag;
  std::span<const int64_t> count;
  std::span<const int32_t> fed;     // number among the commands that are handed over
  std::span<const int32_t> target;  // thread that a submission feeds
  std::span<const int32_t> units;   // that a launch takes
  std::span<const int64_t> lanes_start;  // row r launches lanes[lanes_start[r] .. [r + 1])
  std::span<const int32_t> lanes;
  // Seconds from its start in which an opaque kernel keeps those behind it from being dispatched;
  // -1: a row that needs no dispatch. Empty where no kernel does.
  std::span<const double> dispatch = {};
};

struct Threads {
  std::span<const int32_t> first;   // row
  std::span<const int32_t> launch;  // the row that starts it, or -1: it starts at time zero
  std::span<const uint8_t> is_fed;  // whether its commands wait for submissions
  std::span<const double> fetch;    // seconds to fetch a submission
  std::span<const int32_t> pool;    // where its launches take units, or -1
  std::span<const int32_t> priority;
};

struct Pools {
  std::span<const int32_t> units;
  std::span<const int32_t> resource;  // whose capacity is the units that no launch holds, or -1
};

class Simulation {
 public:
  Simulation(Rows rows, Threads threads, Pools pools, Demands demands,
             std::span<const double> capacity, size_t num_flags, double tolerance,
             std::span<double> start, std::span<double> end, GridKernels kernels = {})
      : rows_(rows),
        threads_(threads),
        pools_(pools),
        share_(demands, capacity),
        tolerance_(tolerance),
        start_(start),
        end_(end),
        row_(threads.first.begin(), threads.first.end()),
        stage_(threads.first.size(), Stage::kArrive),
        batches_(threads.first.size()),
        batch_(threads.first.size(), 0),
        flags_(num_flags, 0),
        waiting_(num_flags),
        lanes_left_(rows.step.size(), 0),
        place_(demands.cap.size(), -1),
        held_(pools.units.size(), 0),
        queued_(pools.units.size()),
        kernels_(kernels),
        progress_(kernels.grids.tiles.size()),
        whole_(kernels.grids.tiles.size(), 0.0),
        grids_on_(pools.units.size()),
        dispatchers_(pools.units.size()),
        admit_(threads.first.size()),
        use_(capacity.size(), 0.0) {
    for (size_t r = 0; r < kernels.loads.first.size(); ++r) {
      if (kernels.loads.first[r] >= 0) slowed_.push_back({static_cast<int32_t>(r), capacity[r]});
    }
  }

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
    uint64_t version;  // of the solution it follows from
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  struct Batch {
    int64_t limit;  // commands with a smaller number are handed over
    int32_t hold;
    double fetched;  // when they can be there: fetching begins with the doorbell, busy or not
  };

  // A flow in progress, with all that a new solution asks of it in half a cache line.
  struct Running {
    double left;  // at the instant of the last solution
    double rate;
    int32_t row;
    FairShare::Pair pair;
  };

  template <typename T>
  static size_t at(T index) {
    return static_cast<size_t>(index);
  }

  void set(double time, What what, int32_t id, uint64_t version = 0) {
    events_.push({time, next_number_++, what, id, version});
  }

  void handle(const Event& event) {
    switch (event.what) {
      case What::kResume:
        runnable_.push_back(event.id);
        break;
      case What::kSignal:
        raise(event.id);
        break;
      case What::kFlowEnd:
        if (event.version == num_solves_) end_flow(event.id);
        break;
      case What::kLetGo:
        finish_flow(event.id);
        break;
      case What::kSolve:
        if (event.version == num_solves_) changed_ = true;
        break;
      case What::kGrant:
        if (event.version == num_solves_) grant(event.id, true);
        break;
      case What::kDispatch:
        dispatch_next(event.id);
        break;
    }
  }

  void drain_threads() {
    while (!runnable_.empty()) {
      const int32_t thread = runnable_.front();
      runnable_.pop_front();
      advance(thread);
    }
  }

  // Lets every thread go as far as it can at this instant, then shares the resources anew.
  void drain() {
    drain_threads();
    if (!changed_) return;
    if (!events_.empty() && events_.top().time == now_) return;  // more happens at this instant
    solve();
  }

  void solve() {
    changed_ = false;
    if (!fresh_.empty()) begun_ = now_;
    for (const int32_t flow : fresh_) {
      share_.add(flow);
      place_[at(flow)] = static_cast<int32_t>(running_.size());
      running_.push_back({rows_.size[at(flow)], 0.0, flow, share_.pair(flow)});
      if (grid_of(flow) >= 0) begin_grid(flow);
    }
    fresh_.clear();
    if (tolerance_ > 0) let_go();
    fit_grids();
    share_.solve();
    if (num_grids_ > 0 || loaded_) load();
    ++num_solves_;
    const double wait = share_out();
    if (wait < kInfinity) set_ends(wait);
    if (num_grids_ > 0) set_grants();
  }

  int32_t grid_of(int32_t row) const {
    return kernels_.grids.of_row.empty() ? -1 : kernels_.grids.of_row[at(row)];
  }

  int32_t pool_of(int32_t row) const { return threads_.pool[at(rows_.thread[at(row)])]; }

  double left_of(int32_t row) const {
    const Running& flow = running_[at(place_[at(row)])];
    return std::max(0.0, flow.left - flow.rate * (now_ - solved_at_));
  }

  // The units that a grid has now: those that no launch holds, shared with other grids.
  int32_t units_of(int32_t row) const {
    const auto& on = grids_on_[at(pool_of(row))];
    const int32_t free = pools_.units[at(pool_of(row))] - held_[at(pool_of(row))];
    int64_t wanted = 0;
    for (const int32_t each : on) wanted += kernels_.grids.units[at(grid_of(each))];
    const int64_t mine = kernels_.grids.units[at(grid_of(row))];
    return static_cast<int32_t>(wanted <= free ? mine : mine * free / wanted);
  }

  // How much of the span since its units last changed has passed, in tiles.
  double passed_of(int32_t row) const {
    const auto grid = at(grid_of(row));
    const double span = progress_[grid].span();
    return span < kInfinity ? span * (1 - left_of(row) / whole_[grid]) : 0.0;
  }

  void begin_grid(int32_t row) {
    grids_on_[at(pool_of(row))].push_back(row);
    ++num_grids_;
    const auto grid = at(grid_of(row));
    whole_[grid] = 0;  // not started
  }

  // Gives every grid the rate that its units allow, and the traffic that they cause.
  void fit_grids() {
    if (num_grids_ == 0) return;
    const Grids& grids = kernels_.grids;
    for (const auto& on : grids_on_) {
      for (const int32_t row : on) {
        const auto grid = at(grid_of(row));
        const int32_t units = units_of(row);
        const double left = left_of(row);
        if (whole_[grid] <= 0) {
          progress_[grid] = Progress(grids.tiles[grid], units, grids.fixed[grid] != 0);
          whole_[grid] = left;
        } else if (units != progress_[grid].units()) {
          progress_[grid].change(passed_of(row), units);
          whole_[grid] = left;
        }
        const double seconds = progress_[grid].span() * grids.tile_seconds[grid];
        share_.set_cap(row, seconds > 0 ? whole_[grid] / seconds : kLarge);
        if (grids.edge[grid] >= 0) {
          share_.set_weight(grids.edge[grid], grids.traffic[at(grids.traffic_start[grid]) + at(units)]);
        }
      }
    }
  }

  // Computation that keeps memory and caches busy makes requests take longer. Whoever keeps only
  // as many in flight as an idle memory needs moves that much less: capacities follow the load.
  void load() {
    if (slowed_.empty()) return;
    loaded_ = num_grids_ > 0;
    for (const auto& on : grids_on_) {
      for (const int32_t row : on) add_use(row, share_.rate(row));
    }
    for (const auto& [resource, capacity] : slowed_) {
      const double busy = load_of(kernels_.loads.first[at(resource)]) +
                          load_of(kernels_.loads.second[at(resource)]);
      share_.set_capacity(resource, capacity / (1 + kernels_.loads.stretch * busy));
    }
    for (const auto& on : grids_on_) {
      for (const int32_t row : on) forget_use(row);
    }
    share_.solve();
  }

  void add_use(int32_t row, double rate) {
    for (int64_t e = share_.starts()[at(row)]; e < share_.starts()[at(row) + 1]; ++e) {
      use_[at(share_.resources()[at(e)])] += share_.weight(e) * rate;
    }
  }

  void forget_use(int32_t row) {
    for (int64_t e = share_.starts()[at(row)]; e < share_.starts()[at(row) + 1]; ++e) {
      use_[at(share_.resources()[at(e)])] = 0.0;
    }
  }

  double load_of(int32_t resource) const {
    return resource < 0 ? 0.0 : std::min(1.0, use_[at(resource)] / share_.capacity(resource));
  }

  // Sets the ends of the flows that are first to end, which takes `wait` seconds from now, and of
  // those so shortly behind them that it makes no difference.
  void set_ends(double wait) {
    const double first = now_ + wait;
    const double slack = std::max(tolerance_ / 2 * (first - begun_), 1e-12 * first);
    ending_.clear();
    for (const Running& flow : running_) {
      if (flow.left <= (wait + slack) * flow.rate) ending_.push_back(flow.row);
    }
    std::sort(ending_.begin(), ending_.end());
    for (const int32_t row : ending_) {
      const Running& flow = running_[at(place_[at(row)])];
      const bool apart = tolerance_ > 0 && flow.left > 0;
      set(apart ? now_ + flow.left / flow.rate : first, What::kFlowEnd, row, num_solves_);
    }
    if (tolerance_ > 0) set(first + slack, What::kSolve, 0, num_solves_);
  }

  // With a tolerance, rates are shared anew only behind a window of ends. What ended inside it
  // left its share unused for up to half the tolerance; in return, what will end within half the
  // tolerance from now on keeps its rate but is no longer counted. The two errors cancel. Windows
  // are measured from the last begin of a flow, so that no flow is short beside one.
  void let_go() {
    const double soon = now_ - solved_at_ + tolerance_ / 2 * (now_ - begun_);
    for (size_t i = running_.size(); i-- > 0;) {
      const Running flow = running_[i];
      if (flow.left > soon * flow.rate) continue;
      const double end = flow.left > 0 ? solved_at_ + flow.left / flow.rate : now_;
      set(std::max(end, now_), What::kLetGo, flow.row);
      drop(flow.row);
    }
  }

  // Brings every running flow up to this instant, gives it its new rate, and returns how long it
  // takes until the first ends.
  double share_out() {
    const double passed = now_ - solved_at_;
    solved_at_ = now_;
    double wait = kInfinity;
    for (Running& flow : running_) {
      const double rate = share_.rate(flow.row, flow.pair);
      const bool limited = rate < kInfinity;  // what nothing limits ends at once
      flow.left = limited ? std::max(0.0, flow.left - flow.rate * passed) : 0.0;
      flow.rate = limited ? rate : 0.0;
      if (flow.left <= 0) wait = 0.0;
      if (flow.left < wait * flow.rate) wait = flow.left / flow.rate;  // a division only for a new first
    }
    return wait;
  }

  // Takes a flow out of those that share; the last one takes its place.
  void drop(int32_t row) {
    share_.remove(row);
    const int32_t place = place_[at(row)];
    running_[at(place)] = running_.back();
    place_[at(running_.back().row)] = place;
    running_.pop_back();
    if (grid_of(row) < 0) return;
    std::erase(grids_on_[at(pool_of(row))], row);
    --num_grids_;
  }

  void end_flow(int32_t row) {
    drop(row);
    if (tolerance_ <= 0) changed_ = true;
    finish_flow(row);
  }

  void finish_flow(int32_t row) {
    complete(rows_.thread[at(row)]);
    runnable_.push_back(rows_.thread[at(row)]);
    if (grid_of(row) >= 0) grant(pool_of(row), true);
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
        case Stage::kEnd:
          break;
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
      case Step::kFlow:
        return !begin_flow(row);
      case Step::kSignal:
        send(row);
        return true;
      case Step::kWait:
        return !must_wait(thread, row);
      case Step::kLaunch:
        return !launch(thread, row);
      case Step::kSubmit:
        submit(row);
        return true;
      case Step::kNothing:
        return true;
    }
    return true;
  }

  bool begin_flow(int32_t row) {
    if (rows_.size[at(row)] <= 0) return false;
    fresh_.push_back(row);
    changed_ = true;
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
      admit_[at(thread)] = admission(pool, thread, rows_.units[at(row)]);
      grant(pool, false);
      if (admit_[at(thread)].row >= 0) changed_ = true;  // so that its turn is set
      return true;  // its lanes or, if it has none, its place in runnable_ end it
    }
    return start_lanes(row);
  }

  // Gives units to waiting launches: higher priority first, then in the order they came.
  void grant(int32_t pool, bool waited) {
    auto& queue = queued_[at(pool)];
    while (!queue.empty()) {
      auto best = std::max_element(queue.begin(), queue.end(), [this](int32_t a, int32_t b) {
        return threads_.priority[at(a)] < threads_.priority[at(b)];
      });
      const int32_t thread = *best;
      const int32_t row = row_[at(thread)];
      if (held_[at(pool)] + rows_.units[at(row)] > pools_.units[at(pool)]) return;
      if (waits_for_grid(thread)) return;
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

  // Up to which point of which grid a launch waits for its workgroups to be admitted.
  struct Admission {
    int32_t row = -1;
    double left = 0;  // of the grid's flow
  };

  bool waits_for_grid(int32_t thread) const {
    const Admission& admit = admit_[at(thread)];
    if (admit.row < 0 || place_[at(admit.row)] < 0 || !runs(admit.row)) return false;
    return left_of(admit.row) > admit.left + 1e-9 * rows_.size[at(admit.row)];
  }

  bool runs(int32_t row) const {
    const auto& on = grids_on_[at(pool_of(row))];
    return std::find(on.begin(), on.end(), row) != on.end();
  }

  // Workgroups are dispatched in the order of their kernels. A grid that came first fills every
  // slot; of those that come free the launch gets its share, or all that are left when the grid
  // has none waiting any more. Tiles end together, wave by wave. Asking with a higher priority it
  // gets every slot that comes free.
  Admission admission(int32_t pool, int32_t thread, int32_t units) const {
    Admission found;
    for (const int32_t row : grids_on_[at(pool)]) {
      const auto grid = at(grid_of(row));
      const Progress& progress = progress_[grid];
      if (whole_[grid] <= 0 || progress.units() <= 0) continue;
      const double passed = passed_of(row);
      const double spare = pools_.units[at(pool)] - held_[at(pool)] - progress.units();
      const double need = units - std::max(0.0, spare);
      if (need <= 0) continue;
      const double slots = kernels_.grids.slots[grid];
      const double wave = progress.admission(passed, need, share_for(thread, row), slots);
      if (wave <= passed) continue;
      const double left = whole_[grid] * std::max(0.0, 1 - wave / progress.span());
      if (found.row < 0) found = {row, left};
    }
    return found;
  }

  double share_for(int32_t thread, int32_t row) const {
    const auto mine = threads_.priority[at(thread)];
    const bool first = mine > threads_.priority[at(rows_.thread[at(row)])];
    return first ? 1.0 : kernels_.dispatch_share;
  }

  void set_grants() {
    for (size_t pool = 0; pool < queued_.size(); ++pool) {
      for (const int32_t thread : queued_[pool]) {
        if (!waits_for_grid(thread)) continue;
        const Admission& admit = admit_[at(thread)];
        const double rate = running_[at(place_[at(admit.row)])].rate;
        const double wait = (left_of(admit.row) - admit.left) / rate;
        if (rate > 0) set(now_ + wait, What::kGrant, static_cast<int32_t>(pool), num_solves_);
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
    if (!grids_on_[at(pool)].empty()) changed_ = true;
    const int32_t resource = pools_.resource[at(pool)];
    if (resource >= 0) {
      share_.set_capacity(resource, pools_.units[at(pool)] - held_[at(pool)]);
      changed_ = true;
    }
  }

  void release(int32_t row) {
    const int32_t pool = threads_.pool[at(rows_.thread[at(row)])];
    if (pool < 0 || rows_.units[at(row)] <= 0) return;
    hold(pool, -rows_.units[at(row)]);
    if (!queued_[at(pool)].empty()) grant(pool, true);
  }

  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr double kLarge = 1e300;  // a cap of what takes no time

  Rows rows_;
  Threads threads_;
  Pools pools_;
  FairShare share_;
  double tolerance_;
  std::span<double> start_;
  std::span<double> end_;

  std::vector<int32_t> row_;  // where each thread stands
  std::vector<Stage> stage_;
  std::vector<std::vector<Batch>> batches_;  // what was handed over to each thread
  std::vector<size_t> batch_;                // the one it stands in
  std::vector<int64_t> flags_;
  std::vector<std::vector<int32_t>> waiting_;  // threads, by flag
  std::vector<int32_t> lanes_left_;            // by launch row
  std::vector<Running> running_;
  std::vector<int32_t> ending_;
  std::vector<int32_t> place_;               // of a flow in running_
  std::vector<int32_t> held_;                  // units, by pool
  std::vector<std::deque<int32_t>> queued_;    // threads at a launch, by pool

  GridKernels kernels_;
  std::vector<Progress> progress_;              // by grid
  std::vector<double> whole_;                   // what was left of its flow when its units changed
  std::vector<std::vector<int32_t>> grids_on_;  // rows of grids that run, by pool
  std::vector<Dispatcher> dispatchers_;         // by pool
  std::vector<Admission> admit_;                // by thread
  std::vector<double> use_;                     // of resources by grids, while it is summed up
  struct Slowed {
    int32_t resource;
    double capacity;  // without load
  };
  std::vector<Slowed> slowed_;
  int32_t num_grids_ = 0;
  bool loaded_ = false;

  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::deque<int32_t> runnable_;
  std::vector<int32_t> fresh_;  // flows that begin at this instant
  double now_ = 0;
  double solved_at_ = 0;
  double begun_ = 0;  // when the youngest flow began
  bool changed_ = false;
  uint64_t next_number_ = 0;
  uint64_t num_solves_ = 0;
  uint64_t turns_ = 0;
};

}  // namespace weft
