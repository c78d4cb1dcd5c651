// The simulator's hot loop as Python sees it: priced columns in, start and end of each row out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind_python.hpp"
#include "simulation.hpp"

namespace {

template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr size_t kAny = std::numeric_limits<size_t>::max();

template <typename T>
std::span<const T> column(const nb::dict& columns, const char* name, size_t size) {
  const auto array = nb::cast<Column<T>>(columns[name]);
  if (size != kAny && array.shape(0) != size) {
    throw std::invalid_argument(std::string(name) + " has the wrong length");
  }
  return {array.data(), array.shape(0)};  // the dict keeps the array alive
}

template <typename T>
void within(std::span<const T> values, T low, size_t high, const char* name) {
  for (const T value : values) {
    if (value < low || (value >= 0 && static_cast<size_t>(value) >= high)) {
      throw std::invalid_argument(std::string(name) + " is out of range");
    }
  }
}

template <typename T>
void rising(std::span<const T> starts, size_t total, const char* name) {
  for (size_t i = 1; i < starts.size(); ++i) {
    if (starts[i] < starts[i - 1]) throw std::invalid_argument(std::string(name) + " goes back");
  }
  if (starts.front() != 0 || static_cast<size_t>(starts.back()) != total) {
    throw std::invalid_argument(std::string(name) + " does not cover its entries");
  }
}

// NaN is neither.
void positive(std::span<const double> values, const char* name) {
  for (const double value : values) {
    if (!(value > 0)) throw std::invalid_argument(std::string(name) + " is not positive");
  }
}

void not_negative(std::span<const double> values, const char* name) {
  for (const double value : values) {
    if (!(value >= 0)) throw std::invalid_argument(std::string(name) + " is negative");
  }
}

void check(const weft::Demands& demands, std::span<const double> capacity) {
  if (demands.resource.size() > INT32_MAX) throw std::invalid_argument("more demands than four bytes count");
  within<int32_t>(demands.resource, 0, capacity.size(), "demand_resource");
  rising(demands.start, demands.resource.size(), "demand_start");
  positive(demands.weight, "demand_weight");
  not_negative(demands.cap, "cap");
  not_negative(capacity, "capacity");
}

weft::Rows rows_of(const nb::dict& c) {
  const auto step = column<uint8_t>(c, "step", kAny);
  const size_t n = step.size();
  return {step,
          column<int32_t>(c, "thread", n),
          column<int32_t>(c, "next", n),
          column<double>(c, "before", n),
          column<double>(c, "size", n),
          column<double>(c, "latency", n),
          column<int32_t>(c, "flag", n),
          column<int64_t>(c, "count", n),
          column<int32_t>(c, "fed", n),
          column<int32_t>(c, "target", n),
          column<int32_t>(c, "units", n),
          column<int64_t>(c, "lanes_start", n + 1),
          column<int32_t>(c, "lanes", kAny),
          c.contains("dispatch") ? column<double>(c, "dispatch", n) : std::span<const double>{}};
}

weft::Threads threads_of(const nb::dict& c) {
  const auto first = column<int32_t>(c, "thread_first", kAny);
  const size_t n = first.size();
  return {first,
          column<int32_t>(c, "thread_launch", n),
          column<uint8_t>(c, "thread_is_fed", n),
          column<double>(c, "thread_fetch", n),
          column<int32_t>(c, "thread_pool", n),
          column<int32_t>(c, "thread_priority", n)};
}

weft::Demands demands_of(const nb::dict& c, size_t num_rows) {
  const auto resource = column<int32_t>(c, "demand_resource", kAny);
  return {column<int64_t>(c, "demand_start", num_rows + 1), resource,
          column<double>(c, "demand_weight", resource.size()), column<double>(c, "cap", num_rows)};
}

weft::Grids grids_of(const nb::dict& c, size_t num_rows) {
  const auto tiles = column<double>(c, "grid_tiles", kAny);
  const size_t n = tiles.size();
  return {column<int32_t>(c, "row_grid", num_rows),
          tiles,
          column<double>(c, "grid_tile_seconds", n),
          column<int32_t>(c, "grid_units", n),
          column<int32_t>(c, "grid_slots", n),
          column<int32_t>(c, "grid_edge", n),
          column<int64_t>(c, "grid_traffic_start", n + 1),
          column<double>(c, "grid_traffic", kAny)};
}

// Columns of grids and loads are left out where there is none.
weft::GridKernels kernels_of(const nb::dict& c, size_t num_rows, size_t num_resources) {
  if (!c.contains("row_grid")) return {};
  return {grids_of(c, num_rows),
          {column<int32_t>(c, "slowed_first", num_resources),
           column<int32_t>(c, "slowed_second", num_resources), nb::cast<double>(c["load_stretch"])},
          nb::cast<double>(c["dispatch_share"]),
          {column<double>(c, "clock_joules", num_resources), column<int32_t>(c, "clock_pool", num_resources),
           nb::cast<double>(c["clock_watts"]), nb::cast<double>(c["clock_held"])}};
}

void check(const weft::GridKernels& kernels, const weft::Rows& rows, const weft::Threads& threads,
           const weft::Pools& pools, const weft::Demands& demands, size_t num_resources) {
  const weft::Grids& grids = kernels.grids;
  if (grids.of_row.empty()) return;
  within<int32_t>(grids.of_row, -1, grids.tiles.size(), "row_grid");
  within<int32_t>(grids.edge, -1, demands.weight.size(), "grid_edge");
  within<int32_t>(kernels.loads.first, -1, num_resources, "slowed_first");
  within<int32_t>(kernels.loads.second, -1, num_resources, "slowed_second");
  within<int32_t>(kernels.clocks.pool, -1, pools.units.size(), "clock_pool");
  not_negative(kernels.clocks.joules, "clock_joules");
  rising(grids.traffic_start, grids.traffic.size(), "grid_traffic_start");
  positive(grids.tiles, "grid_tiles");
  not_negative(grids.tile_seconds, "grid_tile_seconds");
  positive(grids.traffic, "grid_traffic");
  for (size_t row = 0; row < grids.of_row.size(); ++row) {
    if (grids.of_row[row] < 0) continue;
    const auto grid = static_cast<size_t>(grids.of_row[row]);
    const int32_t pool = threads.pool[static_cast<size_t>(rows.thread[row])];
    if (pool < 0) throw std::invalid_argument("a grid has no pool");
    if (grids.units[grid] < 0 || grids.slots[grid] < 1) throw std::invalid_argument("a grid is empty");
    const auto most = std::min(grids.units[grid], pools.units[static_cast<size_t>(pool)]);
    const int64_t entries = grids.traffic_start[grid + 1] - grids.traffic_start[grid];
    if (grids.edge[grid] >= 0 && entries <= most) throw std::invalid_argument("grid_traffic is short");
  }
}

// Every index is looked at once here, so that the loop need not.
void check(const weft::Rows& rows, const weft::Threads& threads, const weft::Pools& pools, size_t num_flags,
           size_t num_resources) {
  const size_t num_rows = rows.step.size();
  const size_t num_threads = threads.first.size();
  within<int32_t>(rows.thread, 0, num_threads, "thread");
  within<int32_t>(rows.next, -1, num_rows, "next");
  within<int32_t>(rows.flag, -1, num_flags, "flag");
  within<int32_t>(rows.target, -1, num_threads, "target");
  within<int32_t>(rows.lanes, 0, num_threads, "lanes");
  within<int32_t>(threads.first, -1, num_rows, "thread_first");
  within<int32_t>(threads.launch, -1, num_rows, "thread_launch");
  within<int32_t>(threads.pool, -1, pools.units.size(), "thread_pool");
  within<int32_t>(pools.resource, -1, num_resources, "pool_resource");
  rising(rows.lanes_start, rows.lanes.size(), "lanes_start");
  not_negative(rows.before, "before");
  not_negative(rows.size, "size");
  not_negative(rows.latency, "latency");
  not_negative(threads.fetch, "thread_fetch");
  for (size_t row = 0; row < num_rows; ++row) {
    const auto in = static_cast<size_t>(rows.thread[row]);
    if (!rows.dispatch.empty() && rows.dispatch[row] >= 0 && threads.pool[in] < 0) {
      throw std::invalid_argument("a kernel to be dispatched has no pool");
    }
    const auto step = static_cast<weft::Step>(rows.step[row]);
    const bool flagged = step == weft::Step::kSignal || step == weft::Step::kWait;
    if (flagged && rows.flag[row] < 0) throw std::invalid_argument("a flag is missing");
    if (step == weft::Step::kSubmit && rows.target[row] < 0) {
      throw std::invalid_argument("a target is missing");
    }
  }
}

// Columns that were looked at once and may be let run again and again. Their owner may change
// numbers in place in between: sizes, weights, capacities, but no indices.
class Priced {
 public:
  Priced(nb::dict columns, size_t num_flags)
      : columns_(std::move(columns)),
        rows_(rows_of(columns_)),
        threads_(threads_of(columns_)),
        demands_(demands_of(columns_, rows_.step.size())),
        capacity_(column<double>(columns_, "capacity", kAny)),
        num_flags_(num_flags) {
    const auto units = column<int32_t>(columns_, "pool_units", kAny);
    pools_ = {units, column<int32_t>(columns_, "pool_resource", units.size())};
    kernels_ = kernels_of(columns_, rows_.step.size(), capacity_.size());
    check(demands_, capacity_);
    check(rows_, threads_, pools_, num_flags_, capacity_.size());
    check(kernels_, rows_, threads_, pools_, demands_, capacity_.size());
  }

  uint64_t run(double tolerance, std::span<double> start, std::span<double> end) const {
    if (start.size() != rows_.step.size() || end.size() != rows_.step.size()) {
      throw std::invalid_argument("start and end need one entry a row");
    }
    weft::Simulation simulation(rows_, threads_, pools_, demands_, capacity_, num_flags_, tolerance, start,
                                end, kernels_);
    nb::gil_scoped_release release;
    simulation.run(poll_signals);
    return simulation.num_solves();
  }

  // The latest end; NaN where something never ends.
  double makespan() const {
    const double none = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> start(rows_.step.size(), none);
    std::vector<double> end(rows_.step.size(), none);
    run(0.0, start, end);
    double latest = 0;
    for (const double each : end) latest = each >= latest ? each : (each == each ? latest : none);
    return latest;
  }

 private:
  nb::dict columns_;  // keeps the arrays alive
  weft::Rows rows_;
  weft::Threads threads_;
  weft::Demands demands_;
  std::span<const double> capacity_;
  weft::Pools pools_;
  weft::GridKernels kernels_;
  size_t num_flags_;
};

uint64_t simulate(const nb::dict& columns, size_t num_flags, double tolerance,
                  nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu> start,
                  nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu> end) {
  return Priced(columns, num_flags)
      .run(tolerance, {start.data(), start.shape(0)}, {end.data(), end.shape(0)});
}

// Rates of flows that are all active, for tests of the solver alone.
void fair_rates(const nb::dict& columns,
                nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu> rates) {
  const auto capacity = column<double>(columns, "capacity", kAny);
  const auto demands = demands_of(columns, rates.shape(0));
  check(demands, capacity);
  weft::FairShare share(demands, capacity);
  for (size_t flow = 0; flow < rates.shape(0); ++flow) share.add(static_cast<int32_t>(flow));
  share.solve();
  for (size_t flow = 0; flow < rates.shape(0); ++flow) {
    rates.data()[flow] = share.rate(static_cast<int32_t>(flow));
  }
}

}  // namespace

void bind_simulation(nb::module_& module) {
  module.def("simulate", &simulate, nb::arg("columns"), nb::arg("num_flags"), nb::arg("tolerance"),
             nb::arg("start"), nb::arg("end"),
             "Let priced commands run; fills start and end, returns how often rates were solved.");
  nb::class_<Priced>(module, "Priced", "Priced commands that are let run again and again.")
      .def(nb::init<nb::dict, size_t>(), nb::arg("columns"), nb::arg("num_flags"))
      .def("makespan", &Priced::makespan, "Let them run, with the numbers the columns hold now.");
  module.def("fair_rates", &fair_rates, nb::arg("columns"), nb::arg("rates"),
             "Max-min fair rates of flows that are all active.");
}
