// Bags of every kind of row, on every level this machine has; their gradients; what is refused.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "embedding.hpp"
#include "embedding_update.hpp"
#include "pooling.hpp"

namespace {

using weft::Bags;
using weft::Element;
using weft::Integers;
using weft::Level;
using weft::Shard;

// A table of random numbers: what its rows hold as bytes, and what they mean.
struct Rows {
  Rows(Element element, std::size_t num, std::size_t dim) : element(element), num(num), dim(dim) {
    std::mt19937 random(static_cast<unsigned>(num + dim));
    std::uniform_real_distribution<float> drawn(-2, 2);
    for (std::size_t i = 0; i < num; ++i) add_row(random, drawn);
  }

  Shard shard(std::size_t first = 0, std::size_t count = SIZE_MAX) {
    count = std::min(count, num - first);
    return {"t", bytes.data() + first * weft::row_bytes(element, dim), num, first, count, dim, element};
  }

  Element element;
  std::size_t num, dim;
  std::vector<std::byte> bytes;  // exactly as long as the table: a sanitizer sees what is beyond
  std::vector<float> values;

 private:
  template <class T>
  void put(T value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), from, from + sizeof value);
  }

  void add_row(std::mt19937& random, std::uniform_real_distribution<float>& drawn) {
    const float scale = 0.01F, bias = -1;
    for (std::size_t i = 0; i < dim; ++i) {
      const float value = drawn(random);
      if (element == Element::float32) put(value), values.push_back(value);
      if (element == Element::bfloat16)
        put(weft::Brain::from(value)), values.push_back(static_cast<float>(weft::Brain::from(value)));
      if (element == Element::float16)
        put(weft::Half::from(value)), values.push_back(static_cast<float>(weft::Half::from(value)));
      if (element == Element::int8) {
        const auto byte = static_cast<std::uint8_t>((value + 2) * 60);
        volatile float product = static_cast<float>(byte) * scale;  // rounded before the sum
        put(byte), values.push_back(product + bias);
      }
    }
    if (element == Element::int8) put(scale), put(bias);
  }
};

struct Drawn {
  Drawn(std::size_t num_samples, std::size_t num_rows, bool with_weights) {
    std::mt19937 random(7);
    for (std::size_t s = 0; s < num_samples; ++s) {
      for (std::size_t i = random() % 5; i > 0; --i)
        indices.push_back(static_cast<std::int64_t>(random() % num_rows));
      offsets.push_back(static_cast<std::int64_t>(indices.size()));
    }
    for (const std::int64_t index : indices) narrow.push_back(static_cast<std::int32_t>(index));
    for (const std::int64_t offset : offsets) narrow_offsets.push_back(static_cast<std::int32_t>(offset));
    for (std::size_t i = 0; with_weights && i < indices.size(); ++i)
      weights.push_back(0.25F + static_cast<float>(i % 7));
  }

  [[nodiscard]] Bags bags(bool wide, bool mean) const {
    return {Integers{wide ? static_cast<const void*>(indices.data()) : narrow.data(), wide},
            Integers{wide ? static_cast<const void*>(offsets.data()) : narrow_offsets.data(), wide},
            weights.empty() ? nullptr : weights.data(),
            indices.size(),
            offsets.size() - 1,
            mean};
  }

  std::vector<std::int64_t> indices, offsets{0};
  std::vector<std::int32_t> narrow, narrow_offsets;
  std::vector<float> weights;
};

// One after another, as the contract says, on plain numbers.
std::vector<float> expected(const Rows& rows, const Drawn& drawn, bool mean, std::size_t first,
                            std::size_t count) {
  std::vector<float> out((drawn.offsets.size() - 1) * rows.dim, 0);
  for (std::size_t s = 0; s + 1 < drawn.offsets.size(); ++s) {
    const auto begin = static_cast<std::size_t>(drawn.offsets[s]),
               end = static_cast<std::size_t>(drawn.offsets[s + 1]);
    for (std::size_t d = 0; d < rows.dim; ++d) {
      volatile float sum = 0;
      for (std::size_t i = begin; i < end; ++i) {
        const auto row = static_cast<std::size_t>(drawn.indices[i]);
        if (row < first || row >= first + count) continue;
        volatile float value = rows.values[row * rows.dim + d];
        if (!drawn.weights.empty()) value = value * drawn.weights[i];
        sum = sum + value;
      }
      out[s * rows.dim + d] = mean && end > begin ? sum * (1.0F / static_cast<float>(end - begin)) : sum;
    }
  }
  return out;
}

std::vector<Level> levels() {
  std::vector<Level> found{Level::plain};
  if (weft::level() != Level::plain) found.push_back(Level::avx2);
  if (weft::level() == Level::avx512) found.push_back(Level::avx512);
  return found;
}

void test_sums_are_those_of_plain_numbers() {
  for (const Element element : {Element::float32, Element::bfloat16, Element::float16, Element::int8}) {
    for (const std::size_t dim : {1, 3, 8, 16, 20, 32, 48, 64, 100, 128, 200}) {
      Rows rows(element, 50, dim);
      for (const bool weighted : {false, true}) {
        const Drawn drawn(23, rows.num, weighted);
        for (const bool wide : {false, true}) {
          const bool mean = wide && !weighted;
          const auto want = expected(rows, drawn, mean, 0, rows.num);
          for (const Level level : levels()) {
            std::vector<float> out(want.size(), -1);
            weft::pool(rows.shard(), drawn.bags(wide, mean), {0, 23}, out.data(), dim, level);
            CHECK(out == want);
          }
        }
      }
    }
  }
}

void test_rows_of_others_are_passed_over() {
  Rows rows(Element::float32, 60, 24);
  const Drawn drawn(31, rows.num, false);
  for (const Level level : levels()) {
    std::vector<float> out(31 * 24, -1);
    weft::pool(rows.shard(20, 15), drawn.bags(true, false), {0, 31}, out.data(), 24, level);
    CHECK(out == expected(rows, drawn, false, 20, 15));
  }
}

void test_samples_of_a_range_leave_the_others_alone() {
  Rows rows(Element::float32, 10, 8);
  const Drawn drawn(9, rows.num, false);
  std::vector<float> out(3 * 11, -1);
  weft::pool(rows.shard(), drawn.bags(true, false), {4, 7}, out.data(), 11);
  const auto want = expected(rows, drawn, false, 0, rows.num);
  for (std::size_t s = 0; s < 3; ++s) {
    CHECK(std::equal(want.begin() + static_cast<std::ptrdiff_t>((4 + s) * 8),
                     want.begin() + static_cast<std::ptrdiff_t>((5 + s) * 8),
                     out.begin() + static_cast<std::ptrdiff_t>(s * 11)));
    CHECK(std::all_of(out.begin() + static_cast<std::ptrdiff_t>(s * 11 + 8),
                      out.begin() + static_cast<std::ptrdiff_t>((s + 1) * 11),
                      [](float value) { return value == -1; }));
  }
}

void test_wrong_bags_are_refused() {
  Rows rows(Element::float32, 10, 8);
  std::vector<float> out(2 * 8);
  for (const std::int64_t wrong : {std::int64_t{10}, std::int64_t{-1}, INT64_MAX, INT64_MIN}) {
    Drawn drawn(0, 10, false);
    drawn.indices = {3, wrong}, drawn.offsets = {0, 1, 2};
    CHECK_THROWS(weft::pool(rows.shard(), drawn.bags(true, false), {0, 2}, out.data(), 8), weft::BadBag);
    weft::Uses uses;
    CHECK_THROWS(uses.sort(rows.shard(), drawn.bags(true, false)), weft::BadBag);
  }
  for (const auto& offsets : {std::vector<std::int64_t>{0, 2, 1}, {0, 1, 3}, {-1, 1, 2}, {0, INT64_MIN, 2}}) {
    Drawn drawn(0, 10, false);
    drawn.indices = {3, 4}, drawn.offsets = offsets;
    CHECK_THROWS(weft::pool(rows.shard(), drawn.bags(true, false), {0, 2}, out.data(), 8), weft::BadBag);
  }
  const Drawn drawn(2, 10, false);
  CHECK_THROWS(weft::pool(rows.shard(), drawn.bags(true, false), {1, 3}, out.data(), 8), std::out_of_range);
}

void test_the_gradient_of_a_row_is_the_sum_of_its_uses() {
  for (const std::size_t num : {5, 3000}) {
    Rows rows(Element::float32, num, 12);
    const Drawn drawn(400, num, true);
    std::vector<float> memory(400 * 12);
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i % 13) - 6;
    weft::Gradients gradients;
    for (std::size_t s = 0; s < 400; ++s) gradients.push_back(memory.data() + s * 12);
    std::vector<float> want(num * 12, 0);
    for (std::size_t s = 0; s < 400; ++s) {
      for (auto i = static_cast<std::size_t>(drawn.offsets[s]);
           i < static_cast<std::size_t>(drawn.offsets[s + 1]); ++i) {
        for (std::size_t d = 0; d < 12; ++d)
          want[static_cast<std::size_t>(drawn.indices[i]) * 12 + d] += memory[s * 12 + d] * drawn.weights[i];
      }
    }
    weft::Uses uses;
    uses.sort(rows.shard(), drawn.bags(true, false));
    std::vector<std::int64_t> found(uses.num_rows());
    std::vector<float> sums(found.size() * 12);
    weft::collect(rows.shard(), uses, gradients, found.data(), sums.data());
    CHECK(std::is_sorted(found.begin(), found.end()));
    for (std::size_t r = 0; r < found.size(); ++r) {
      for (std::size_t d = 0; d < 12; ++d)
        CHECK(sums[r * 12 + d] == want[static_cast<std::size_t>(found[r]) * 12 + d]);
    }
    for (const Level level : levels()) {
      Rows stepped = rows;
      weft::update(stepped.shard(), uses, gradients, {weft::Rule::sgd, 0.5F, 0, nullptr}, level);
      const auto* after = reinterpret_cast<const float*>(stepped.bytes.data());
      for (std::size_t i = 0; i < want.size(); ++i) CHECK(after[i] == rows.values[i] - 0.5F * want[i]);
    }
    CHECK_THROWS(weft::update(rows.shard(), uses, gradients, {weft::Rule::rowwise_adagrad, 1, 0, nullptr}),
                 std::invalid_argument);
  }
}

void test_adagrad_and_narrow_rows_step() {
  for (const Element element : {Element::float32, Element::bfloat16, Element::float16}) {
    Rows rows(element, 4, 3);
    const Drawn drawn(30, 4, false);
    std::vector<float> memory(30 * 3, 0.5F), state(4, 1.0F);
    weft::Gradients gradients;
    for (std::size_t s = 0; s < 30; ++s) gradients.push_back(memory.data() + s * 3);
    weft::Uses uses;
    uses.sort(rows.shard(), drawn.bags(true, false));
    weft::update(rows.shard(), uses, gradients, {weft::Rule::rowwise_adagrad, 0.1F, 0.0F, state.data()});
    for (std::size_t row = 0; row < 4; ++row) {
      const auto times = static_cast<float>(
          std::count(drawn.indices.begin(), drawn.indices.end(), static_cast<std::int64_t>(row)));
      CHECK(state[row] == 1 + 0.25F * times * times);
      const float want = rows.values[row * 3] - 0.1F / std::sqrt(state[row]) * 0.5F * times;
      std::vector<float> have(3);
      const std::vector<std::int64_t> one{static_cast<std::int64_t>(row)}, borders{0, 1};
      weft::pool(rows.shard(), {{one.data(), true}, {borders.data(), true}, nullptr, 1, 1, false}, {0, 1},
                 have.data(), 3);
      CHECK(std::abs(have[0] - want) < 0.02F);
    }
  }
  Rows rows(Element::int8, 4, 3);
  const Drawn drawn(5, 4, false);
  std::vector<float> memory(15, 1);
  weft::Gradients gradients(5, memory.data());
  weft::Uses uses;
  uses.sort(rows.shard(), drawn.bags(true, false));
  CHECK_THROWS(weft::update(rows.shard(), uses, gradients, {}), std::invalid_argument);
}

// Two senders, three samples: blocks of the schedule, rows of the memory.
void test_slices_land_in_the_rows_of_their_samples() {
  Rows rows(Element::float32, 10, 2);
  const Drawn drawn(6, 10, false);
  weft::Pooling pooling(/*pitch=*/5, /*partial_pitch=*/0);
  pooling.set({{rows.shard(), drawn.bags(true, false), /*column=*/3, false, 0}});
  std::vector<float> out(3 * 5, -1);
  auto* memory = reinterpret_cast<std::byte*>(out.data());
  const std::uint64_t offset = 3 * 3 * sizeof(float);  // behind the block of three other columns
  pooling.set_task(4, {weft::PoolingTask::Kind::pool, {3, 6}, 0, {offset}});
  const std::vector<weft::ResolvedSlice> slices{{weft::Bytes(memory + offset, 3 * 2 * sizeof(float)), 0, 0}};
  pooling.run(4, slices);
  const auto want = expected(rows, drawn, false, 0, 10);
  for (std::size_t s = 0; s < 3; ++s) {
    for (std::size_t d = 0; d < 5; ++d) CHECK(out[s * 5 + d] == (d < 3 ? -1 : want[(3 + s) * 2 + d - 3]));
  }
  const std::vector<weft::ResolvedSlice> far{{weft::Bytes(static_cast<std::byte*>(nullptr), 24), 4096, 1}};
  CHECK_THROWS(pooling.run(4, far), std::invalid_argument);
  CHECK_THROWS(pooling.run(5, slices), std::out_of_range);
}

void test_rows_are_woven_of_all_lookups() {
  Rows left(Element::float32, 10, 3), right(Element::float32, 12, 2);
  const Drawn drawn_left(6, 10, false), drawn_right(6, 12, false);
  weft::Pooling pooling(/*pitch=*/5, /*partial_pitch=*/0);
  pooling.set({{left.shard(), drawn_left.bags(true, false), 2, false, 0},
               {right.shard(), drawn_right.bags(true, false), 0, false, 0}});
  std::vector<float> have(3 * 5, -1), each(3 * 3);
  pooling.pool_rows({1, 4}, have.data(), 5);
  weft::pool(left.shard(), drawn_left.bags(true, false), {1, 4}, each.data(), 3);
  for (std::size_t i = 0; i < 9; ++i) CHECK(have[i / 3 * 5 + 2 + i % 3] == each[i]);
  weft::pool(right.shard(), drawn_right.bags(true, false), {1, 4}, each.data(), 2);
  for (std::size_t i = 0; i < 6; ++i) CHECK(have[i / 2 * 5 + i % 2] == each[i]);
}

}  // namespace

int main() {
  test_sums_are_those_of_plain_numbers();
  test_rows_of_others_are_passed_over();
  test_samples_of_a_range_leave_the_others_alone();
  test_wrong_bags_are_refused();
  test_the_gradient_of_a_row_is_the_sum_of_its_uses();
  test_adagrad_and_narrow_rows_step();
  test_slices_land_in_the_rows_of_their_samples();
  test_rows_are_woven_of_all_lookups();
}
