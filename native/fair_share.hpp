// Max-min fair rates of flows that each demand several resources at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <utility>
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
//
// The level at which a resource fills only rises while others stop, because a flow that stops
// took no more than its share. So a heap of levels may be stale, as long as the top is computed
// again before it is believed.
class FairShare {
 public:
  FairShare(Demands demands, std::span<const double> capacity)
      : demands_(demands),
        capacity_(capacity.begin(), capacity.end()),
        load_(capacity.size(), 0.0),
        left_(capacity.size()),
        weight_left_(capacity.size()),
        flows_on_(capacity.size()),
        place_(demands.resource.size()),
        rate_(demands.cap.size(), 0.0),
        stopped_(demands.cap.size(), 0),
        active_place_(demands.cap.size(), kNowhere) {
    owner_.resize(demands.resource.size());
    for (size_t flow = 0; flow < demands.cap.size(); ++flow) {
      for (int64_t e = demands.start[flow]; e < demands.start[flow + 1]; ++e) {
        owner_[at(e)] = static_cast<int32_t>(flow);
      }
    }
  }

  void add(int32_t flow) {
    active_place_[at(flow)] = static_cast<int32_t>(active_.size());
    active_.push_back(flow);
    for (int64_t e = begin(flow); e < end(flow); ++e) {
      const auto r = at(demands_.resource[at(e)]);
      if (flows_on_[r].empty()) {
        used_.push_back(demands_.resource[at(e)]);
      }
      place_[at(e)] = static_cast<int32_t>(flows_on_[r].size());
      flows_on_[r].push_back(e);
      load_[r] += demands_.weight[at(e)];
    }
  }

  void remove(int32_t flow) {
    const auto hole = at(active_place_[at(flow)]);
    active_[hole] = active_.back();
    active_place_[at(active_[hole])] = static_cast<int32_t>(hole);
    active_.pop_back();
    active_place_[at(flow)] = kNowhere;
    for (int64_t e = begin(flow); e < end(flow); ++e) {
      const auto r = at(demands_.resource[at(e)]);
      auto& list = flows_on_[r];
      const auto spot = at(place_[at(e)]);
      list[spot] = list.back();
      place_[at(list[spot])] = static_cast<int32_t>(spot);
      list.pop_back();
      load_[r] = list.empty() ? 0.0 : load_[r] - demands_.weight[at(e)];
    }
  }

  void set_capacity(int32_t resource, double value) { capacity_[at(resource)] = value; }
  double rate(int32_t flow) const { return rate_[at(flow)]; }
  const std::vector<int32_t>& active() const { return active_; }

  // Gives every active flow its rate.
  void solve() {
    ++round_;
    prepare();
    size_t running = active_.size();
    while (running > 0) {
      const double by_resource = next_full();
      const double by_cap = next_capped();
      if (by_cap <= by_resource) {
        if (by_cap == kInfinity) {  // nothing limits what is left
          for (const int32_t flow : active_) {
            if (stopped_[at(flow)] != round_) rate_[at(flow)] = kInfinity;
          }
          return;
        }
        stop(capped_.back(), by_cap);
        capped_.pop_back();
        --running;
      } else {
        const int32_t full = pop_level().second;
        for (const int64_t e : flows_on_[at(full)]) {
          const int32_t flow = owner_[at(e)];
          if (stopped_[at(flow)] != round_) {
            stop(flow, by_resource);
            --running;
          }
        }
      }
    }
  }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr int32_t kNowhere = -1;
  using Level = std::pair<double, int32_t>;

  template <typename T>
  static size_t at(T index) {
    return static_cast<size_t>(index);
  }
  int64_t begin(int32_t flow) const { return demands_.start[at(flow)]; }
  int64_t end(int32_t flow) const { return demands_.start[at(flow) + 1]; }

  void prepare() {
    std::erase_if(used_, [this](int32_t r) { return flows_on_[at(r)].empty(); });
    levels_.clear();
    for (const int32_t r : used_) {
      left_[at(r)] = capacity_[at(r)];
      weight_left_[at(r)] = load_[at(r)];
      levels_.emplace_back(capacity_[at(r)] / load_[at(r)], r);
    }
    std::make_heap(levels_.begin(), levels_.end(), std::greater<>());
    capped_.clear();
    for (const int32_t flow : active_) {
      if (demands_.cap[at(flow)] < kInfinity) capped_.push_back(flow);
    }
    // Largest first, so that the next to stop is at the back.
    std::sort(capped_.begin(), capped_.end(), [this](int32_t a, int32_t b) {
      const double x = demands_.cap[at(a)];
      const double y = demands_.cap[at(b)];
      return x != y ? x > y : a > b;
    });
  }

  // The level at which the next resource fills, brought up to date.
  double next_full() {
    while (!levels_.empty()) {
      const auto [level, r] = levels_.front();
      const double weight = weight_left_[at(r)];
      if (weight <= load_[at(r)] * 1e-12) {  // all its flows have stopped
        pop_level();
        continue;
      }
      const double now = left_[at(r)] / weight;
      if (now <= level * (1 + 1e-14)) return level;
      pop_level();
      levels_.emplace_back(now, r);
      std::push_heap(levels_.begin(), levels_.end(), std::greater<>());
    }
    return kInfinity;
  }

  Level pop_level() {
    std::pop_heap(levels_.begin(), levels_.end(), std::greater<>());
    const Level level = levels_.back();
    levels_.pop_back();
    return level;
  }

  double next_capped() {
    while (!capped_.empty() && stopped_[at(capped_.back())] == round_) capped_.pop_back();
    return capped_.empty() ? kInfinity : demands_.cap[at(capped_.back())];
  }

  void stop(int32_t flow, double rate) {
    stopped_[at(flow)] = round_;
    rate_[at(flow)] = rate;
    for (int64_t e = begin(flow); e < end(flow); ++e) {
      const auto r = at(demands_.resource[at(e)]);
      left_[r] -= demands_.weight[at(e)] * rate;
      weight_left_[r] -= demands_.weight[at(e)];
    }
  }

  Demands demands_;
  std::vector<double> capacity_;
  std::vector<double> load_;         // weights of active flows, by resource
  std::vector<double> left_;         // of the capacity, while solving
  std::vector<double> weight_left_;  // of flows that still rise
  std::vector<std::vector<int64_t>> flows_on_;  // entries of active flows, by resource
  std::vector<int32_t> place_;                  // of an entry in flows_on_
  std::vector<int32_t> owner_;                  // the flow of an entry
  std::vector<double> rate_;
  std::vector<uint64_t> stopped_;  // the round in which a flow last stopped
  std::vector<int32_t> active_;
  std::vector<int32_t> active_place_;
  std::vector<int32_t> used_;  // resources with active flows
  std::vector<int32_t> capped_;
  std::vector<Level> levels_;  // a heap, lowest first
  uint64_t round_ = 0;
};

}  // namespace weft
