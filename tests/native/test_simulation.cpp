// Threads of commands in time: flags, lanes, units, submissions.
#include "simulation.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"

namespace {

using weft::Step;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One command; what does not matter to it is left out.
struct Command {
  Step step = Step::kNothing;
  double before = 0;
  double size = 0;
  int32_t resource = -1;
  int32_t flag = -1;
  int64_t count = 0;
  double latency = 0;
  int32_t target = -1;
  int32_t units = 0;
};

Command flow(double size, int32_t resource) {
  return {.step = Step::kFlow, .size = size, .resource = resource};
}
Command signal(int32_t flag, double latency = 0) {
  return {.step = Step::kSignal, .flag = flag, .latency = latency};
}
Command wait(int32_t flag, int64_t count = 1) { return {.step = Step::kWait, .flag = flag, .count = count}; }
Command submit(int32_t thread, int64_t count, int32_t hold = -1) {
  return {.step = Step::kSubmit, .flag = hold, .count = count, .target = thread};
}

// Columns built command by command, thread by thread.
struct Case {
  std::vector<uint8_t> step;
  std::vector<int32_t> thread, next, flag, fed, target, units, lanes, resource;
  std::vector<int32_t> first, launch, pool, priority;
  std::vector<double> before, size, latency, cap, weight, fetch;
  std::vector<int64_t> count, demand_start{0}, lanes_start;
  std::vector<uint8_t> is_fed;
  std::vector<int32_t> pool_units, pool_resource;
  std::vector<double> capacity;
  std::vector<double> start, end;

  // Returns the number of the thread; `launched` is the row that starts it.
  int32_t add(const std::vector<Command>& commands, int32_t launched = -1, int32_t rank = 0,
              double fetching = -1) {
    const auto number = static_cast<int32_t>(first.size());
    first.push_back(commands.empty() ? -1 : static_cast<int32_t>(step.size()));
    launch.push_back(launched);
    pool.push_back(pool_units.empty() ? -1 : 0);
    priority.push_back(rank);
    is_fed.push_back(fetching >= 0);
    fetch.push_back(fetching >= 0 ? fetching : 0);
    for (size_t i = 0; i < commands.size(); ++i) row(commands[i], number, i, i + 1 == commands.size());
    return number;
  }

  void row(const Command& c, int32_t number, size_t place, bool last) {
    next.push_back(last ? -1 : static_cast<int32_t>(step.size()) + 1);
    step.push_back(static_cast<uint8_t>(c.step));
    thread.push_back(number);
    before.push_back(c.before);
    size.push_back(c.size);
    latency.push_back(c.latency);
    flag.push_back(c.flag);
    count.push_back(c.count);
    fed.push_back(static_cast<int32_t>(place));
    target.push_back(c.target);
    units.push_back(c.units);
    cap.push_back(kInfinity);
    if (c.resource >= 0) {
      resource.push_back(c.resource);
      weight.push_back(1.0);
    }
    demand_start.push_back(static_cast<int64_t>(resource.size()));
  }

  void run(double tolerance = 0) {
    lanes_start.assign(1, 0);
    for (size_t r = 0; r < step.size(); ++r) {
      for (size_t t = 0; t < launch.size(); ++t) {
        if (launch[t] == static_cast<int32_t>(r)) lanes.push_back(static_cast<int32_t>(t));
      }
      lanes_start.push_back(static_cast<int64_t>(lanes.size()));
    }
    start.assign(step.size(), kInfinity);
    end.assign(step.size(), kInfinity);
    const weft::Rows rows{step,  thread, next,   before, size,        latency, flag,
                          count, fed,    target, units,  lanes_start, lanes};
    const weft::Threads threads{first, launch, is_fed, fetch, pool, priority};
    weft::Simulation simulation(rows, threads, {pool_units, pool_resource},
                                {demand_start, resource, weight, cap}, capacity, 16, tolerance, start, end);
    simulation.run([] {});
  }

  bool spans(size_t number, double from, double to) const {
    return std::abs(start[number] - from) < 1e-9 && std::abs(end[number] - to) < 1e-9;
  }
};

void test_flows_share_and_speed_up() {
  for (const double tolerance : {0.0, 1e-9}) {
    Case c;
    c.capacity = {10};
    c.add({flow(10, 0), flow(10, 0)});
    c.add({flow(30, 0)});
    c.run(tolerance);
    CHECK(c.spans(0, 0, 2) && c.spans(1, 2, 4) && c.spans(2, 0, 5));
  }
}

// A last flow of no size that demands every resource makes one component of all.
void test_components_change_no_time() {
  for (const double tolerance : {0.0, 1e-9}) {
    Case cases[2];
    for (Case& c : cases) {
      std::mt19937 random(3);
      c.capacity = {10, 7, 3, 20};
      for (int32_t thread = 0; thread < 8; ++thread) {
        std::vector<Command> commands;
        for (int32_t n = 0; n < 20; ++n) {
          commands.push_back(flow(1.0 + random() % 50, thread % 4));
          if (n % 5 == 4) commands.push_back(signal(thread));
          if (n % 5 == 4 && thread > 0) commands.push_back(wait(thread - 1, n / 5 + 1));
        }
        c.add(commands);
      }
    }
    Case& one = cases[1];
    one.add({flow(0, 0)});
    for (const int32_t r : {1, 2, 3}) {
      one.resource.push_back(r);
      one.weight.push_back(1.0);
    }
    one.demand_start.back() = static_cast<int64_t>(one.resource.size());
    for (Case& c : cases) c.run(tolerance);
    for (size_t row = 0; row < cases[0].step.size(); ++row) {
      CHECK(std::abs(cases[0].start[row] - one.start[row]) < 1e-6);
      CHECK(std::abs(cases[0].end[row] - one.end[row]) < 1e-6);
    }
  }
}

void test_a_signal_is_late_and_a_wait_counts() {
  Case c;
  c.capacity = {1};
  c.add({wait(3, 2), flow(0, -1)});
  c.add({signal(3, 2.5)});
  c.add({flow(1, 0), signal(3, 0.5)});
  c.run();
  CHECK(c.spans(0, 0, 2.5) && c.spans(1, 2.5, 2.5) && c.spans(4, 1, 1));
}

void test_a_launch_ends_with_its_last_lane() {
  Case c;
  c.capacity = {1};
  c.add({{.step = Step::kLaunch, .before = 1}, flow(1, 0)});
  c.add({flow(2, 0)}, 0);
  c.add({}, 0);
  c.add({wait(0)}, 0);
  c.add({{.step = Step::kNothing, .before = 5}, signal(0)});
  c.run();
  CHECK(c.spans(0, 0, 5) && c.spans(2, 1, 3) && c.spans(3, 1, 5) && c.spans(1, 5, 6));
}

void test_launches_take_units_by_priority() {
  Case c;
  c.capacity = {1, 1, 1, 4};
  c.pool_units = {4};
  c.pool_resource = {3};
  const Command launch{.step = Step::kLaunch, .units = 3};
  for (const int32_t priority : {0, 0, 7}) c.add({launch}, -1, priority);
  for (int32_t i = 0; i < 3; ++i) c.add({flow(2, i)}, i);
  c.add({flow(10, 3)});  // a kernel on what the launches leave
  c.run();
  CHECK(c.spans(0, 0, 2) && c.spans(2, 2, 4) && c.spans(1, 4, 6) && c.spans(6, 0, 7));
}

void test_launches_without_lanes_pass_their_units_on() {
  Case c;
  c.pool_units = {4};
  c.pool_resource = {-1};
  const Command launch{.step = Step::kLaunch, .units = 4};
  for (int i = 0; i < 3; ++i) c.add({launch, launch});
  c.run();
  for (size_t row = 0; row < 6; ++row) CHECK(c.spans(row, 0, 0));
}

void test_submissions_hand_over_in_whatever_order_threads_stand() {
  for (const bool host_first : {true, false}) {
    Case c;
    c.capacity = {1};
    const std::vector<Command> moves{flow(1, 0), flow(1, 0), flow(1, 0)};
    const auto host = [&](int32_t engine) {
      return std::vector<Command>{submit(engine, 1), submit(engine, 0), submit(engine, 2)};
    };
    if (host_first) c.add(host(1));
    c.add(moves, -1, 0, 0.5);
    if (!host_first) c.add(host(0));
    c.run();
    const size_t at = host_first ? 3 : 0;
    CHECK(c.spans(at, 0.5, 1.5) && c.spans(at + 1, 1.5, 2.5) && c.spans(at + 2, 2.5, 3.5));
  }
}

void test_a_held_submission_waits_for_its_flag_and_is_not_fetched() {
  for (const bool host_first : {true, false}) {
    Case c;
    c.capacity = {1};
    const Command pause{.step = Step::kNothing, .before = 3};
    const auto host = [&](int32_t engine) {
      return std::vector<Command>{submit(engine, 2, 5), pause, signal(5, 1)};
    };
    if (host_first) c.add(host(1));
    c.add({flow(1, 0), flow(1, 0)}, -1, 0, 0.5);
    if (!host_first) c.add(host(0));
    c.run();
    const size_t at = host_first ? 3 : 0;
    CHECK(c.spans(at, 4, 5) && c.spans(at + 1, 5, 6));
  }
}

void test_what_can_never_end_is_left_as_it_was() {
  Case c;
  c.capacity = {0};
  c.add({wait(0)});
  c.add({flow(1, 0), signal(0)});
  c.run();
  CHECK(c.end[0] == kInfinity && c.start[1] == 0 && c.end[1] == kInfinity);
}

void test_all_end_with_a_tolerance() {
  Case c;
  c.capacity = {1};
  for (int i = 0; i < 50; ++i) c.add({flow(1 + i, 0), signal(0), wait(0, i + 1)});
  c.run(1e-3);
  for (const double end : c.end) CHECK(end < kInfinity);
}

}  // namespace

int main() {
  test_flows_share_and_speed_up();
  test_components_change_no_time();
  test_a_signal_is_late_and_a_wait_counts();
  test_a_launch_ends_with_its_last_lane();
  test_launches_take_units_by_priority();
  test_launches_without_lanes_pass_their_units_on();
  test_submissions_hand_over_in_whatever_order_threads_stand();
  test_a_held_submission_waits_for_its_flag_and_is_not_fetched();
  test_what_can_never_end_is_left_as_it_was();
  test_all_end_with_a_tolerance();
}
