// Flows in progress: how much of each is left, at which rate it runs, and which one ends next.
//
// Between two solutions of the fair shares of its component every flow runs at a constant rate, so what
// is left of it is stored only as of the last solution.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "components.hpp"
#include "fair_share.hpp"
#include "simulation_rows.hpp"

namespace weft {

class RunningFlows {
 public:
  // All that a new solution asks of a flow, in half a cache line.
  struct Running {
    double left;  // at the instant of the last solution
    double rate;
    int32_t row;
    FairShare::Pair pair;
  };

  RunningFlows(Demands demands, std::span<const double> capacity, std::span<const double> size,
               double tolerance, const Components& components)
      : share_(demands, capacity, components.count, components.of_flow, components.of_resource),
        size_(size),
        tolerance_(tolerance),
        component_(components.of_flow),
        place_(demands.cap.size(), -1),
        parts_(at(components.count)) {}

  FairShare& share() { return share_; }
  const FairShare& share() const { return share_; }
  const std::vector<Running>& running(int32_t component) const { return parts_[at(component)].running; }
  bool is_exact() const { return tolerance_ <= 0; }
  bool has(int32_t row) const { return place_[at(row)] >= 0; }
  double rate(int32_t row) const { return flow_at(row).rate; }

  double left(int32_t row, double now) const {
    const Running& flow = flow_at(row);
    return std::max(0.0, flow.left - flow.rate * (now - part_of(row).solved_at));
  }

  // The flow joins the others of its component at the next solution.
  void begin(int32_t row) { parts_[at(component_[at(row)])].fresh.push_back(row); }

  // Shares resources among the flows of a component that have begun; calls `joined(row)` for each.
  template <typename F>
  void join(int32_t component, double now, F joined) {
    Part& part = parts_[at(component)];
    if (!part.fresh.empty()) part.begun = now;
    for (const int32_t row : part.fresh) {
      share_.add(row);
      place_[at(row)] = static_cast<int32_t>(part.running.size());
      part.running.push_back({size_[at(row)], 0.0, row, share_.pair(row)});
      joined(row);
    }
    part.fresh.clear();
  }

  // With a tolerance, rates are shared anew only behind a window of ends. What ended inside it
  // left its share unused for up to half the tolerance; in return, what will end within half the
  // tolerance from now on keeps its rate but is no longer counted. The two errors cancel. Windows
  // are measured from the last begin of a flow, so that no flow is short next to one.
  // Calls `ends(row, time)` for each, before it is dropped.
  template <typename F>
  void let_go(int32_t component, double now, F ends) {
    const Part& part = parts_[at(component)];
    const double soon = now - part.solved_at + tolerance_ / 2 * (now - part.begun);
    for (size_t i = part.running.size(); i-- > 0;) {
      const Running flow = part.running[i];
      if (flow.left > soon * flow.rate) continue;
      const double end = flow.left > 0 ? part.solved_at + flow.left / flow.rate : now;
      ends(flow.row, std::max(end, now));
    }
  }

  // Brings every flow of a component up to this instant, gives it its new rate, and returns how long
  // it takes until the first ends.
  double share_out(int32_t component, double now) {
    Part& part = parts_[at(component)];
    const double passed = now - part.solved_at;
    part.solved_at = now;
    double wait = kNever;
    for (Running& flow : part.running) {
      const double rate = share_.rate(flow.row, flow.pair);
      const bool limited = rate < kNever;  // what nothing limits ends at once
      flow.left = limited ? std::max(0.0, flow.left - flow.rate * passed) : 0.0;
      flow.rate = limited ? rate : 0.0;
      if (flow.left <= 0) wait = 0.0;
      if (flow.left < wait * flow.rate) wait = flow.left / flow.rate;  // a division only for a new first
    }
    return wait;
  }

  // Calls `ends(row, time)` for the flows that are first to end, `wait` seconds from now, and for
  // those so shortly behind them that it makes no difference. Returns when all of them have ended.
  template <typename F>
  double each_ending(int32_t component, double now, double wait, F ends) {
    const Part& part = parts_[at(component)];
    const double first = now + wait;
    const double slack = std::max(tolerance_ / 2 * (first - part.begun), 1e-12 * first);
    ending_.clear();
    for (const Running& flow : part.running) {
      if (flow.left <= (wait + slack) * flow.rate) ending_.push_back(flow.row);
    }
    std::sort(ending_.begin(), ending_.end());
    for (const int32_t row : ending_) {
      const Running& flow = flow_at(row);
      const bool apart = tolerance_ > 0 && flow.left > 0;
      ends(row, apart ? now + flow.left / flow.rate : first);
    }
    return first + slack;
  }

  // Takes a flow out of those that share; the last one takes its place.
  void drop(int32_t row) {
    share_.remove(row);
    auto& running = parts_[at(component_[at(row)])].running;
    const int32_t place = place_[at(row)];
    running[at(place)] = running.back();
    place_[at(running.back().row)] = place;
    running.pop_back();
  }

  static constexpr double kNever = std::numeric_limits<double>::infinity();

 private:
  // One component.
  struct Part {
    std::vector<Running> running;
    std::vector<int32_t> fresh;  // flows that begin at this instant
    double solved_at = 0;
    double begun = 0;  // when the youngest flow began
  };

  const Part& part_of(int32_t row) const { return parts_[at(component_[at(row)])]; }
  const Running& flow_at(int32_t row) const { return part_of(row).running[at(place_[at(row)])]; }

  FairShare share_;
  std::span<const double> size_;
  double tolerance_;
  std::span<const int32_t> component_;  // by flow
  std::vector<int32_t> place_;          // of a flow among those that run in its component
  std::vector<Part> parts_;
  std::vector<int32_t> ending_;
};

}  // namespace weft
