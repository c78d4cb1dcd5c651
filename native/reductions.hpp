// Reductions by the names of their dtype and operator.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "reduce.hpp"

namespace weft {

// All operators; some dtypes lack some of them.
inline constexpr std::array<std::string_view, 9> kOperators{"sum",  "avg", "prod", "min",          "max",
                                                            "band", "bor", "bxor", "premul:FACTOR"};

[[noreturn]] inline void no_reduction(std::string_view op, std::string_view dtype) {
  std::string known;
  for (const std::string_view name : kOperators) known += (known.empty() ? "" : ", ") + std::string(name);
  throw std::invalid_argument("no reduction is called '" + std::string(op) + "' for " + std::string(dtype) +
                              " (expected one of " + known + ", as far as the dtype has it)");
}

// "premul:0.5": each source is multiplied first.
inline Scale scale_of(std::string_view op) {
  if (op == "avg") return {Scale::When::after, 1};
  constexpr std::string_view kPremul = "premul:";
  if (!op.starts_with(kPremul)) return {};
  const std::string_view number = op.substr(kPremul.size());
  double factor = 0;
  // Not by strtod: that reads numbers as the user's country writes them.
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), factor);
  if (error != std::errc{} || end != number.data() + number.size()) no_reduction(op, "any dtype");
  return {Scale::When::before, factor};
}

template <class T>
Reduction reduction_of(std::string_view op, std::string_view dtype) {
  const Scale scale = scale_of(op);
  if (op == "sum" || scale.when != Scale::When::never) return {reducer_of<T, Sum>(), sizeof(T), scale};
  if (op == "prod") return {reducer_of<T, Product>(), sizeof(T), {}};
  if (op == "min") return {reducer_of<T, Minimum>(), sizeof(T), {}};
  if (op == "max") return {reducer_of<T, Maximum>(), sizeof(T), {}};
  if constexpr (std::is_integral_v<T>) {
    if (op == "band") return {reducer_of<T, And>(), sizeof(T), {}};
    if (op == "bor") return {reducer_of<T, Or>(), sizeof(T), {}};
    if (op == "bxor") return {reducer_of<T, Xor>(), sizeof(T), {}};
  }
  no_reduction(op, dtype);
}

// Bytes that are 0 or 1: a sum is whether any is, a product whether all are.
inline Reduction truth_of(std::string_view op) {
  using Byte = std::uint8_t;
  if (op == "sum" || op == "max" || op == "bor") return {reducer_of<Byte, Or>(), 1, {}};
  if (op == "prod" || op == "min" || op == "band") return {reducer_of<Byte, And>(), 1, {}};
  if (op == "bxor") return {reducer_of<Byte, Xor>(), 1, {}};
  no_reduction(op, "bool");
}

// Adding and scaling treat the two parts alike.
template <class T>
Reduction complex_of(std::string_view op, std::string_view dtype) {
  if (op == "prod") return {reducer_of<Complex<T>, Product>(), 2 * sizeof(T), {}};
  if (op == "min" || op == "max") no_reduction(op, dtype);
  Reduction result = reduction_of<T>(op, dtype);
  result.item_bytes = 2 * sizeof(T);
  return result;
}

inline Reduction reduction_of(std::string_view dtype, std::string_view op) {
  if (dtype == "float64") return reduction_of<double>(op, dtype);
  if (dtype == "float32") return reduction_of<float>(op, dtype);
  if (dtype == "float16") return reduction_of<Half>(op, dtype);
  if (dtype == "bfloat16") return reduction_of<Brain>(op, dtype);
  if (dtype == "float8_e4m3fn") return reduction_of<Float8E4M3>(op, dtype);
  if (dtype == "float8_e5m2") return reduction_of<Float8E5M2>(op, dtype);
  if (dtype == "int64") return reduction_of<std::int64_t>(op, dtype);
  if (dtype == "int32") return reduction_of<std::int32_t>(op, dtype);
  if (dtype == "int16") return reduction_of<std::int16_t>(op, dtype);
  if (dtype == "int8") return reduction_of<std::int8_t>(op, dtype);
  if (dtype == "uint8") return reduction_of<std::uint8_t>(op, dtype);
  if (dtype == "bool") return truth_of(op);
  if (dtype == "complex64") return complex_of<float>(op, dtype);
  if (dtype == "complex128") return complex_of<double>(op, dtype);
  throw std::invalid_argument("no reduction knows dtype '" + std::string(dtype) +
                              "' (expected float8_e4m3fn to float64, int8 to int64, uint8, bool or complex)");
}

}  // namespace weft
