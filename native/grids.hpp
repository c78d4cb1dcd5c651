// Kernels that are grids of tiles: the duration of the remaining tiles on a number of units.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace weft {

// Columns by row (which grid it is, or -1) and by grid.
struct Grids {
  std::span<const int32_t> of_row;
  std::span<const double> tiles;
  std::span<const double> tile_seconds;  // of one tile that has a unit to itself
  std::span<const int32_t> units;        // the most it may use
  std::span<const int32_t> slots;        // workgroups that fit on a unit
  std::span<const int32_t> edge;         // its demand of memory, or -1
  std::span<const int64_t> traffic_start;
  std::span<const double> traffic;  // weight of that demand on 0, 1, 2 .. units
};

// What slows those that keep few requests in flight: computation that keeps memory or caches busy.
struct Loads {
  std::span<const int32_t> first;  // by resource: the one whose load slows it, or -1
  std::span<const int32_t> second;
  double stretch = 0;  // a full load makes a request take 1 + stretch times as long
};

// A device at its power limit: what others draw is taken from its units, whose clock falls.
struct Clocks {
  std::span<const double> joules;  // by resource: for each unit of its use
  std::span<const int32_t> pool;   // by resource: the device that pays for it, or -1
  double unit_watts = 0;           // of a unit that computes; 0: clocks stay
  double held_share = 0;           // of these that a unit draws which a launch holds
};

struct GridKernels {
  Grids grids;
  Loads loads;
  double dispatch_share = 1;  // of freed slots, to a kernel that waits behind a grid
  Clocks clocks = {};
};

// One grid on its units. Time is counted in tiles: every tile takes one. Units of a group come free
// together; tiles that wait go to whichever unit is free first, and units that are taken away are
// those that come free first.
class Progress {
 public:
  Progress() = default;
  Progress(double tiles, int32_t units) : waiting_(tiles), units_(units) {
    if (units > 0) groups_.push_back({static_cast<double>(units), 0.0});
    span_ = makespan();
  }

  int32_t units() const { return units_; }

  // From the last change of units to the end, if nothing changes again.
  double span() const { return units_ > 0 ? span_ : kNever; }

  // When workgroups that need so many slots get them, from where `passed` of the span has: when
  // the grid has no tile left that would take them, or when their share of the slots that came
  // free is enough.
  double admission(double passed, double need, double share, double slots) const {
    const double unfinished = total() - ended(passed);
    const double by_share = share > 0 ? unfinished - need / share : 0.0;
    const double few = std::max(units_ * slots - need, by_share);
    if (unfinished <= few + kEpsilon) return passed;
    return std::min(span_, time_of(total() - std::max(0.0, few)));
  }

  // The units change when `passed` of the span has.
  void change(double passed, int32_t units) {
    if (units_ > 0) advance(passed);
    if (units > units_) groups_.push_back({static_cast<double>(units - units_), 0.0});
    sort();
    double lost = std::max(0, units_ - units);
    for (Group& group : groups_) {
      const double taken = std::min(lost, group.units);
      waiting_ += taken * group.free;  // what is unfinished of their tiles waits with the others
      group.units -= taken;
      lost -= taken;
    }
    std::erase_if(groups_, [](const Group& group) { return group.units <= 0; });
    units_ = units;
    span_ = makespan();
  }

 private:
  struct Group {
    double units;
    double free;  // when its units come free
  };

  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr double kEpsilon = 1e-7;  // of a tile: rounding must not add a wave

  void sort() {
    std::sort(groups_.begin(), groups_.end(), [](const Group& a, const Group& b) { return a.free < b.free; });
  }

  // Whole rounds in which every unit takes a tile, before the last in which only some do.
  double rounds() const { return waiting_ > kEpsilon ? std::ceil(waiting_ / units_ - kEpsilon) - 1 : 0; }

  double makespan() const {
    double end = 0;
    each_last([&end](const Group&, double, double last) { end = std::max(end, last); });
    return end;
  }

  // Calls `what(group, units, end of their last tile)`; a group may be split in two.
  template <typename F>
  void each_last(F what) const {
    double left = waiting_ > kEpsilon && units_ > 0 ? waiting_ - rounds() * units_ : 0.0;
    for (const Group& group : groups_) {
      const double more = std::min(left, group.units);
      left -= more;
      const double before = group.free + rounds();
      if (more > kEpsilon) what(group, more, before + 1);
      if (group.units - more > kEpsilon) what(group, group.units - more, before);
    }
  }

  // When the first tile of a group that runs, or is about to, ends.
  static double first_end(const Group& group) { return group.free > 0 ? group.free : 1.0; }

  // Tiles that run or wait, at the last change.
  double total() const {
    double tiles = waiting_;
    for (const Group& group : groups_) tiles += group.free > 0 ? group.units : 0.0;
    return tiles;
  }

  double ended(double passed) const {
    double tiles = 0;
    for (const Group& group : groups_) {
      tiles += group.units * std::max(0.0, std::floor(passed - first_end(group) + kEpsilon) + 1);
    }
    return std::min(tiles, total());
  }

  // When that number of tiles has ended.
  double time_of(double tiles) const {
    std::vector<Group> order;
    for (const Group& group : groups_) order.push_back({group.units, first_end(group)});
    std::sort(order.begin(), order.end(), [](const Group& a, const Group& b) { return a.free < b.free; });
    const double whole = std::floor((tiles - kEpsilon) / units_);
    double left = tiles - whole * units_;
    for (const Group& group : order) {
      left -= group.units;
      if (left <= kEpsilon) return whole + group.free;
    }
    return whole + 1;
  }

  double begun(double passed) const {
    double tiles = 0;
    for (const Group& group : groups_) {
      if (passed < group.free - kEpsilon) continue;
      tiles += group.units * (std::floor(passed - group.free + kEpsilon) + 1);
    }
    return tiles;
  }

  // A tile that ends at this very instant leaves its unit free, and none has begun behind it.
  void advance(double passed) {
    std::vector<Group> now;
    const double left = waiting_ - begun(passed - 2 * kEpsilon);
    if (left > kEpsilon) {
      for (const Group& group : groups_) {
        const double since = passed - group.free;
        now.push_back({group.units, since < 0 ? -since : std::ceil(since - kEpsilon) - since});
      }
    } else {
      each_last([&now, passed](const Group&, double units, double last) {
        now.push_back({units, std::max(0.0, last - passed)});
      });
    }
    for (Group& group : now) group.free = group.free < kEpsilon ? 0.0 : group.free;
    groups_ = now;
    waiting_ = std::max(0.0, left);
  }

  std::vector<Group> groups_;  // first free first
  double waiting_ = 0;         // tiles that have no unit yet
  double span_ = 0;
  int32_t units_ = 0;
};

}  // namespace weft
