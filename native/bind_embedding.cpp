// Embeddings for Python: tables and bags by their addresses, which the caller vouches for.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind_python.hpp"
#include "backoff.hpp"
#include "pooling.hpp"

using weft::Integers;
using weft::Lookup;
using weft::Pooling;
using weft::PoolingTask;

namespace {

// name, rows' address, rows of the table, first and number of those held, columns, element.
using ShardTuple =
    std::tuple<std::string, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, int>;
// column, partial, column among partial sums.
using WhereTuple = std::tuple<std::uint64_t, bool, std::uint64_t>;
// indices, offsets, weights or 0, number of indices, of samples; whether each of the first two is wide.
using BagsTuple =
    std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, bool, bool>;

template <class T>
T* at(std::uint64_t address) noexcept {
  return reinterpret_cast<T*>(address);
}

weft::Shard shard_of(const ShardTuple& given) {
  const auto& [name, rows, num_rows, first, held, dim, element] = given;
  if (first > num_rows || held > num_rows - first) throw std::invalid_argument("rows outside a table");
  if (element < 0 || element > static_cast<int>(weft::Element::int8)) throw std::invalid_argument("element");
  return {name, at<std::byte>(rows), num_rows, first, held, dim, static_cast<weft::Element>(element)};
}

weft::Bags bags_of(const BagsTuple& given, bool mean) {
  const auto& [indices, offsets, weights, num_indices, num_samples, wide, wide_offsets] = given;
  return {Integers{at<const void>(indices), wide},
          Integers{at<const void>(offsets), wide_offsets},
          at<const float>(weights),
          num_indices,
          num_samples,
          mean};
}

void set(Pooling& self, const std::vector<ShardTuple>& shards, const std::vector<WhereTuple>& where,
         const std::vector<BagsTuple>& bags, bool mean) {
  if (shards.size() != where.size() || shards.size() != bags.size()) throw std::invalid_argument("lookups");
  std::vector<Lookup> lookups;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto [column, partial, between] = where[i];
    lookups.push_back({shard_of(shards[i]), bags_of(bags[i], mean), column, partial, between});
  }
  self.set(std::move(lookups));
}

void set_task(Pooling& self, std::uint64_t row, int kind, std::uint64_t first, std::uint64_t last,
              std::uint64_t local, std::vector<std::uint64_t> offsets) {
  if (kind < 0 || kind > static_cast<int>(PoolingTask::Kind::update)) throw std::invalid_argument("kind");
  self.set_task(row, {static_cast<PoolingTask::Kind>(kind), {first, last}, local, std::move(offsets)});
}

// rule or -1, rate, epsilon, state; rows, sums; weights: addresses, or 0.
using ResultTuple = std::tuple<int, float, float, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;

void set_results(Pooling& self, const std::vector<ResultTuple>& given) {
  std::vector<weft::Result> results;
  for (const auto& [rule, rate, epsilon, state, rows, sums, weights] : given) {
    if (rule > static_cast<int>(weft::Rule::rowwise_adagrad)) throw std::invalid_argument("rule");
    weft::Result result;
    result.steps = rule >= 0;
    if (result.steps) result.step = {static_cast<weft::Rule>(rule), rate, epsilon, at<float>(state)};
    result.rows = at<std::int64_t>(rows), result.sums = at<float>(sums), result.weights = at<float>(weights);
    results.push_back(result);
  }
  self.set_results(std::move(results));
}

void set_joined(Pooling& self,
                const std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>>& given) {
  std::vector<weft::Joined> joined;
  for (const auto& [from, to, dim] : given) joined.push_back({from, to, dim});
  self.set_joined(std::move(joined));
}

// Pools bags into memory of this process, without a program.
void pool_into(const ShardTuple& shard, const BagsTuple& bags, bool mean, std::uint64_t first,
               std::uint64_t last, std::uint64_t out, std::uint64_t pitch) {
  weft::pool(shard_of(shard), bags_of(bags, mean), {first, last}, at<float>(out), pitch);
}

// Whether that number of slices was delivered before the time was over; Ctrl-C breaks off.
bool wait_delivered(const Pooling& self, std::uint64_t count, double seconds) {
  weft::Backoff backoff(false, to_duration(seconds));
  while (self.delivered() < count) {
    backoff.pause();
    if (backoff.should_poll()) poll_signals();
    if (backoff.is_over()) return false;
  }
  return true;
}

}  // namespace

void bind_embedding(nb::module_& module) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<weft::Kernels>(module, "Kernels", "Computation that a program calls without Python.");
  nb::class_<Pooling, weft::Kernels>(module, "Pooling", "Bags pooled into the memory of other ranks.")
      .def(nb::init<std::size_t, std::size_t>(), nb::arg("pitch"), nb::arg("partial_pitch"))
      .def("set", &set, nb::arg("shards"), nb::arg("where"), nb::arg("bags"), nb::arg("mean"))
      .def("set_task", &set_task, nb::arg("row"), nb::arg("kind"), nb::arg("first"), nb::arg("last"),
           nb::arg("local"), nb::arg("offsets"))
      .def("set_joined", &set_joined, nb::arg("tables"))
      .def("set_samples", &Pooling::set_samples, nb::arg("samples"))
      .def("sort", &Pooling::sort, Release())
      .def("set_results", &set_results, nb::arg("results"))
      .def(
          "change",
          [](Pooling& self, std::uint64_t first, std::size_t samples) {
            self.change(at<const float>(first), samples);
          },
          nb::arg("first"), nb::arg("samples"), Release())
      .def(
          "pool_rows",
          [](const Pooling& self, std::uint64_t first, std::uint64_t last, std::uint64_t out,
             std::uint64_t pitch) { self.pool_rows({first, last}, at<float>(out), pitch); },
          nb::arg("first"), nb::arg("last"), nb::arg("out"), nb::arg("pitch"), Release())
      .def("begin", &Pooling::begin)
      .def("wait_delivered", &wait_delivered, nb::arg("count"), nb::arg("seconds"), Release());
  module.def("pool_into", &pool_into, nb::arg("shard"), nb::arg("bags"), nb::arg("mean"), nb::arg("first"),
             nb::arg("last"), nb::arg("out"), nb::arg("pitch"), Release());
}
