// Grids of tiles that run: the units each has, how fast its flow may be, and when it lets others in.
//
// Grids share the units of their pool that no launch holds. What they take of memory, caches and
// power slows other flows down, and the other way round.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "components.hpp"
#include "grids.hpp"
#include "running_flows.hpp"
#include "simulation_rows.hpp"

namespace weft {

class GridScheduler {
 public:
  // `held` are the units of each pool that launches hold; their owner changes them.
  GridScheduler(const Rows& rows, const Threads& threads, const Pools& pools, GridKernels kernels,
                RunningFlows& flows, std::span<const double> capacity, const std::vector<int32_t>& held,
                const Components& components)
      : rows_(rows),
        threads_(threads),
        pools_(pools),
        kernels_(kernels),
        flows_(flows),
        share_(flows.share()),
        held_(held),
        progress_(kernels.grids.tiles.size()),
        whole_(kernels.grids.tiles.size(), 0.0),
        on_(pools.units.size()),
        component_(components.of_pool),
        parts_(at(components.count)),
        use_(capacity.size(), 0.0),
        drawn_(pools.units.size(), 0.0) {
    for (size_t pool = 0; pool < pools.units.size(); ++pool) {
      parts_[at(component_[pool])].pools.push_back(pool);
    }
    for (size_t r = 0; r < kernels.loads.first.size(); ++r) {
      if (kernels.loads.first[r] < 0) continue;
      parts_[at(components.of_resource[r])].slowed.push_back({static_cast<int32_t>(r), capacity[r]});
    }
  }

  bool empty(int32_t component) const { return parts_[at(component)].num_running == 0; }
  // Pools whose units decide about the flows of a component.
  const std::vector<size_t>& pools(int32_t component) const { return parts_[at(component)].pools; }
  bool any_on(int32_t pool) const { return !on_[at(pool)].empty(); }
  bool is_grid(int32_t row) const { return grid_of(row) >= 0; }

  void begin(int32_t row) {
    if (!is_grid(row)) return;
    on_[at(pool_of(row))].push_back(row);
    ++parts_[at(component_[at(pool_of(row))])].num_running;
    whole_[at(grid_of(row))] = 0;  // not started
  }

  void end(int32_t row) {
    if (!is_grid(row)) return;
    std::erase(on_[at(pool_of(row))], row);
    --parts_[at(component_[at(pool_of(row))])].num_running;
  }

  // Solves the shares of a component's flows, with the rates that grids have and what they do to others.
  void solve(int32_t component, double now) {
    fit(component, now);
    share_.solve(component);
    if (!empty(component) || parts_[at(component)].loaded) load(component);
    if (!empty(component) && kernels_.clocks.unit_watts > 0) slow_clocks(component);
  }

  // Up to which point of which grid a launch waits for its workgroups to be admitted.
  struct Admission {
    int32_t row = -1;
    double left = 0;  // of the grid's flow
  };

  // Workgroups are dispatched in the order of their kernels. A grid that came first fills every
  // slot; of those that come free the launch gets its share, or all that are left when the grid
  // has none waiting any more. Tiles end together, wave by wave. Asking with a higher priority it
  // gets every slot that comes free.
  Admission admission(int32_t pool, int32_t thread, int32_t units, double now) const {
    for (const int32_t row : on_[at(pool)]) {
      const auto grid = at(grid_of(row));
      const Progress& progress = progress_[grid];
      if (whole_[grid] <= 0 || progress.units() <= 0) continue;
      const double passed = passed_of(row, now);
      const double spare = pools_.units[at(pool)] - held_[at(pool)] - progress.units();
      const double need = units - std::max(0.0, spare);
      if (need <= 0) continue;
      const bool first = threads_.priority[at(thread)] > threads_.priority[at(rows_.thread[at(row)])];
      const double share = first ? 1.0 : kernels_.dispatch_share;
      const double wave = progress.admission(passed, need, share, kernels_.grids.slots[grid]);
      if (wave <= passed) continue;
      return {row, whole_[grid] * std::max(0.0, 1 - wave / progress.span())};
    }
    return {};
  }

  // Whether the grid that a launch waits for has not come to that point yet.
  bool is_waited_for(const Admission& admit, double now) const {
    if (admit.row < 0 || !flows_.has(admit.row)) return false;
    const auto& on = on_[at(pool_of(admit.row))];
    if (std::find(on.begin(), on.end(), admit.row) == on.end()) return false;
    return flows_.left(admit.row, now) > admit.left + 1e-9 * rows_.size[at(admit.row)];
  }

 private:
  int32_t grid_of(int32_t row) const {
    return kernels_.grids.of_row.empty() ? -1 : kernels_.grids.of_row[at(row)];
  }

  int32_t pool_of(int32_t row) const { return threads_.pool[at(rows_.thread[at(row)])]; }

  // The units that a grid has now: those that no launch holds, shared with other grids.
  int32_t units_of(int32_t row) const {
    const auto& on = on_[at(pool_of(row))];
    const int32_t free = pools_.units[at(pool_of(row))] - held_[at(pool_of(row))];
    int64_t wanted = 0;
    for (const int32_t each : on) wanted += kernels_.grids.units[at(grid_of(each))];
    const int64_t mine = kernels_.grids.units[at(grid_of(row))];
    return static_cast<int32_t>(wanted <= free ? mine : mine * free / wanted);
  }

  // How much of the span since its units last changed has passed, in tiles.
  double passed_of(int32_t row, double now) const {
    const auto grid = at(grid_of(row));
    const double span = progress_[grid].span();
    return span < RunningFlows::kNever ? span * (1 - flows_.left(row, now) / whole_[grid]) : 0.0;
  }

  // Sets for every grid the rate that its units allow, and the traffic that they cause.
  void fit(int32_t component, double now) {
    if (empty(component)) return;
    const Grids& grids = kernels_.grids;
    for (const size_t pool : pools(component)) {
      for (const int32_t row : on_[pool]) {
        const auto grid = at(grid_of(row));
        const int32_t units = units_of(row);
        const double left = flows_.left(row, now);
        if (whole_[grid] <= 0) {
          progress_[grid] = Progress(grids.tiles[grid], units);
          whole_[grid] = left;
        } else if (units != progress_[grid].units()) {
          progress_[grid].change(passed_of(row, now), units);
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

  // Computation that keeps memory and caches busy makes requests take longer. A flow that keeps only
  // as many in flight as an idle memory needs moves that much less: capacities follow the load.
  void load(int32_t component) {
    Part& part = parts_[at(component)];
    if (part.slowed.empty()) return;
    part.loaded = !empty(component);
    for (const size_t pool : part.pools) {
      for (const int32_t row : on_[pool]) {
        const double rate = share_.rate(row);
        each_demand(row, [&](size_t resource, double weight) { use_[resource] += weight * rate; });
      }
    }
    for (const auto& [resource, capacity] : part.slowed) {
      const double busy =
          load_of(kernels_.loads.first[at(resource)]) + load_of(kernels_.loads.second[at(resource)]);
      share_.set_capacity(resource, capacity / (1 + kernels_.loads.stretch * busy));
    }
    for (const size_t pool : part.pools) {
      for (const int32_t row : on_[pool]) {
        each_demand(row, [&](size_t resource, double) { use_[resource] = 0.0; });
      }
    }
    share_.solve(component);
  }

  double load_of(int32_t resource) const {
    return resource < 0 ? 0.0 : std::min(1.0, use_[at(resource)] / share_.capacity(resource));
  }

  // A grid that runs at the rate its device sustains has all watts that the device may draw. What
  // flows meanwhile, through memory and links, draws some of them, and the grid runs so much slower.
  // Units that a launch holds draw their share, and what they leave pays for traffic first.
  void slow_clocks(int32_t component) {
    const Clocks& clocks = kernels_.clocks;
    for (const size_t pool : pools(component)) drawn_[pool] = 0.0;
    for (const RunningFlows::Running& flow : flows_.running(component)) {
      if (is_grid(flow.row)) continue;
      const double rate = share_.rate(flow.row, flow.pair);
      each_demand(flow.row, [&](size_t resource, double weight) {
        const int32_t pool = clocks.pool[resource];
        if (pool >= 0) drawn_[at(pool)] += weight * rate * clocks.joules[resource];
      });
    }
    bool any = false;
    for (const size_t pool : pools(component)) {
      double busy = 0;
      for (const int32_t row : on_[pool]) busy += units_of(row);
      const double needed = busy * clocks.unit_watts;
      const double units = pools_.units[pool] - clocks.held_share * held_[pool];
      const double left = units * clocks.unit_watts - drawn_[pool];
      if (needed <= left || needed <= 0) continue;
      const double clock = std::max(kLowestClock, left / needed);
      for (const int32_t row : on_[pool]) share_.set_cap(row, clock * share_.cap(row));
      any = true;
    }
    if (any) share_.solve(component);
  }

  template <typename F>
  void each_demand(int32_t row, F what) const {
    for (int64_t e = share_.starts()[at(row)]; e < share_.starts()[at(row) + 1]; ++e) {
      what(at(share_.resources()[at(e)]), share_.weight(e));
    }
  }

  struct Slowed {
    int32_t resource;
    double capacity;  // without load
  };

  // One component of flows.
  struct Part {
    std::vector<size_t> pools;
    std::vector<Slowed> slowed;
    int32_t num_running = 0;
    bool loaded = false;
  };

  static constexpr double kLarge = 1e300;       // a cap of what takes no time
  static constexpr double kLowestClock = 0.25;  // of the sustained one: no device goes lower

  const Rows& rows_;
  const Threads& threads_;
  const Pools& pools_;
  GridKernels kernels_;
  RunningFlows& flows_;
  FairShare& share_;
  const std::vector<int32_t>& held_;
  std::vector<Progress> progress_;        // by grid
  std::vector<double> whole_;             // what was left of its flow when its units changed
  std::vector<std::vector<int32_t>> on_;  // rows of grids that run, by pool
  std::span<const int32_t> component_;    // by pool
  std::vector<Part> parts_;
  std::vector<double> use_;               // of resources by grids, while it is summed up
  std::vector<double> drawn_;             // watts of other flows, by pool
};

}  // namespace weft
