// The kernels of an embedding whose pooled rows go straight to the ranks that want them, and of
// its way back.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "embedding.hpp"
#include "embedding_update.hpp"
#include "kernels.hpp"

namespace weft {

// A shard, the bags of its table, and where its columns stand.
struct Lookup {
  Shard shard;
  Bags bags;
  std::size_t column = 0;   // in a sample's row of the output
  bool partial = false;     // others hold rows of the table, too: sums are added up where they go
  std::size_t between = 0;  // then its column among the partial sums
};

// The columns of a table whose rows several ranks hold: where its sums stand in the partial ones
// and in the output.
struct Joined {
  std::size_t from = 0, to = 0, dim = 0;
};

// What one kernel does. Offsets are those of the slices, which lie in blocks by sender: what is
// really touched lies in whole rows of samples, one to one, so no two kernels meet.
struct PoolingTask {
  enum class Kind : std::uint8_t { pool = 0, deliver = 1, update = 2 };
  Kind kind = Kind::pool;
  Range samples;               // of the whole batch
  std::size_t local = 0;       // the first of them among the samples of the rank that has them
  std::vector<std::uint64_t> offsets;  // of each slice that is not of partial sums
};

// What becomes of a lookup's gradients: a step of its rows, or a list of them; and those of the
// weights, if anybody asks.
struct Result {
  bool steps = false;
  UpdateStep step;
  std::int64_t* rows = nullptr;
  float* sums = nullptr;
  float* weights = nullptr;
};

class Pooling : public Kernels {
 public:
  // Floats of a sample in the output, and of one rank's partial sums.
  Pooling(std::size_t pitch, std::size_t partial_pitch) : pitch_(pitch), partial_pitch_(partial_pitch) {}

  void set(std::vector<Lookup> lookups) { lookups_ = std::move(lookups); }
  void set_joined(std::vector<Joined> joined) { joined_ = std::move(joined); }
  void set_task(std::size_t row, PoolingTask task) { tasks_.insert_or_assign(row, std::move(task)); }
  // By rank: how many samples it has. Their gradients are looked up so.
  void set_samples(std::vector<std::size_t> samples) { samples_ = std::move(samples); }

  // Sorts the indices of every lookup by row; gives how many rows each of them asks for.
  [[nodiscard]] std::vector<std::size_t> sort() {
    uses_.resize(lookups_.size());
    std::vector<std::size_t> counts;
    for (std::size_t i = 0; i < lookups_.size(); ++i) {
      uses_[i].sort(lookups_[i].shard, lookups_[i].bags);
      counts.push_back(uses_[i].num_rows());
    }
    return counts;
  }
  void set_results(std::vector<Result> results) {
    if (results.size() != lookups_.size()) throw std::invalid_argument("a result for each lookup");
    results_ = std::move(results);
  }

  // Slices that are complete since the last begin(). Acquire: see run(). Relaxed: nothing is under
  // way then, and what is started later comes after it.
  [[nodiscard]] std::uint64_t delivered() const noexcept {
    return delivered_.load(std::memory_order_acquire);
  }
  void begin() noexcept { delivered_.store(0, std::memory_order_relaxed); }

  // Pools samples of every lookup into its columns of rows that are ``pitch`` floats apart.
  void pool_rows(Range samples, float* out, std::size_t pitch) const {
    for (const Lookup& lookup : lookups_)
      pool(lookup.shard, lookup.bags, samples, out + lookup.column, pitch);
  }

  // The same as a task of that kind, with the gradients of so many samples in one piece.
  void change(const float* first, std::size_t num_samples) {
    Gradients rows;
    for (std::size_t s = 0; s < num_samples; ++s) rows.push_back(first + s * pitch_);
    change_all(rows);
  }

  void run(std::size_t row, std::span<const ResolvedSlice> slices) override {
    for (const ResolvedSlice& piece : slices) {
      if (piece.is_remote()) throw std::invalid_argument("a kernel cannot reach memory outside the heap");
    }
    const PoolingTask& task = tasks_.at(row);
    switch (task.kind) {
      case PoolingTask::Kind::pool: return pool_slice(task, slices);
      case PoolingTask::Kind::deliver:
        join(task, slices);
        // Release: a thread that counts it sees the writes before.
        delivered_.fetch_add(1, std::memory_order_release);
        return;
      case PoolingTask::Kind::update: return update_all(task, slices);
    }
  }

 private:
  // The start of the memory a slice lies in.
  static float* base(const ResolvedSlice& piece, std::uint64_t offset) {
    return reinterpret_cast<float*>(piece.here.data() - offset);
  }

  void pool_slice(const PoolingTask& task, std::span<const ResolvedSlice> slices) const {
    const bool whole = !task.offsets.empty();
    float* out = whole ? base(slices[0], task.offsets[0]) + task.local * pitch_ : nullptr;
    float* partial = slices.size() > (whole ? 1U : 0U) ? base(slices.back(), 0) : nullptr;
    for (const Lookup& lookup : lookups_) {
      if (lookup.partial) {
        pool(lookup.shard, lookup.bags, task.samples, partial + lookup.between, partial_pitch_);
      } else {
        pool(lookup.shard, lookup.bags, task.samples, out + lookup.column, pitch_);
      }
    }
  }

  // Adds partial sums up in the order of ranks.
  void join(const PoolingTask& task, std::span<const ResolvedSlice> slices) const {
    if (joined_.empty()) return;
    float* out = base(slices.back(), task.offsets.at(0)) + task.local * pitch_;
    const auto partials = slices.first(slices.size() - 1);
    for (std::size_t s = 0; s < task.samples.last - task.samples.first; ++s) {
      for (const Joined& table : joined_) {
        float* to = out + s * pitch_ + table.to;
        std::fill(to, to + table.dim, 0.0F);
        for (const ResolvedSlice& partial : partials) {
          const float* from = base(partial, 0) + s * partial_pitch_ + table.from;
          for (std::size_t i = 0; i < table.dim; ++i) to[i] += from[i];
        }
      }
    }
  }

  // Slices are the gradients of every rank, in their order; each table has columns of its own.
  void update_all(const PoolingTask& task, std::span<const ResolvedSlice> slices) {
    Gradients rows;
    for (std::size_t rank = 0; rank < samples_.size(); ++rank) {
      const float* first = base(slices[rank], task.offsets.at(rank));
      for (std::size_t s = 0; s < samples_[rank]; ++s) rows.push_back(first + s * pitch_);
    }
    change_all(rows);
  }

  void change_all(const Gradients& rows) {
    Gradients gradients;
    for (std::size_t i = 0; i < lookups_.size(); ++i) {
      const Shard& shard = lookups_[i].shard;
      gradients.clear();
      for (const float* row : rows) gradients.push_back(row + lookups_[i].column);
      if (uses_.at(i).all().size() > rows.size()) pack(gradients, shard.dim);
      change(shard, uses_.at(i), gradients, results_.at(i));
    }
  }

  // Gradients that are read again and again, side by side: in rows that are a power of two apart
  // they would fall into few sets of a cache, and half of them lie in memory of another rank.
  void pack(Gradients& gradients, std::size_t dim) {
    packed_.resize(gradients.size() * dim);
    float* to = packed_.data();
    for (const float*& gradient : gradients) {
      std::copy(gradient, gradient + dim, to);
      gradient = std::exchange(to, to + dim);
    }
  }

  // Gradients of weights are those of the rows as they were: first.
  static void change(const Shard& shard, const Uses& uses, const Gradients& gradients, const Result& result) {
    if (result.weights != nullptr) weigh(shard, uses, gradients, result.weights);
    if (result.steps) update(shard, uses, gradients, result.step);
    if (result.rows != nullptr) collect(shard, uses, gradients, result.rows, result.sums);
  }

  std::size_t pitch_, partial_pitch_;
  std::vector<Lookup> lookups_;
  std::vector<Joined> joined_;
  std::vector<std::size_t> samples_;
  std::vector<Uses> uses_;
  std::vector<float> packed_;  // kept from one table to the next
  std::vector<Result> results_;
  std::unordered_map<std::size_t, PoolingTask> tasks_;
  std::atomic<std::uint64_t> delivered_ = 0;
};

}  // namespace weft
