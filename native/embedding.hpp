// Bags of embedding rows, pooled straight into the memory of the rank that needs them.
//
// What an index asks for is read only after the index was compared with the table, so nothing
// that a caller passes leads to memory outside of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "embedding_rows.hpp"

namespace weft {

// A row of a table that does not exist, or bags whose borders go back.
struct BadBag : std::out_of_range {
  using std::out_of_range::out_of_range;
};

// Whole numbers of four or eight bytes.
struct Integers {
  const void* data = nullptr;
  bool wide = true;

  [[nodiscard]] std::int64_t operator[](std::size_t i) const noexcept {
    return wide ? static_cast<const std::int64_t*>(data)[i] : static_cast<const std::int32_t*>(data)[i];
  }
};

// The bags of one table: of sample b the indices from offsets[b] up to offsets[b + 1].
struct Bags {
  Integers indices;
  Integers offsets;
  const float* weights = nullptr;  // of each index, if any
  std::size_t num_indices = 0;
  std::size_t num_samples = 0;
  bool mean = false;
};

// What a rank holds of a table: some rows of it, and of these some columns.
struct Shard {
  std::string name;
  std::byte* rows = nullptr;
  std::size_t num_rows = 0;   // of the whole table
  std::size_t first_row = 0;  // held here, from this one
  std::size_t held_rows = 0;
  std::size_t dim = 0;  // columns held here
  Element element = Element::float32;

  [[nodiscard]] std::size_t stride() const noexcept { return row_bytes(element, dim); }
};

struct Range {
  std::size_t first = 0, last = 0;
};

// The indices of a sample, after a look at its borders.
inline Range bag_of(const Shard& shard, const Bags& bags, std::size_t sample) {
  const std::int64_t first = bags.offsets[sample], last = bags.offsets[sample + 1];
  if (first < 0 || last < first || static_cast<std::uint64_t>(last) > bags.num_indices) {
    throw BadBag("table '" + shard.name + "', sample " + std::to_string(sample) + ": offsets go from " +
                 std::to_string(first) + " to " + std::to_string(last) + " among " +
                 std::to_string(bags.num_indices) + " indices");
  }
  return {static_cast<std::size_t>(first), static_cast<std::size_t>(last)};
}

[[noreturn, gnu::cold, gnu::noinline]] inline void throw_bad_index(const Shard& shard, std::size_t sample,
                                                                   std::int64_t index) {
  throw BadBag("table '" + shard.name + "', sample " + std::to_string(sample) + ": index " +
               std::to_string(index) + " is not one of " + std::to_string(shard.num_rows) + " rows");
}

namespace pooling {

inline constexpr std::size_t kAhead = 16;  // rows: measured, 8 to 32 differ by a few percent
inline constexpr std::size_t kLineBytes = 64;

// What the loop over the indices of a bag needs, in registers.
template <class Index>
struct Reader {
  const Index* indices;
  const float* weights;
  std::size_t num_indices;
  const std::byte* rows;
  std::size_t stride, first_row, held_rows, dim;

  Reader(const Shard& shard, const Bags& bags) noexcept
      : indices(static_cast<const Index*>(bags.indices.data)),
        weights(bags.weights),
        num_indices(bags.num_indices),
        rows(shard.rows),
        stride(shard.stride()),
        first_row(shard.first_row),
        held_rows(shard.held_rows),
        dim(shard.dim) {}

  // The number of the row among those held here; one that is not is no less than held_rows.
  [[nodiscard]] WEFT_INLINE std::size_t row(std::size_t i) const noexcept {
    return static_cast<std::size_t>(static_cast<std::int64_t>(indices[i])) - first_row;
  }
};

// A row of another rank is skipped; a row that no rank has is an error.
template <class Index>
[[gnu::cold, gnu::noinline]] void pass_over(const Shard& shard, const Reader<Index>& from, std::size_t sample,
                                            std::size_t i) {
  const auto index = static_cast<std::int64_t>(from.indices[i]);
  if (static_cast<std::uint64_t>(index) >= shard.num_rows) throw_bad_index(shard, sample, index);
}

// The columns from ``at`` on of a sample, ``kVectors`` vectors of them. It looks ahead into the
// next bags as well: their indices stand behind its own. An address is only a wish there: what
// does not exist is not fetched.
template <class Row, class Index, class L, std::size_t kVectors, bool kWeighted, bool kWhole = false>
WEFT_INLINE void pool_block(const Shard& shard, const Reader<Index>& from, std::size_t sample, Range bag,
                            std::size_t at, float scale, float* out) {
  // Where a block is a whole row, its length is known to the compiler.
  const std::size_t stride = kWhole ? kVectors * L::kCount * Row::kItem : from.stride;
  typename L::Float sums[kVectors];
  for (auto& sum : sums) sum = typename L::Float{};
  const std::size_t last = from.num_indices - 1;
  for (std::size_t i = bag.first; i < bag.last; ++i) {
    const std::byte* later = from.rows + from.row(std::min(i + kAhead, last)) * stride + at * Row::kItem;
    for (std::size_t byte = 0; byte < kVectors * L::kCount * Row::kItem; byte += kLineBytes) {
      __builtin_prefetch(later + byte);
    }
    const std::size_t row = from.row(i);
    if (row >= from.held_rows) [[unlikely]] {
      pass_over(shard, from, sample, i);
      continue;
    }
    const Row values(from.rows + row * stride, from.dim);
    for (std::size_t v = 0; v < kVectors; ++v) {
      typename L::Float value;
      values.template load<L>(at + v * L::kCount, value);
      if constexpr (kWeighted) {
        value *= from.weights[i];
        asm("" : "+x"(value));  // not fused with the sum: every level rounds alike
      }
      sums[v] += value;
    }
  }
  for (std::size_t v = 0; v < kVectors; ++v) {
    *reinterpret_cast<typename L::Float*>(out + at + v * L::kCount) = sums[v] * scale;
  }
}

template <class Row, class Index, bool kWeighted>
WEFT_INLINE void pool_one(const Shard& shard, const Reader<Index>& from, std::size_t sample, Range bag,
                          std::size_t at, float scale, float* out) {
  float sum = 0;
  for (std::size_t i = bag.first; i < bag.last; ++i) {
    const std::size_t row = from.row(i);
    if (row >= from.held_rows) [[unlikely]] {
      pass_over(shard, from, sample, i);
      continue;
    }
    float value = Row(from.rows + row * from.stride, from.dim).one(at);
    if constexpr (kWeighted) {
      value *= from.weights[i];
      asm("" : "+x"(value));
    }
    sum += value;
  }
  out[at] = sum * scale;
}

// Whether the rows of a shard are exactly that number of vectors long.
template <std::size_t kVectors, class L>
WEFT_INLINE bool whole(const Shard& shard) noexcept {
  return shard.dim == kVectors * L::kCount;
}

// The samples of a range, one after another, ``pitch`` floats apart in ``out``.
template <class Row, class Index, class L, bool kWeighted>
WEFT_INLINE void pool_samples(const Shard& shard, const Bags& bags, Range samples, float* out,
                              std::size_t pitch) {
  // As many sums as there are registers, where nothing else needs one.
  constexpr std::size_t kMost = Row::kItem == sizeof(float) && !kWeighted ? 16 : 8;
  const Reader<Index> from(shard, bags);
  for (std::size_t sample = samples.first; sample < samples.last; ++sample, out += pitch) {
    const Range bag = bag_of(shard, bags, sample);
    const float scale =
        bags.mean && bag.last > bag.first ? 1.0F / static_cast<float>(bag.last - bag.first) : 1.0F;
    if constexpr (!std::is_same_v<Row, Int8Row>) {
      const auto rows = [&]<std::size_t kVectors>() __attribute__((always_inline)) {
        if (!whole<kVectors, L>(shard)) return false;
        pool_block<Row, Index, L, kVectors, kWeighted, true>(shard, from, sample, bag, 0, scale, out);
        return true;
      };
      if (rows.template operator()<kMost>() || rows.template operator()<8>() ||
          rows.template operator()<4>() || rows.template operator()<2>() || rows.template operator()<1>()) {
        continue;
      }
    }
    std::size_t at = 0;
    const auto blocks = [&]<std::size_t kVectors>() __attribute__((always_inline)) {
      for (; at + kVectors * L::kCount <= shard.dim; at += kVectors * L::kCount) {
        pool_block<Row, Index, L, kVectors, kWeighted>(shard, from, sample, bag, at, scale, out);
      }
    };
    if constexpr (kMost > 8) blocks.template operator()<16>();
    blocks.template operator()<8>();
    blocks.template operator()<4>();
    blocks.template operator()<2>();
    blocks.template operator()<1>();
    for (; at < shard.dim; ++at) pool_one<Row, Index, kWeighted>(shard, from, sample, bag, at, scale, out);
  }
}

using Pool = void(const Shard&, const Bags&, Range, float*, std::size_t);

template <class Row, class Index, bool kWeighted>
void pool_plain(const Shard& shard, const Bags& bags, Range samples, float* out, std::size_t pitch) {
  pool_samples<Row, Index, Lanes<4>, kWeighted>(shard, bags, samples, out, pitch);
}
#if defined(__x86_64__)
template <class Row, class Index, bool kWeighted>
WEFT_AVX2 void pool_avx2(const Shard& shard, const Bags& bags, Range samples, float* out, std::size_t pitch) {
  pool_samples<Row, Index, Lanes<8>, kWeighted>(shard, bags, samples, out, pitch);
}
template <class Row, class Index, bool kWeighted>
WEFT_AVX512 void pool_avx512(const Shard& shard, const Bags& bags, Range samples, float* out,
                             std::size_t pitch) {
  pool_samples<Row, Index, Lanes<16>, kWeighted>(shard, bags, samples, out, pitch);
}
#endif

template <class Row, class Index, bool kWeighted>
Pool* pool_at([[maybe_unused]] Level level) noexcept {
#if defined(__x86_64__)
  if (level == Level::avx512) return &pool_avx512<Row, Index, kWeighted>;
  if (level == Level::avx2) return &pool_avx2<Row, Index, kWeighted>;
#endif
  return &pool_plain<Row, Index, kWeighted>;
}

template <class Row>
Pool* pool_for(const Bags& bags, Level level) noexcept {
  const bool weighted = bags.weights != nullptr;
  if (bags.indices.wide) {
    return weighted ? pool_at<Row, std::int64_t, true>(level) : pool_at<Row, std::int64_t, false>(level);
  }
  return weighted ? pool_at<Row, std::int32_t, true>(level) : pool_at<Row, std::int32_t, false>(level);
}

inline Pool* pool_for(Element element, const Bags& bags, Level level) {
  switch (element) {
    case Element::float32: return pool_for<FloatRow>(bags, level);
    case Element::bfloat16: return pool_for<BrainRow>(bags, level);
    case Element::float16: return pool_for<HalfRow>(bags, level);
    case Element::int8: return pool_for<Int8Row>(bags, level);
  }
  throw std::invalid_argument("a table has no such element");
}

}  // namespace pooling

// Pools the samples of a range into rows of ``out`` that are ``pitch`` floats apart. Sums are
// taken in the order of the indices, from zero. Throws BadBag.
inline void pool(const Shard& shard, const Bags& bags, Range samples, float* out, std::size_t pitch,
                 Level at = level()) {
  if (samples.first > samples.last || samples.last > bags.num_samples) {
    throw std::out_of_range("samples that there are not");
  }
  pooling::pool_for(shard.element, bags, at)(shard, bags, samples, out, pitch);
}

}  // namespace weft
