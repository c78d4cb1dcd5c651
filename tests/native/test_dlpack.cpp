// What is read out of a tensor's description: its bytes where they lie one after another.
#include <array>
#include <cstddef>
#include <cstdint>

#include "check.hpp"
#include "dlpack.hpp"

namespace {

using weft::dlpack::Tensor;

std::array<std::byte, 256> memory;

Tensor described(std::int32_t dims, const std::int64_t* shape, const std::int64_t* strides) {
  return {memory.data(), weft::dlpack::kCpu, 0, dims, {2, 32, 1}, shape, strides, 8};
}

void test_contiguous_tensors_show_their_bytes() {
  constexpr std::array<std::int64_t, 3> shape{2, 1, 3};
  constexpr std::array<std::int64_t, 3> strides{3, 77, 1};  // of one element: it says nothing
  for (const std::int64_t* steps : {strides.data(), static_cast<const std::int64_t*>(nullptr)}) {
    const auto bytes = weft::dlpack::bytes_of(described(3, shape.data(), steps));
    CHECK(bytes && bytes->data() == memory.data() + 8 && bytes->size() == 24);
  }
}

void test_a_number_and_nothing_are_contiguous() {
  const auto number = weft::dlpack::bytes_of(described(0, nullptr, nullptr));
  CHECK(number && number->size() == 4);
  constexpr std::array<std::int64_t, 2> shape{0, 3}, strides{9, 9};
  const auto nothing = weft::dlpack::bytes_of(described(2, shape.data(), strides.data()));
  CHECK(nothing && nothing->empty());
}

void test_strides_and_other_devices_show_nothing() {
  constexpr std::array<std::int64_t, 2> shape{2, 3}, strides{1, 2};
  CHECK(!weft::dlpack::bytes_of(described(2, shape.data(), strides.data())));
  Tensor elsewhere = described(1, shape.data(), nullptr);
  elsewhere.device = weft::dlpack::kCpu + 1;
  CHECK(!weft::dlpack::bytes_of(elsewhere));
}

void test_more_elements_than_can_be_counted_show_nothing() {
  constexpr std::array<std::int64_t, 2> shape{std::int64_t{1} << 32, std::int64_t{1} << 32}, strides{0, 0};
  CHECK(!weft::dlpack::bytes_of(described(2, shape.data(), strides.data())));
  CHECK(!weft::dlpack::bytes_of(described(2, shape.data(), nullptr)));
}

void test_rows_are_shared_by_parts() {
  constexpr std::array<std::int64_t, 1> shape{6};
  CHECK(weft::dlpack::has_rows_for(described(1, shape.data(), nullptr), 3));
  CHECK(!weft::dlpack::has_rows_for(described(1, shape.data(), nullptr), 4));
  CHECK(weft::dlpack::has_rows_for(described(0, nullptr, nullptr), 4));
}

}  // namespace

int main() {
  test_contiguous_tensors_show_their_bytes();
  test_a_number_and_nothing_are_contiguous();
  test_strides_and_other_devices_show_nothing();
  test_more_elements_than_can_be_counted_show_nothing();
  test_rows_are_shared_by_parts();
}
