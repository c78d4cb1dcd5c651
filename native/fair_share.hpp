// Max-min fair rates of flows that each demand several resources at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace weft {

// What each flow demands: entries start[f] up to start[f + 1] of (resource, weight). A flow at
// rate x uses weight * x of the resource, and never runs faster than its cap.
struct Demands {
  std::span<const int64_t> start;
  std::span<const int32_t> resource;
  std::span<const double> weight;
  std::span<const double> cap;
};

// Progressive filling: all rates rise together; when a resource is full, its flows stop there.
// So the rate of a flow is the lowest level at which one of its resources filled, or its cap.
//
// The level at which a resource fills only rises while flows stop elsewhere, because a flow that
// stops took no more than its share. So the lowest level of a block of resources may be stale, as
// long as it is computed again before it is believed. (Blocks: a heap of single resources spends
// four times as long on being brought up to date.)
//
// Components that share no resource (components.hpp) are solved one by one. Inside, resources are
// numbered by component, so that a block belongs to one.
class FairShare {
 public:
  // Without components, all flows and resources are one.
  FairShare(Demands demands, std::span<const double> capacity, int32_t num_components = 1,
            std::span<const int32_t> component_of_flow = {},
            std::span<const int32_t> component_of_resource = {})
      : demands_(demands),
        component_(component_of_flow),
        inner_(capacity.size()),
        resource_(demands.resource.size()),
        weight_(demands.weight.begin(), demands.weight.end()),
        cap_(demands.cap.begin(), demands.cap.end()),
        capacity_(capacity.size()),
        load_(capacity.size(), 0.0),
        left_(capacity.size()),
        weight_left_(capacity.size()),
        level_(capacity.size(), kInfinity),
        rises_(capacity.size(), 1.0),
        flows_on_(capacity.size()),
        in_use_(capacity.size(), false),
        used_(at(num_components)),
        place_(demands.resource.size()),
        owner_(demands.resource.size()),
        block_of_(capacity.size()),
        capped_(at(num_components)),
        capped_place_(demands.cap.size(), -1) {
    number_resources(component_of_resource);
    block_bound_.assign(block_start_.size(), kInfinity);
    block_lowest_.assign(block_start_.size(), 0);
    for (size_t r = 0; r < capacity.size(); ++r) capacity_[at(inner_[r])] = capacity[r];
    for (size_t e = 0; e < resource_.size(); ++e) resource_[e] = inner_[at(demands.resource[e])];
    for (size_t flow = 0; flow < demands.cap.size(); ++flow) {
      for (int64_t e = demands.start[flow]; e < demands.start[flow + 1]; ++e) {
        owner_[at(e)] = static_cast<int32_t>(flow);
      }
    }
  }

  void add(int32_t flow) {
    const bool capped = cap_[at(flow)] < kInfinity;
    if (capped) {
      auto& others = capped_[at(component(flow))];
      capped_place_[at(flow)] = static_cast<int32_t>(others.size());
      others.push_back(flow);
    }
    const bool pair = is_pair(flow);
    const int64_t first = demands_.start[at(flow)];
    for (int64_t e = first; e < demands_.start[at(flow) + 1]; ++e) {
      const int32_t resource = resource_[at(e)];
      const auto r = at(resource);
      if (!in_use_[r]) {
        in_use_[r] = true;
        used_[at(component(flow))].push_back(resource);
      }
      place_[at(e)] = static_cast<int32_t>(flows_on_[r].size());
      const int32_t other = pair ? resource_[at(2 * first + 1 - e)] : kMany;
      flows_on_[r].push_back({static_cast<int32_t>(e), other});
      load_[r] += weight_[at(e)];
    }
  }

  void remove(int32_t flow) {
    if (const int32_t spot = capped_place_[at(flow)]; spot >= 0) {
      auto& others = capped_[at(component(flow))];
      others[at(spot)] = others.back();
      capped_place_[at(others.back())] = spot;
      others.pop_back();
      capped_place_[at(flow)] = -1;
    }
    for (int64_t e = demands_.start[at(flow)]; e < demands_.start[at(flow) + 1]; ++e) {
      const auto r = at(resource_[at(e)]);
      auto& list = flows_on_[r];
      const auto spot = at(place_[at(e)]);
      list[spot] = list.back();
      place_[at(list[spot].edge)] = static_cast<int32_t>(spot);
      list.pop_back();
      load_[r] = list.empty() ? 0.0 : load_[r] - weight_[at(e)];
    }
  }

  void set_capacity(int32_t resource, double value) { capacity_[at(inner_[at(resource)])] = value; }

  // Of a flow that was given a cap from the start.
  void set_cap(int32_t flow, double value) { cap_[at(flow)] = value; }

  // Of a demand of an active flow.
  void set_weight(int64_t edge, double value) {
    load_[at(resource_[at(edge)])] += value - weight_[at(edge)];
    weight_[at(edge)] = value;
  }

  double cap(int32_t flow) const { return cap_[at(flow)]; }
  double weight(int64_t edge) const { return weight_[at(edge)]; }
  double capacity(int32_t resource) const { return capacity_[at(inner_[at(resource)])]; }
  std::span<const int64_t> starts() const { return demands_.start; }
  std::span<const int32_t> resources() const { return demands_.resource; }

  // Finds the level at which each resource of a component fills, if it does.
  void solve(int32_t component = 0) {
    prepare(component);
    for (;;) {
      const double by_resource = next_full();
      const double by_cap = next_capped();
      if (by_cap == kInfinity && by_resource == kInfinity) return;
      if (by_cap <= by_resource) {
        const int32_t flow = rising_.back();
        rising_.pop_back();
        stop(flow, by_cap, kMany);
      } else {
        fill(block_lowest_[at(block_)], by_resource);
      }
    }
  }

  // The resources of a flow that has two of equal weight and no cap: a transfer from port to port.
  // A caller that keeps them need not look the flow up again.
  struct Pair {
    int32_t first = kMany;
    int32_t second = kMany;
  };

  Pair pair(int32_t flow) const {
    if (!is_pair(flow)) return {};
    const auto first = at(demands_.start[at(flow)]);
    return {resource_[first], resource_[first + 1]};
  }

  double rate(int32_t flow, Pair pair) const {
    if (pair.first == kMany) return rate(flow);
    return std::min(level_[at(pair.first)], level_[at(pair.second)]);
  }

  double rate(int32_t flow) const {
    const int64_t last = demands_.start[at(flow) + 1];
    double rate = cap_[at(flow)];
    for (int64_t e = demands_.start[at(flow)]; e < last; ++e) {
      rate = std::min(rate, level_[at(resource_[at(e)])]);
    }
    return rate;
  }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr int32_t kMany = -1;
  static constexpr size_t kBlock = 64;

  // A flow as one of its resources sees it. Most flows are pairs: those find their other resource
  // here, which keeps the inner loop in one narrow stream of memory.
  struct Entry {
    int32_t edge;
    int32_t other;  // kMany: look at the flow
  };

  bool is_pair(int32_t flow) const {
    const auto first = at(demands_.start[at(flow)]);
    return at(demands_.start[at(flow) + 1]) == first + 2 && cap_[at(flow)] == kInfinity &&
           weight_[first] == 1.0 && weight_[first + 1] == 1.0;
  }

  template <typename T>
  static size_t at(T index) {
    return static_cast<size_t>(index);
  }

  int32_t component(int32_t flow) const { return component_.empty() ? 0 : component_[at(flow)]; }

  // Numbers resources by component and cuts each component into blocks.
  void number_resources(std::span<const int32_t> component_of_resource) {
    std::vector<int32_t> order(inner_.size());
    std::iota(order.begin(), order.end(), 0);
    const auto of = [&](int32_t r) {
      return component_of_resource.empty() ? 0 : component_of_resource[at(r)];
    };
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return of(a) < of(b); });
    for (size_t position = 0; position < order.size(); ++position) {
      inner_[at(order[position])] = static_cast<int32_t>(position);
      const bool first = position == 0 || of(order[position]) != of(order[position - 1]);
      if (first || position - block_start_.back() == kBlock) block_start_.push_back(position);
      block_of_[position] = static_cast<int32_t>(block_start_.size()) - 1;
    }
    block_start_.push_back(order.size());
  }

  void prepare(int32_t component) {
    auto& used = used_[at(component)];
    std::erase_if(used, [this](int32_t r) {
      level_[at(r)] = kInfinity;
      rises_[at(r)] = 1.0;
      in_use_[at(r)] = !flows_on_[at(r)].empty();
      return !in_use_[at(r)];
    });
    blocks_.clear();
    for (const int32_t r : used) {
      left_[at(r)] = capacity_[at(r)];
      weight_left_[at(r)] = load_[at(r)];
      double& bound = block_bound_[at(block_of_[at(r)])];
      if (bound == kInfinity) blocks_.push_back(block_of_[at(r)]);
      bound = 0.0;  // not yet looked at
    }
    rising_ = capped_[at(component)];
    // Largest cap first, so that the next to stop is at the back.
    std::sort(rising_.begin(), rising_.end(), [this](int32_t a, int32_t b) {
      const double x = cap_[at(a)];
      const double y = cap_[at(b)];
      return x != y ? x > y : a > b;
    });
  }

  // The level at which the next resource fills, brought up to date; leaves its block in block_.
  double next_full() {
    for (;;) {
      double lowest = kInfinity;
      for (const int32_t block : blocks_) {
        if (block_bound_[at(block)] < lowest) {
          lowest = block_bound_[at(block)];
          block_ = block;
        }
      }
      if (lowest == kInfinity) return kInfinity;
      if (refresh(block_) <= lowest * (1 + 1e-14)) return block_bound_[at(block_)];
    }
  }

  // Computes anew which resource of a block fills first. One whose flows have all stopped never
  // does; nor does one that is full, which has no weight left.
  double refresh(int32_t block) {
    double lowest = kInfinity;
    for (size_t r = block_start_[at(block)]; r < block_start_[at(block) + 1]; ++r) {
      if (left_[r] < lowest * weight_left_[r] && weight_left_[r] > load_[r] * 1e-12) {
        lowest = left_[r] / weight_left_[r];
        block_lowest_[at(block)] = static_cast<int32_t>(r);
      }
    }
    // Rounding may take a level a little back; filling goes on from where it stands.
    if (lowest < block_bound_[at(block)]) lowest = block_bound_[at(block)];
    return block_bound_[at(block)] = lowest;
  }

  // The lowest cap of a flow that no resource has stopped.
  double next_capped() {
    while (!rising_.empty() && stopped_by_resource(rising_.back(), kMany)) rising_.pop_back();
    return rising_.empty() ? kInfinity : cap_[at(rising_.back())];
  }

  void fill(int32_t resource, double level) {
    double* const left = left_.data();
    double* const weight_left = weight_left_.data();
    const double* const rises = rises_.data();
    for (const Entry& entry : flows_on_[at(resource)]) {
      if (entry.other == kMany) {
        const int32_t flow = owner_[at(entry.edge)];
        const bool at_cap = cap_[at(flow)] <= level;
        const bool stopped = at_cap || stopped_by_resource(flow, resource);
        if (!stopped && is_first(flow, entry.edge)) stop(flow, level, resource);
      } else {
        // Half of them have stopped, in no order: a multiplication is cheaper than a branch.
        left[entry.other] -= rises[entry.other] * level;
        weight_left[entry.other] -= rises[entry.other];
      }
    }
    level_[at(resource)] = level;
    rises_[at(resource)] = 0.0;
    weight_left_[at(resource)] = 0.0;
  }

  // A flow may demand a resource twice (a copy reads and writes one memory) but stops once.
  bool is_first(int32_t flow, int32_t edge) const {
    for (int64_t e = demands_.start[at(flow)]; e < edge; ++e) {
      if (resource_[at(e)] == resource_[at(edge)]) return false;
    }
    return true;
  }

  bool stopped_by_resource(int32_t flow, int32_t except) const {
    for (int64_t e = demands_.start[at(flow)]; e < demands_.start[at(flow) + 1]; ++e) {
      const int32_t r = resource_[at(e)];
      if (r != except && level_[at(r)] < kInfinity) return true;
    }
    return false;
  }

  // Takes what the flow uses from all its resources but the one that is being filled.
  void stop(int32_t flow, double rate, int32_t except) {
    for (int64_t e = demands_.start[at(flow)]; e < demands_.start[at(flow) + 1]; ++e) {
      const int32_t r = resource_[at(e)];
      if (r == except) continue;
      left_[at(r)] -= weight_[at(e)] * rate;
      weight_left_[at(r)] -= weight_[at(e)];
    }
  }

  Demands demands_;
  std::span<const int32_t> component_;  // by flow; empty: one
  std::vector<int32_t> inner_;          // number of a resource in here, by that outside
  std::vector<int32_t> resource_;       // by edge
  std::vector<double> weight_;  // by edge; these two may change with time
  std::vector<double> cap_;
  std::vector<double> capacity_;
  std::vector<double> load_;         // weights of active flows, by resource
  std::vector<double> left_;         // of the capacity, while solving
  std::vector<double> weight_left_;  // of flows that still rise
  std::vector<double> level_;        // at which a resource filled; infinite if it did not
  std::vector<double> rises_;        // one until it filled, then zero
  std::vector<std::vector<Entry>> flows_on_;
  std::vector<bool> in_use_;  // whether a resource stands in used_
  std::vector<std::vector<int32_t>> used_;  // by component: resources with flows, or with some lately
  std::vector<int32_t> place_;  // of an edge in flows_on_
  std::vector<int32_t> owner_;  // the flow of an edge
  std::vector<int32_t> block_of_;      // by resource
  std::vector<size_t> block_start_;    // the first resource of each block, and the end
  std::vector<double> block_bound_;    // no resource of the block fills below this level
  std::vector<int32_t> block_lowest_;  // the one that fills first, when last looked at
  std::vector<int32_t> blocks_;        // blocks with active flows
  int32_t block_ = 0;
  std::vector<std::vector<int32_t>> capped_;  // by component: active flows with a cap
  std::vector<int32_t> capped_place_;
  std::vector<int32_t> rising_;  // of those, the ones that have not stopped
};

}  // namespace weft
