// Tiles on units: how long what is left takes when units come and go.
#include "grids.hpp"

#include <cmath>

#include "check.hpp"

namespace {

using weft::Progress;

bool close(double a, double b) { return std::abs(a - b) < 1e-9; }

void test_tiles_run_in_waves() {
  CHECK(close(Progress(10, 10).span(), 1));
  CHECK(close(Progress(11, 10).span(), 2));
  CHECK(close(Progress(3, 10).span(), 1));
}

void test_units_lost_between_waves_lengthen_the_rest() {
  Progress grid(40, 10);
  grid.change(2, 8);  // 20 tiles are left
  CHECK(close(grid.span(), 3));
}

void test_units_that_come_in_the_midst_of_a_wave_begin_at_once() {
  Progress grid(20, 10);
  grid.change(0.5, 15);  // 10 tiles run, 10 wait: five begin now, five when the ten have ended
  CHECK(close(grid.span(), 1.5));
  Progress few(14, 10);
  few.change(0.5, 15);  // 4 wait and begin now
  CHECK(close(few.span(), 1));
}

void test_idle_units_can_be_lost_and_come_back_unnoticed() {
  Progress grid(6, 10);
  grid.change(0.25, 6);
  CHECK(close(grid.span(), 0.75));
  grid.change(0.25, 10);
  CHECK(close(grid.span(), 0.5));
}

void test_no_units_mean_never() {
  Progress grid(20, 10);
  grid.change(1, 0);
  CHECK(std::isinf(grid.span()));
  grid.change(0, 5);
  CHECK(close(grid.span(), 2));
}

void test_who_comes_second_waits_for_its_share_or_for_the_last_wave() {
  const Progress grid(95, 10);  // nine full waves, then half of one
  CHECK(close(grid.admission(0.5, 5, 1.0, 1), 1));    // every slot that comes free
  CHECK(close(grid.admission(0.5, 5, 0.25, 1), 2));   // twenty slots
  CHECK(close(grid.admission(0.5, 5, 0.0, 1), 9));    // none before the last wave
  CHECK(close(grid.admission(0.5, 6, 0.0, 1), 10));   // which leaves only five
  CHECK(close(grid.admission(9.5, 5, 0.0, 1), 9.5));  // and then at once
}

void test_slots_next_to_the_tiles_admit_at_once() {
  const Progress grid(15, 10);
  CHECK(close(grid.admission(0, 5, 0.0, 2), 0));
  CHECK(close(grid.admission(0, 6, 0.0, 2), 1));
}

}  // namespace

int main() {
  test_tiles_run_in_waves();
  test_units_lost_between_waves_lengthen_the_rest();
  test_units_that_come_in_the_midst_of_a_wave_begin_at_once();
  test_idle_units_can_be_lost_and_come_back_unnoticed();
  test_no_units_mean_never();
  test_who_comes_second_waits_for_its_share_or_for_the_last_wave();
  test_slots_next_to_the_tiles_admit_at_once();
}
