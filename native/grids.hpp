// Kernels that are grids of tiles: how long what is left of one takes on so many units.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace weft {

// Columns by row (which grid it is, or -1) and by grid.
struct Grids {
  std::span<const int32_t> of_row;
  std::span<const double> tiles;
  std::span<const double> tile_seconds;  // of one tile that has a unit to itself
  std::span<const int32_t> units;        // the most it may use
  std::span<const int32_t> slots;        // workgroups that fit on a unit
  std::span<const uint8_t> fixed;        // its tiles were dealt to units when it started
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

struct Kernels {
  Grids grids;
  Loads loads;
  double dispatch_share = 1;  // of freed slots, to a kernel that waits behind a grid
};

// The state of one grid: what was left when its units last changed, and how long that takes.
class Progress {
 public:
  Progress() = default;
  Progress(double tiles, int32_t units, bool fixed)
      : tiles_(tiles), span_(waves(tiles, units)), units_(units), fixed_(fixed) {}

  int32_t units() const { return units_; }

  // What is left, as a part of what was left when the units last changed, changes hands.
  void change(double part, int32_t units) {
    const double left = span_ * part;
    if (fixed_) {
      // Lists of tiles stay with their units: none is handed to a unit that comes free, and those
      // whose unit is taken share the rest.
      const int32_t most = std::max(most_, units_);
      span_ = left * std::max(1, std::min(most, units_)) / std::max(1, std::min(most, units));
      most_ = most;
    } else {
      span_ = requeued(left, units);
    }
    tiles_ = std::max(0.0, tiles_ * part);
    units_ = units;
  }

  // In times of a tile, from where `part` of it is left.
  double span(double part) const { return units_ > 0 ? span_ * part : kNever; }

  double tiles(double part) const { return tiles_ * part; }

  static constexpr double kNever = std::numeric_limits<double>::infinity();

 private:
  static double waves(double tiles, int32_t units) {
    return units > 0 ? std::ceil(tiles / units - kEpsilon) : std::ceil(tiles);
  }

  // Tiles that run keep their units; those that wait go to whichever unit is free first.
  double requeued(double left, int32_t units) const {
    if (units_ <= 0) return waves(tiles_, units);
    const double passed = span_ - left;
    const double begun = std::ceil(passed - kEpsilon);  // waves
    const double rest = begun - passed;                 // of the wave that runs
    const double waiting = std::max(0.0, tiles_ - units_ * begun);
    if (units <= 0) return rest + waves(waiting, 1);
    if (waiting <= kEpsilon) return rest;
    if (units <= units_ || rest <= kEpsilon) return rest + waves(waiting, units);
    const double rounds = std::ceil(waiting / units - kEpsilon) - 1;
    const bool fits = waiting - rounds * units <= units - units_ + kEpsilon;
    return rounds + 1 + (fits ? 0.0 : rest);
  }

  static constexpr double kEpsilon = 1e-7;

  double tiles_ = 0;
  double span_ = 0;
  int32_t units_ = 0;
  int32_t most_ = 0;
  bool fixed_ = false;
};

}  // namespace weft
