// Which span of a thread stands inside which.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace weft::trace {

// For each span the innermost one of its thread that holds all of it, or -1. Of two equal spans the
// one written first is outside. A span that only overlaps another is inside what holds them both,
// and what comes later is no longer inside the one that began first.
inline std::vector<std::int32_t> nest(std::span<const std::int32_t> thread, std::span<const double> start,
                                      std::span<const double> end) {
  std::vector<std::int32_t> order(thread.size()), parent(thread.size(), -1), open;
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    if (thread[a] != thread[b]) return thread[a] < thread[b];
    if (start[a] != start[b]) return start[a] < start[b];
    if (end[a] != end[b]) return end[a] > end[b];
    return a < b;
  });
  for (const std::int32_t each : order) {
    const bool is_instant = start[each] == end[each];
    const auto is_over = [&](std::int32_t other) {
      const bool ended = is_instant ? end[other] < start[each] : end[other] <= start[each];
      return thread[other] != thread[each] || ended || end[other] < end[each];
    };
    while (!open.empty() && is_over(open.back())) open.pop_back();
    parent[each] = open.empty() ? -1 : open.back();
    open.push_back(each);
  }
  return parent;
}

}  // namespace weft::trace
