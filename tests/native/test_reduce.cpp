// What moves and combines bytes, in every alignment.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "check.hpp"
#include "half.hpp"
#include "move.hpp"
#include "reductions.hpp"

namespace {

using weft::Bytes;

// Bytes that start ``skew`` after an aligned address.
template <class T>
struct Skewed {
  Skewed(const std::vector<T>& values, std::size_t skew)
      : memory(values.size() * sizeof(T) + skew), skew(skew) {
    if (!values.empty()) std::memcpy(memory.data() + skew, values.data(), values.size() * sizeof(T));
  }
  Bytes bytes() { return Bytes(memory).subspan(skew); }
  std::vector<T> values() {
    std::vector<T> result((memory.size() - skew) / sizeof(T));
    if (!result.empty()) std::memcpy(result.data(), memory.data() + skew, memory.size() - skew);
    return result;
  }
  std::vector<std::byte> memory;
  std::size_t skew;
};

void test_every_half_survives() {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const weft::Half half{static_cast<std::uint16_t>(bits)};
    const float value = static_cast<float>(half);
    const weft::Half again = weft::Half::from(value);
    if (std::isnan(value)) {
      CHECK(std::isnan(static_cast<float>(again)));
    } else {
      CHECK(again.bits == half.bits);
    }
    const weft::Brain brain{static_cast<std::uint16_t>(bits)};
    const float wide = static_cast<float>(brain);
    CHECK(std::isnan(wide) ? std::isnan(static_cast<float>(weft::Brain::from(wide)))
                           : weft::Brain::from(wide).bits == brain.bits);
  }
}

// The reducers of all levels that this machine has, not only the one that it takes.
template <class Op>
std::vector<weft::Reducer> reducers_of_brains() {
  std::vector<weft::Reducer> found{weft::reducer_of<weft::Brain, Op>()};
#if defined(__x86_64__)
  if (weft::level() >= weft::Level::avx2) found.push_back(&weft::reduce_avx2<weft::Brain, Op>);
  if (weft::level() >= weft::Level::avx512) found.push_back(&weft::reduce_avx512<weft::Brain, Op>);
  if (weft::has_avx512_bf16()) found.push_back(&weft::reduce_avx512_bf16<weft::Brain, Op>);
#endif
  return found;
}

// Every bfloat16 with others of near and far exponents: what this machine's vectors compute is what the loop
// without vectors does. Of two NaNs either may be kept.
template <class Op>
void check_levels_of_brains(std::uint32_t step) {
  constexpr std::size_t kCount = 0x10000;
  std::vector<std::uint16_t> a(kCount), b(kCount), plain(kCount), wide(kCount);
  for (std::uint32_t i = 0; i < kCount; ++i) {
    a[i] = static_cast<std::uint16_t>(i);
    b[i] = static_cast<std::uint16_t>(i * step + step);
  }
  const auto bytes = [](std::vector<std::uint16_t>& x) { return std::as_writable_bytes(std::span(x)); };
  const std::vector<Bytes> srcs{bytes(a), bytes(b)};
  weft::reduce_plain<weft::Brain, Op>(srcs, bytes(plain), {});
  for (const weft::Reducer reduce : reducers_of_brains<Op>()) {
    std::ranges::fill(wide, std::uint16_t{0x1234});
    reduce(srcs, bytes(wide), {});
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto value = [](std::uint16_t bits) { return static_cast<float>(weft::Brain{bits}); };
      CHECK(std::isnan(value(plain[i])) ? std::isnan(value(wide[i])) : plain[i] == wide[i]);
    }
  }
}

void test_all_levels_round_brains_alike() {
  for (const std::uint32_t step : {1U, 3U, 129U, 32'771U, 65'535U}) {
    check_levels_of_brains<weft::Sum>(step);
    check_levels_of_brains<weft::Product>(step);
    check_levels_of_brains<weft::Maximum>(step);
  }
}

void test_halfway_goes_to_even() {
  const auto next = [](std::uint16_t bits) { return static_cast<float>(weft::Half{bits}); };
  for (std::uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = next(bits);
    const float high = next(static_cast<std::uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    CHECK(weft::Half::from(middle).bits == (bits % 2 == 0 ? bits : bits + 1));
    CHECK(weft::Half::from(std::nextafterf(middle, 0)).bits == bits);
    CHECK(weft::Half::from(std::nextafterf(middle, 1e9F)).bits == bits + 1);
    CHECK(weft::Half::from(-middle).bits == (0x8000 | weft::Half::from(middle).bits));
  }
  CHECK(weft::Half::from(65519.0F).bits == 0x7bff && weft::Half::from(65520.0F).bits == 0x7c00);
  CHECK(weft::Half::from(1e-10F).bits == 0 && weft::Half::from(-1e-10F).bits == 0x8000);
}

void test_integers_wrap_and_nothing_need_be_aligned() {
  for (const std::size_t skew : {0, 1, 3, 7}) {
    std::vector<std::int16_t> values(3000);
    std::iota(values.begin(), values.end(), static_cast<std::int16_t>(-1500));
    Skewed<std::int16_t> a(values, skew), b(values, skew + 1), c(values, 0), dst(values, skew);
    const std::vector<Bytes> srcs = {a.bytes(), b.bytes(), c.bytes()};
    weft::reduction_of("int16", "prod").run(srcs, dst.bytes());
    const auto result = dst.values();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int64_t v = values[i];
      CHECK(result[i] == static_cast<std::int16_t>(v * v * v));
    }
  }
}

void test_the_result_may_lie_in_any_source() {
  for (std::size_t into = 0; into < 3; ++into) {
    std::vector<Skewed<double>> sources;
    for (double k = 1; k <= 3; ++k) sources.emplace_back(std::vector<double>(1000, k), 5);
    const std::vector<Bytes> srcs = {sources[0].bytes(), sources[1].bytes(), sources[2].bytes()};
    weft::reduction_of("float64", "sum").run(srcs, srcs[into]);
    for (const double value : sources[into].values()) CHECK(value == 6);
  }
}

void test_not_a_number_wins() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* op : {"min", "max"}) {
    Skewed<float> a({nan, 1, 1}, 0), b({2, nan, 2}, 0), dst({0, 0, 0}, 0);
    const std::vector<Bytes> srcs = {a.bytes(), b.bytes()};
    weft::reduction_of("float32", op).run(srcs, dst.bytes());
    CHECK(std::isnan(dst.values()[0]) && std::isnan(dst.values()[1]));
    CHECK(dst.values()[2] == (std::string(op) == "min" ? 1 : 2));
  }
}

void test_what_there_is_not() {
  CHECK_THROWS(weft::reduction_of("float128", "sum"), std::invalid_argument);
  CHECK_THROWS(weft::reduction_of("float32", "mean"), std::invalid_argument);
}

std::vector<std::uint8_t> counting(std::size_t size, int first) {
  std::vector<std::uint8_t> result(size);
  std::iota(result.begin(), result.end(), static_cast<std::uint8_t>(first));
  return result;
}

void test_moves() {
  for (const std::size_t size : {0, 1, 8191, 8192, 8193, 200'001}) {
    const auto x = counting(size, 1), y = counting(size, 77);
    Skewed<std::uint8_t> a(x, 1), b(y, 3), c(y, 0);
    weft::swap(a.bytes(), b.bytes());
    CHECK(a.values() == y && b.values() == x);
    const std::vector<Bytes> dsts = {a.bytes(), b.bytes(), c.bytes()};  // itself stays as it is
    for (const std::size_t streamed : {std::size_t{0}, size + 1}) {
      for (const Bytes dst : {a.bytes(), c.bytes()}) std::fill(dst.begin(), dst.end(), std::byte{0xaa});
      weft::broadcast(b.bytes(), dsts, streamed);
      CHECK(a.values() == x && b.values() == x && c.values() == x);
    }
    Skewed<std::uint8_t> slot(std::vector<std::uint8_t>(size + 20), 5), out(y, 0);
    weft::encode_none(a.bytes(), slot.bytes());
    CHECK(!weft::decode_none(slot.bytes(), out.bytes()) && out.values() == x);
    if (size > 0) {
      const auto found = weft::decode_none(slot.bytes(), out.bytes().first(size - 1));
      CHECK(found && *found == size);
    }
  }
}

// By each kind of copy: short, by strings (both ends alike on their lines), by vectors, and streamed.
void test_copies_write_their_bytes_and_no_others() {
  for (const std::size_t size : {std::size_t{100}, std::size_t{700'001}}) {
    const auto x = counting(size, 3);
    for (const std::size_t from : {0, 1, 64}) {
      for (const std::size_t to : {0, 1, 33, 65}) {
        for (const std::size_t streamed : {std::size_t{0}, size + 1}) {
          Skewed<std::uint8_t> src(x, from), dst(std::vector<std::uint8_t>(size + 10), to);
          const Bytes all = dst.bytes();
          weft::copy(src.bytes(), all.first(size), streamed);
          CHECK(std::equal(x.begin(), x.end(), reinterpret_cast<const std::uint8_t*>(all.data())));
          for (const std::byte beyond : all.subspan(size)) CHECK(beyond == std::byte{0});
        }
      }
    }
    Skewed<std::uint8_t> moved(x, 0);  // spans that overlap
    weft::copy(moved.bytes().first(size - 7), moved.bytes().subspan(7), 0);
    const auto after = moved.values();
    CHECK(std::equal(x.begin(), x.end() - 7, after.begin() + 7));
  }
}

void test_overlap() {
  std::vector<std::byte> memory(100);
  const Bytes all(memory);
  CHECK(weft::overlap(all.first(10), all.subspan(9, 10)));
  CHECK(!weft::overlap(all.first(10), all.subspan(10)));
  CHECK(!weft::overlap(all.subspan(5, 0), all));
  CHECK(weft::same(all, all) && !weft::same(all, all.first(99)));
}

}  // namespace

int main() {
  test_every_half_survives();
  test_all_levels_round_brains_alike();
  test_halfway_goes_to_even();
  test_integers_wrap_and_nothing_need_be_aligned();
  test_the_result_may_lie_in_any_source();
  test_not_a_number_wins();
  test_what_there_is_not();
  test_moves();
  test_copies_write_their_bytes_and_no_others();
  test_overlap();
}
