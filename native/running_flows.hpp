// Flows in progress: how much of each is left, at which rate it runs, and which one ends next.
//
// Between two solutions of the fair shares every flow runs at a constant rate, so what is left of it
// is stored only as of the last solution.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

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
               double tolerance)
      : share_(demands, capacity), size_(size), tolerance_(tolerance), place_(demands.cap.size(), -1) {}

  FairShare& share() { return share_; }
  const FairShare& share() const { return share_; }
  const std::vector<Running>& running() const { return running_; }
  bool is_exact() const { return tolerance_ <= 0; }
  bool has(int32_t row) const { return place_[at(row)] >= 0; }
  double rate(int32_t row) const { return running_[at(place_[at(row)])].rate; }

  double left(int32_t row, double now) const {
    const Running& flow = running_[at(place_[at(row)])];
    return std::max(0.0, flow.left - flow.rate * (now - solved_at_));
  }

  // The flow joins the others at the next solution.
  void begin(int32_t row) { fresh_.push_back(row); }

  // Lets the flows that have begun share; calls `joined(row)` for each.
  template <typename F>
  void join(double now, F joined) {
    if (!fresh_.empty()) begun_ = now;
    for (const int32_t row : fresh_) {
      share_.add(row);
      place_[at(row)] = static_cast<int32_t>(running_.size());
      running_.push_back({size_[at(row)], 0.0, row, share_.pair(row)});
      joined(row);
    }
    fresh_.clear();
  }

  // With a tolerance, rates are shared anew only behind a window of ends. What ended inside it
  // left its share unused for up to half the tolerance; in return, what will end within half the
  // tolerance from now on keeps its rate but is no longer counted. The two errors cancel. Windows
  // are measured from the last begin of a flow, so that no flow is short next to one.
  // Calls `ends(row, time)` for each, before it is dropped.
  template <typename F>
  void let_go(double now, F ends) {
    const double soon = now - solved_at_ + tolerance_ / 2 * (now - begun_);
    for (size_t i = running_.size(); i-- > 0;) {
      const Running flow = running_[i];
      if (flow.left > soon * flow.rate) continue;
      const double end = flow.left > 0 ? solved_at_ + flow.left / flow.rate : now;
      ends(flow.row, std::max(end, now));
    }
  }

  // Brings every flow up to this instant, gives it its new rate, and returns how long it takes
  // until the first ends.
  double share_out(double now) {
    const double passed = now - solved_at_;
    solved_at_ = now;
    double wait = kNever;
    for (Running& flow : running_) {
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
  double each_ending(double now, double wait, F ends) {
    const double first = now + wait;
    const double slack = std::max(tolerance_ / 2 * (first - begun_), 1e-12 * first);
    ending_.clear();
    for (const Running& flow : running_) {
      if (flow.left <= (wait + slack) * flow.rate) ending_.push_back(flow.row);
    }
    std::sort(ending_.begin(), ending_.end());
    for (const int32_t row : ending_) {
      const Running& flow = running_[at(place_[at(row)])];
      const bool apart = tolerance_ > 0 && flow.left > 0;
      ends(row, apart ? now + flow.left / flow.rate : first);
    }
    return first + slack;
  }

  // Takes a flow out of those that share; the last one takes its place.
  void drop(int32_t row) {
    share_.remove(row);
    const int32_t place = place_[at(row)];
    running_[at(place)] = running_.back();
    place_[at(running_.back().row)] = place;
    running_.pop_back();
  }

  static constexpr double kNever = std::numeric_limits<double>::infinity();

 private:
  FairShare share_;
  std::span<const double> size_;
  double tolerance_;
  std::vector<Running> running_;
  std::vector<int32_t> ending_;
  std::vector<int32_t> fresh_;  // flows that begin at this instant
  std::vector<int32_t> place_;  // of a flow in running_
  double solved_at_ = 0;
  double begun_ = 0;  // when the youngest flow began
};

}  // namespace weft
