// Rates are max-min fair, while flows come and go.
#include "fair_share.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Flows by (resource, weight) and cap, as columns.
struct Flows {
  std::vector<int64_t> start{0};
  std::vector<int32_t> resource;
  std::vector<double> weight;
  std::vector<double> cap;

  Flows& add(std::vector<std::pair<int32_t, double>> demands, double limit = kInfinity) {
    for (const auto& [r, w] : demands) {
      resource.push_back(r);
      weight.push_back(w);
    }
    start.push_back(static_cast<int64_t>(resource.size()));
    cap.push_back(limit);
    return *this;
  }

  weft::Demands demands() const { return {start, resource, weight, cap}; }
  int32_t size() const { return static_cast<int32_t>(cap.size()); }
};

std::vector<double> rates_of(const Flows& flows, const std::vector<double>& capacity) {
  weft::FairShare share(flows.demands(), capacity);
  for (int32_t flow = 0; flow < flows.size(); ++flow) share.add(flow);
  share.solve();
  std::vector<double> rates;
  for (int32_t flow = 0; flow < flows.size(); ++flow) rates.push_back(share.rate(flow));
  return rates;
}

bool close(double have, double want) { return std::abs(have - want) <= 1e-9 * std::abs(want); }

void test_a_flow_is_as_fast_as_its_bottleneck() {
  const auto rates =
      rates_of(Flows().add({{0, 1}}).add({{0, 1}, {1, 1}}).add({{1, 1}}).add({{1, 1}}), {12, 9});
  CHECK(close(rates[0], 9) && close(rates[1], 3) && close(rates[2], 3) && close(rates[3], 3));
}

void test_caps_and_weights_leave_the_rest_to_others() {
  const auto rates = rates_of(Flows().add({{0, 1}}, 1).add({{0, 2}}).add({{0, 1}}), {10});
  CHECK(close(rates[0], 1) && close(rates[1], 3) && close(rates[2], 3));
}

void test_nothing_limits_a_flow_without_resources() {
  const auto rates = rates_of(Flows().add({}).add({}, 2).add({{0, 1}}), {0});
  CHECK(rates[0] == kInfinity && rates[1] == 2 && rates[2] == 0);
}

void test_one_resource_twice_counts_once_when_it_fills() {
  const auto rates = rates_of(Flows().add({{0, 1}, {0, 1}, {1, 1}}).add({{1, 1}}), {10, 20});
  CHECK(close(rates[0], 5) && close(rates[1], 15));
}

void test_a_cap_that_is_met_as_a_resource_fills_counts_once() {
  const auto rates = rates_of(Flows().add({{0, 1}, {1, 1}}, 5).add({{0, 1}}).add({{1, 1}}), {10, 20});
  CHECK(close(rates[0], 5) && close(rates[1], 5) && close(rates[2], 15));
}

// Adding and removing leaves what a fresh start with the same flows gives.
void test_flows_that_come_and_go_leave_no_trace() {
  constexpr int32_t kPorts = 150;  // several blocks
  constexpr int32_t kFlows = 600;
  std::mt19937 random(7);
  Flows flows;
  for (int32_t flow = 0; flow < kFlows; ++flow) {
    const auto a = static_cast<int32_t>(random() % kPorts);
    const auto b = static_cast<int32_t>(random() % kPorts);
    if (random() % 4 == 0) {
      flows.add({{a, 0.5 + random() % 3}, {b, 1.0}}, random() % 2 ? 0.7 : kInfinity);
    } else {
      flows.add({{a, 1.0}, {b, 1.0}});
    }
  }
  std::vector<double> capacity;
  for (int32_t r = 0; r < kPorts; ++r) capacity.push_back(1.0 + random() % 20);
  weft::FairShare lasting(flows.demands(), capacity);
  std::vector<bool> active(kFlows, false);
  for (int round = 0; round < 60; ++round) {
    for (int change = 0; change < 40; ++change) {
      const auto flow = static_cast<int32_t>(random() % kFlows);
      if (active[static_cast<size_t>(flow)]) {
        lasting.remove(flow);
      } else {
        lasting.add(flow);
      }
      active[static_cast<size_t>(flow)] = !active[static_cast<size_t>(flow)];
    }
    const auto r = static_cast<int32_t>(random() % kPorts);
    capacity[static_cast<size_t>(r)] = random() % 10;
    lasting.set_capacity(r, capacity[static_cast<size_t>(r)]);
    weft::FairShare fresh(flows.demands(), capacity);
    for (int32_t flow = 0; flow < kFlows; ++flow) {
      if (active[static_cast<size_t>(flow)]) fresh.add(flow);
    }
    lasting.solve();
    fresh.solve();
    for (int32_t flow = 0; flow < kFlows; ++flow) {
      if (!active[static_cast<size_t>(flow)]) continue;
      CHECK(close(lasting.rate(flow), fresh.rate(flow)));
      CHECK(lasting.rate(flow, lasting.pair(flow)) == lasting.rate(flow));
    }
  }
}

// Even flows use even resources, odd ones odd: two components, each solved when it changes.
void test_components_are_solved_one_by_one() {
  std::mt19937 random(7);
  Flows flows;
  constexpr int32_t kFlows = 400;
  constexpr int32_t kPorts = 300;  // several blocks in each component
  std::vector<int32_t> of_flow, of_resource;
  for (int32_t flow = 0; flow < kFlows; ++flow) {
    const auto a = static_cast<int32_t>(random() % (kPorts / 2)) * 2 + flow % 2;
    const auto b = static_cast<int32_t>(random() % (kPorts / 2)) * 2 + flow % 2;
    flows.add({{a, 0.5 + random() % 3}, {b, 1.0}}, random() % 3 ? kInfinity : 0.7);
    of_flow.push_back(flow % 2);
  }
  std::vector<double> capacity;
  for (int32_t r = 0; r < kPorts; ++r) {
    capacity.push_back(1.0 + random() % 20);
    of_resource.push_back(r % 2);
  }
  weft::FairShare apart(flows.demands(), capacity, 2, of_flow, of_resource);
  weft::FairShare whole(flows.demands(), capacity);
  for (int32_t flow = 0; flow < kFlows; ++flow) {
    apart.add(flow);
    whole.add(flow);
  }
  for (const int32_t component : {0, 1}) apart.solve(component);
  for (int32_t change = 0; change < kFlows; change += 3) {  // alternating components
    apart.remove(change);
    whole.remove(change);
    apart.solve(change % 2);
    whole.solve();
    for (int32_t flow = 0; flow < kFlows; ++flow) {
      if (flow > change || flow % 3 != 0) CHECK(close(apart.rate(flow), whole.rate(flow)));
    }
  }
}

}  // namespace

int main() {
  test_a_flow_is_as_fast_as_its_bottleneck();
  test_caps_and_weights_leave_the_rest_to_others();
  test_nothing_limits_a_flow_without_resources();
  test_one_resource_twice_counts_once_when_it_fills();
  test_a_cap_that_is_met_as_a_resource_fills_counts_once();
  test_flows_that_come_and_go_leave_no_trace();
  test_components_are_solved_one_by_one();
}
