// Gradients of pooled bags: summed row by row, in the order of the indices, and applied.
//
// Indices are sorted by row first, and stay in their order within a row: what a row gets does
// not depend on threads, ranks or chance, and each row is read and written once.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "embedding.hpp"

namespace weft {

// Where the gradient of each sample lies: in the memory of the rank that has the sample.
using Gradients = std::vector<const float*>;

// One entry of a bag: the row it asks for, and its index; its sample, where all count alike.
struct Use {
  std::uint32_t row;
  std::uint32_t at;
};

// What is done to a row with its gradient.
enum class Rule : std::uint8_t { sgd = 0, rowwise_adagrad = 1 };

struct UpdateStep {
  Rule rule = Rule::sgd;
  float rate = 0;
  float epsilon = 0;
  float* state = nullptr;  // one sum of squares for each held row
};

// The uses of the rows held here, sorted; kept from one call to the next to spare allocations.
class Uses {
 public:
  // Throws BadBag.
  void sort(const Shard& shard, const Bags& bags) {
    if (bags.num_indices > UINT32_MAX || shard.held_rows > UINT32_MAX) {
      throw std::invalid_argument("more indices or rows than four bytes count");
    }
    firsts_.assign(1, 0);  // nothing, should a bag be bad
    collect(shard, bags);
    other_.resize(uses_.size());
    // Two or three passes of equal digits, least significant first.
    std::size_t bits = 1;
    while (bits < 32 && shard.held_rows >> bits != 0) ++bits;
    const std::size_t passes = (bits + kDigit - 1) / kDigit;
    const std::size_t digit = (bits + passes - 1) / passes;
    for (std::size_t pass = 0; pass < passes; ++pass) sort_by(pass * digit, digit);
    find_rows();
  }

  [[nodiscard]] std::span<const Use> all() const noexcept { return uses_; }
  // Whether every gradient counts once: no weights, no means.
  [[nodiscard]] bool alike() const noexcept { return factors_.empty(); }
  [[nodiscard]] std::uint32_t sample(const Use& use) const noexcept {
    return alike() ? use.at : samples_[use.at];
  }
  // By how much the gradient of its sample counts.
  [[nodiscard]] float factor(const Use& use) const noexcept { return alike() ? 1.0F : factors_[use.at]; }

  [[nodiscard]] std::size_t num_rows() const noexcept { return firsts_.size() - 1; }
  // The uses of the n-th of these rows.
  [[nodiscard]] Range of(std::size_t n) const noexcept { return {firsts_[n], firsts_[n + 1]}; }

 private:
  static constexpr std::size_t kDigit = 11;  // bits: 32 in three passes, with counters of 8 KiB

  void collect(const Shard& shard, const Bags& bags) {
    uses_.resize(bags.num_indices);
    Use* next = uses_.data();
    factors_.resize(bags.weights != nullptr || bags.mean ? bags.num_indices : 0);
    samples_.resize(factors_.size());
    for (std::size_t sample = 0; sample < bags.num_samples; ++sample) {
      const Range bag = bag_of(shard, bags, sample);
      const float scale = bags.mean ? 1.0F / static_cast<float>(bag.last - bag.first) : 1.0F;
      for (std::size_t i = bag.first; i < bag.last; ++i) {
        const std::int64_t index = bags.indices[i];
        if (static_cast<std::uint64_t>(index) >= shard.num_rows) throw_bad_index(shard, sample, index);
        const std::size_t row = static_cast<std::size_t>(index) - shard.first_row;
        if (!alike()) {
          samples_[i] = static_cast<std::uint32_t>(sample);
          factors_[i] = bags.weights != nullptr ? bags.weights[i] * scale : scale;
        }
        *next = {static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(alike() ? sample : i)};
        next += row < shard.held_rows;
      }
    }
    uses_.resize(static_cast<std::size_t>(next - uses_.data()));
  }

  void sort_by(std::size_t shift, std::size_t digit) {
    std::array<std::uint32_t, (std::size_t{1} << kDigit) + 1> starts{};
    const std::uint32_t mask = (1U << digit) - 1;
    for (const Use& use : uses_) ++starts[(use.row >> shift & mask) + 1];
    for (std::size_t i = 1; i < starts.size(); ++i) starts[i] += starts[i - 1];
    for (const Use& use : uses_) other_[starts[use.row >> shift & mask]++] = use;
    std::swap(uses_, other_);
  }

  void find_rows() {
    firsts_.resize(uses_.size() + 1);
    firsts_[0] = 0;
    std::size_t count = uses_.empty() ? 0 : 1;
    for (std::size_t i = 1; i < uses_.size(); ++i) {  // no branch: new rows are unpredictable
      firsts_[count] = static_cast<std::uint32_t>(i);
      count += uses_[i].row != uses_[i - 1].row;
    }
    firsts_.resize(count + 1);
    firsts_[count] = static_cast<std::uint32_t>(uses_.size());
  }

  std::vector<Use> uses_, other_;
  std::vector<std::uint32_t> firsts_{0};  // the first use of each row, and the end of all
  std::vector<std::uint32_t> samples_;    // by index, where gradients do not count alike
  std::vector<float> factors_;            // the same
};

namespace updating {

inline constexpr std::size_t kUsesAhead = 8, kRowsAhead = 8;

// sum[first..first + kVectors * L) = the gradients of the uses in ``range``, in their order.
template <class L, std::size_t kVectors, bool kAlike>
WEFT_INLINE void add_columns(const Uses& uses, const Gradients& gradients, Range range, std::size_t first,
                             float* sum) noexcept {
  using Float = typename L::Float;
  const auto all = uses.all();
  Float held[kVectors]{};
  for (std::size_t u = range.first; u < range.last; ++u) {
    const float* gradient = gradients[uses.sample(all[u])] + first;
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) {
      Float value = *reinterpret_cast<const Float*>(gradient + v * L::kCount);
      if constexpr (!kAlike) {
        value = value * uses.factor(all[u]);
        asm("" : "+x"(value));  // not fused: every level rounds alike
      }
      held[v] += value;
    }
  }
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kVectors; ++v) *reinterpret_cast<Float*>(sum + first + v * L::kCount) = held[v];
}

// sum[0..dim) = the gradients of the uses in ``range``, in their order.
template <class L, bool kAlike>
WEFT_INLINE void add_up(const Uses& uses, const Gradients& gradients, Range range, std::size_t dim,
                        float* sum) noexcept {
  const auto all = uses.all();
  std::size_t at = 0;
  for (; at + 8 * L::kCount <= dim; at += 8 * L::kCount)
    add_columns<L, 8, kAlike>(uses, gradients, range, at, sum);
  for (; at + 4 * L::kCount <= dim; at += 4 * L::kCount)
    add_columns<L, 4, kAlike>(uses, gradients, range, at, sum);
  for (; at + L::kCount <= dim; at += L::kCount) add_columns<L, 1, kAlike>(uses, gradients, range, at, sum);
  for (; at < dim; ++at) {
    float held = 0;
    for (std::size_t u = range.first; u < range.last; ++u) {
      float value = gradients[uses.sample(all[u])][at] * uses.factor(all[u]);
      asm("" : "+x"(value));
      held += value;
    }
    sum[at] = held;
  }
}

// row -= rate * sum, in the row's own elements.
template <class T>
WEFT_INLINE void subtract(std::byte* row, const float* sum, float rate, std::size_t dim) noexcept {
  for (std::size_t i = 0; i < dim; ++i) {
    T value;
    std::memcpy(&value, row + i * sizeof(T), sizeof(T));
    float product = rate * sum[i];
    asm("" : "+x"(product));
    if constexpr (std::is_same_v<T, float>) {
      value -= product;
    } else {
      value = T::from(static_cast<float>(value) - product);
    }
    std::memcpy(row + i * sizeof(T), &value, sizeof(T));
  }
}

WEFT_INLINE void subtract(Element element, std::byte* row, const float* sum, float rate, std::size_t dim) {
  switch (element) {
    case Element::float32: return subtract<float>(row, sum, rate, dim);
    case Element::bfloat16: return subtract<Brain>(row, sum, rate, dim);
    case Element::float16: return subtract<Half>(row, sum, rate, dim);
    case Element::int8: break;
  }
  throw std::invalid_argument("a quantised table cannot be trained");
}

// How far a row goes along its gradient. Rowwise Adagrad keeps one sum a row: the mean of the
// squares of its gradient.
inline float rate_of(const UpdateStep& step, std::size_t row, const float* sum, std::size_t dim) noexcept {
  if (step.rule == Rule::sgd) return step.rate;
  double squares = 0;
  for (std::size_t i = 0; i < dim; ++i) squares += static_cast<double>(sum[i]) * sum[i];
  step.state[row] += static_cast<float>(squares / static_cast<double>(dim));
  return step.rate / (std::sqrt(step.state[row]) + step.epsilon);
}

// Brings memory near before it is needed: to be read, or changed.
template <bool kChanged>
WEFT_INLINE void fetch(const void* from, std::size_t size) noexcept {
  for (std::size_t byte = 0; byte < size; byte += 64) {
    __builtin_prefetch(static_cast<const std::byte*>(from) + byte, kChanged);
  }
}

template <class L, bool kAlike, class Act>
WEFT_INLINE void each_row_of(const Shard& shard, const Uses& uses, const Gradients& gradients,
                             const Act& act) {
  const auto all = uses.all();
  std::vector<float> sum(shard.dim);
  for (std::size_t n = 0; n < uses.num_rows(); ++n) {
    const Range range = uses.of(n);
    if (n + kRowsAhead < uses.num_rows()) {
      const std::size_t later = uses.of(n + kRowsAhead).first;
      fetch<true>(shard.rows + all[later].row * shard.stride(), shard.stride());
    }
    for (std::size_t u = range.first; u < range.last && u + kUsesAhead < all.size(); ++u) {
      fetch<false>(gradients[uses.sample(all[u + kUsesAhead])], shard.dim * sizeof(float));
    }
    add_up<L, kAlike>(uses, gradients, range, shard.dim, sum.data());
    act(static_cast<std::size_t>(all[range.first].row), sum.data());
  }
}

template <class L, class Act>
WEFT_INLINE void each_row(const Shard& shard, const Uses& uses, const Gradients& gradients, const Act& act) {
  if (uses.alike()) return each_row_of<L, true>(shard, uses, gradients, act);
  each_row_of<L, false>(shard, uses, gradients, act);
}

using Update = void(const Shard&, const Uses&, const Gradients&, const UpdateStep&);

template <class L>
WEFT_INLINE void update_rows(const Shard& shard, const Uses& uses, const Gradients& gradients,
                             const UpdateStep& step) {
  each_row<L>(shard, uses, gradients, [&](std::size_t row, const float* sum) __attribute__((always_inline)) {
    const float rate = rate_of(step, row, sum, shard.dim);
    subtract(shard.element, shard.rows + row * shard.stride(), sum, rate, shard.dim);
  });
}
inline void update_plain(const Shard& shard, const Uses& uses, const Gradients& gradients,
                         const UpdateStep& step) {
  update_rows<Lanes<4>>(shard, uses, gradients, step);
}
#if defined(__x86_64__)
WEFT_AVX2 inline void update_avx2(const Shard& shard, const Uses& uses, const Gradients& gradients,
                                  const UpdateStep& step) {
  update_rows<Lanes<8>>(shard, uses, gradients, step);
}
#endif

inline Update* update_at([[maybe_unused]] Level level) noexcept {
#if defined(__x86_64__)
  if (level != Level::plain) return &update_avx2;  // rows are short, and memory is what it waits for
#endif
  return &update_plain;
}

}  // namespace updating

// Changes every row that was asked for by its gradient.
inline void update(const Shard& shard, const Uses& uses, const Gradients& gradients, const UpdateStep& step,
                   Level at = level()) {
  if (step.rule != Rule::sgd && step.state == nullptr)
    throw std::invalid_argument("a rule without its state");
  updating::update_at(at)(shard, uses, gradients, step);
}

// The rows that were asked for, ascending, and their gradients one after another.
inline void collect(const Shard& shard, const Uses& uses, const Gradients& gradients, std::int64_t* rows,
                    float* sums) {
  updating::each_row<Lanes<4>>(shard, uses, gradients, [&](std::size_t row, const float* sum) {
    *rows++ = static_cast<std::int64_t>(row);
    sums = std::copy(sum, sum + shard.dim, sums);
  });
}

// The gradient of each index's weight: its row times the gradient of its sample. Rows of other
// ranks add nothing here.
inline void weigh(const Shard& shard, const Uses& uses, const Gradients& gradients, float* out) {
  std::vector<float> row(shard.dim);
  const std::int64_t zero = 0;
  const std::array<std::int64_t, 2> borders{0, 1};
  const Bags lone{{&zero, true}, {borders.data(), true}, nullptr, 1, 1, false};
  Shard one = shard;
  one.first_row = 0, one.num_rows = one.held_rows = 1;
  for (const Use& use : uses.all()) {
    one.rows = shard.rows + use.row * shard.stride();
    pool(one, lone, {0, 1}, row.data(), shard.dim);
    const float* gradient = gradients[uses.sample(use)];
    double dot = 0;
    for (std::size_t i = 0; i < shard.dim; ++i) dot += static_cast<double>(row[i]) * gradient[i];
    out[use.at] = static_cast<float>(dot);
  }
}

}  // namespace weft
