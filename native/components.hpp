// Which flows can change each other's rates: those that a chain of shared resources connects.
//
// Components are shared out separately. The ranks of a pipeline, for example, meet in collectives but
// share no device, so an end on one of them leaves the rates of the others as they are.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "fair_share.hpp"
#include "grids.hpp"
#include "simulation_rows.hpp"

namespace weft {

struct Components {
  int32_t count = 1;
  std::vector<int32_t> of_flow;  // by row
  std::vector<int32_t> of_resource;
  std::vector<int32_t> of_pool;

  Components(const Rows& rows, const Threads& threads, const Pools& pools, const Demands& demands,
             const GridKernels& kernels, size_t num_resources)
      : of_flow(rows.step.size(), 0),
        of_resource(num_resources),
        of_pool(pools.units.size()),
        parent_(num_resources + pools.units.size() + 1) {
    std::iota(parent_.begin(), parent_.end(), 0);
    const auto node_of_pool = [&](int32_t pool) { return static_cast<int32_t>(num_resources) + pool; };
    const auto pool_of = [&](size_t row) { return threads.pool[at(rows.thread[row])]; };
    const auto is_grid = [&](size_t row) {
      return !kernels.grids.of_row.empty() && kernels.grids.of_row[row] >= 0;
    };
    for (size_t row = 0; row < of_flow.size(); ++row) {
      for (int64_t e = demands.start[row] + 1; e < demands.start[row + 1]; ++e) {
        join(demands.resource[at(e - 1)], demands.resource[at(e)]);
      }
      // The units of its pool decide how fast a grid runs.
      if (is_grid(row) && demands.start[row] < demands.start[row + 1]) {
        join(demands.resource[at(demands.start[row])], node_of_pool(pool_of(row)));
      }
    }
    for (size_t pool = 0; pool < of_pool.size(); ++pool) {
      if (pools.resource[pool] >= 0) {
        join(pools.resource[pool], node_of_pool(static_cast<int32_t>(pool)));
      }
    }
    for (size_t r = 0; r < kernels.loads.first.size(); ++r) {
      const auto resource = static_cast<int32_t>(r);
      if (kernels.loads.first[r] >= 0) join(resource, kernels.loads.first[r]);
      if (kernels.loads.second[r] >= 0) join(resource, kernels.loads.second[r]);
      if (kernels.clocks.pool[r] >= 0) join(resource, node_of_pool(kernels.clocks.pool[r]));
    }
    std::vector<int32_t> number(parent_.size(), -1);
    count = 0;
    const auto component = [&](int32_t node) {
      int32_t& found = number[at(root(node))];
      if (found < 0) found = count++;
      return found;
    };
    for (size_t r = 0; r < num_resources; ++r) of_resource[r] = component(static_cast<int32_t>(r));
    for (size_t pool = 0; pool < of_pool.size(); ++pool) {
      of_pool[pool] = component(node_of_pool(static_cast<int32_t>(pool)));
    }
    const auto none = static_cast<int32_t>(parent_.size()) - 1;  // flows that share nothing
    for (size_t row = 0; row < of_flow.size(); ++row) {
      if (rows.step[row] != static_cast<uint8_t>(Step::kFlow)) continue;
      if (demands.start[row] < demands.start[row + 1]) {
        of_flow[row] = of_resource[at(demands.resource[at(demands.start[row])])];
      } else {
        of_flow[row] = pool_of(row) >= 0 ? of_pool[at(pool_of(row))] : component(none);
      }
    }
    count = count > 0 ? count : 1;
  }

 private:
  int32_t root(int32_t node) {
    while (parent_[at(node)] != node) {
      parent_[at(node)] = parent_[at(parent_[at(node)])];
      node = parent_[at(node)];
    }
    return node;
  }

  void join(int32_t a, int32_t b) { parent_[at(root(a))] = root(b); }

  std::vector<int32_t> parent_;  // resources, then pools, then one node for all that shares nothing
};

}  // namespace weft
