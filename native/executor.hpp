// Executes the instruction streams of one thread: each in order, all of them interleaved.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cross_process_copy.hpp"
#include "backoff.hpp"
#include "program.hpp"
#include "failure_monitor.hpp"

namespace weft {

// Callbacks of an execution. Both may throw to abort it.
struct Hooks {
  std::function<void(std::size_t row, std::span<const ResolvedSlice> slices)> kernel;
  std::function<void()> poll;
};

inline Abort abort_of(const Unreachable& found, std::int64_t row = -1) noexcept {
  const AbortCause cause = found.error == ESRCH ? AbortCause::died : AbortCause::memory;
  return {cause, static_cast<int>(found.rank), row, static_cast<std::uint64_t>(found.error), 0};
}

// It may be reused for any number of executions: allocations are kept.
class Executor {
 public:
  Executor(const Program& program, std::uint32_t runner)
      : program_(program),
        runner_(runner),
        cross_process_(program.resolver.pids),
        states_(program.streams.size()) {
    active_.reserve(states_.size());  // no stream begins twice before it is erased
  }

  // Returns nothing, or why it was aborted. Exceptions of the hooks pass through.
  std::optional<Abort> run(std::uint64_t execution, bool stamps, const Hooks& hooks, FailureMonitor& monitor,
                           Backoff& backoff) {
    begin(execution, stamps, hooks);
    return or_thrown([&]() -> std::optional<Abort> {
      // Nothing begins in a failed world. What has begun goes on, even if another rank that is done
      // with this execution has failed meanwhile. A rank with nothing to do does not check.
      if (!is_done()) {
        if (auto abort = monitor.check(backoff)) return at_blocked_row(*abort);
      }
      while (!is_done()) {
        if (round()) {
          backoff.reset();
          continue;
        }
        if (auto abort = monitor.check(backoff)) return at_blocked_row(*abort);
        backoff.pause();
      }
      return std::nullopt;
    });
  }

  // The same in steps: call it after begin() until it is done or aborted. A step goes as far as it can
  // without waiting; ``moved`` is set if there was progress.
  std::optional<Abort> step(FailureMonitor& monitor, Backoff& backoff, bool& moved) {
    return or_thrown([&]() -> std::optional<Abort> {
      while (!is_done() && round()) moved = true;
      if (moved) backoff.reset();
      backoff.note();
      if (is_done()) return std::nullopt;
      if (auto abort = monitor.check(backoff)) return at_blocked_row(*abort);
      return std::nullopt;
    });
  }

  void begin(std::uint64_t execution, bool stamps, const Hooks& hooks) {
    execution_ = execution;
    copy_ = program_.num_buffers > 1 ? execution % program_.num_buffers : 0;
    stamps_ = stamps ? program_.stamps : nullptr;
    hooks_ = &hooks;
    active_.clear();
    for (std::uint32_t i = 0; i < program_.streams.size(); ++i) {
      const InstructionStream& stream = program_.streams[i];
      if (stream.launch < 0 && stream.runner == runner_) begin(i, i);
    }
  }

  [[nodiscard]] bool is_done() const noexcept { return active_.empty(); }

 private:
  struct State {
    std::uint32_t at = 0;
    std::uint32_t parent = 0;  // the stream that launched it, or itself
    std::uint32_t lanes_left = 0;
    bool started = false;  // the row at ``at``
  };

  // A row that cannot be executed throws an Abort.
  template <class Act>
  static std::optional<Abort> or_thrown(Act act) {
    try {
      return act();
    } catch (const Abort& abort) {
      return abort;
    }
  }

  // Returns false for an empty stream.
  bool begin(std::uint32_t stream, std::uint32_t parent) {
    states_[stream] = {program_.streams[stream].begin, parent, 0, false};
    if (is_over(stream)) return false;
    active_.push_back(stream);
    return true;
  }

  // Advances every stream once; returns whether any made progress. Launches append to active_.
  bool round() {
    bool moved = false;
    for (std::size_t i = 0; i < active_.size(); ++i) moved = advance(active_[i]) || moved;
    if (moved) std::erase_if(active_, [this](std::uint32_t stream) { return is_over(stream); });
    return moved;
  }

  [[nodiscard]] bool is_over(std::uint32_t stream) const noexcept {
    return states_[stream].at >= program_.streams[stream].end;
  }

  // Runs until the stream must wait or a second long command would start: so what a command wrote is
  // signalled at once, and no lane starves the others.
  bool advance(std::uint32_t stream) {
    State& state = states_[stream];
    bool moved = false;
    bool worked = false;
    while (!is_over(stream)) {
      const Row& row = program_.rows[state.at];
      if (!state.started) {
        if (worked && takes_time(row.kind)) break;
        if (!row.gate.holds(execution_) || !row.hold.holds(execution_)) break;
        start(stream, row);
        moved = true;
      }
      if (state.lanes_left != 0 || !row.wait.holds(execution_)) break;
      execute(row);
      worked = worked || takes_time(row.kind);
      finish(state, row);
      moved = true;
    }
    if (moved && is_over(stream) && state.parent != stream) --states_[state.parent].lanes_left;
    return moved;
  }

  void start(std::uint32_t stream, const Row& row) {
    states_[stream].started = true;
    stamp(row, 0);
    for (std::uint32_t i = 0; i < row.num_lanes; ++i) {
      if (begin(program_.lanes[row.first_lane + i], stream)) ++states_[stream].lanes_left;
    }
  }

  void finish(State& state, const Row& row) {
    stamp(row, 1);
    state.at = row.next;
    state.started = false;
  }

  static bool takes_time(Kind kind) noexcept {
    switch (kind) {
      case Kind::kernel:
      case Kind::copy:
      case Kind::broadcast:
      case Kind::swap:
      case Kind::reduce:
      case Kind::encode:
      case Kind::decode: return true;
      default: return false;
    }
  }

  void execute(const Row& row) {
    switch (row.kind) {
      case Kind::kernel: resolve(row); return hooks_->kernel(index_of(row), resolved_);
      case Kind::copy:
      case Kind::broadcast:
      case Kind::swap:
      case Kind::reduce:
      case Kind::encode:
      case Kind::decode: return resolve(row) ? reach(row) : execute_local(row);
      case Kind::signal:
      case Kind::submit:
        Flag(*row.raised).raise(row.by);
        if (row.bell != nullptr) row.bell->ring_if_needed();
        return;
      case Kind::launch:
      case Kind::wait:
      case Kind::call: return;
    }
  }

  // Resolves the slices of a row; returns whether any is in another process.
  bool resolve(const Row& row) {
    bool remote = false;
    resolved_.clear();
    for (const Access& access : program_.of(row)) {
      const auto piece = program_.resolver.resolve(access, copy_);
      if (!piece) throw at(row, AbortCause::memory, access.rank, EFAULT, 0);
      remote = remote || piece->is_remote();
      resolved_.push_back(*piece);
      if (program_.resolver.elastic && row.kind != Kind::kernel && piece->size() != resolved_[0].size()) {
        const std::uint32_t rank = program_.of(row)[0].rank;
        throw at(row, AbortCause::size, rank, resolved_[0].size(), piece->size());
      }
    }
    return remote;
  }

  void execute_local(const Row& row) {
    local_.clear();
    for (const ResolvedSlice& piece : resolved_) local_.push_back(piece.here);
    const std::span<const Bytes> slices(local_);
    switch (row.kind) {
      case Kind::copy:
        return row.slot ? copy_slot(row, slices[0], slices[1])
                        : copy(slices[0], slices[1], row.cached ? SIZE_MAX : program_.streamed());
      case Kind::broadcast:
        return broadcast(slices[0], slices.subspan(1), row.cached ? SIZE_MAX : program_.streamed());
      case Kind::swap: return swap(slices[0], slices[1]);
      case Kind::reduce: return row.reduction.run(slices.first(slices.size() - 1), slices.back());
      case Kind::encode: return encode(row, slices[0], slices[1]);
      default: return decode(row, slices[0], slices[1]);
    }
  }

  void reach(const Row& row) {
    try {
      execute_remote(row);
    } catch (const Unreachable& found) {
      throw abort_of(found, static_cast<std::int64_t>(index_of(row)));
    }
  }

  void execute_remote(const Row& row) {
    const std::span<const ResolvedSlice> pieces(resolved_);
    switch (row.kind) {
      case Kind::copy: return cross_process_.copy(pieces[0], pieces[1]);
      case Kind::broadcast: return cross_process_.broadcast(pieces[0], pieces.subspan(1));
      case Kind::swap: return cross_process_.swap(pieces[0], pieces[1]);
      case Kind::reduce:
        return cross_process_.reduce(row.reduction, pieces.first(pieces.size() - 1), pieces.back());
      default:  // buffers of codecs are never bound
        throw at(row, AbortCause::memory, 0, EFAULT, 0);
    }
  }

  void copy_slot(const Row& row, Bytes src, Bytes dst) const {
    const std::uint64_t used = used_of(src);
    if (used > src.size()) throw at(row, AbortCause::slot, program_.of(row)[0].rank, used, src.size());
    copy(src.first(used), dst.first(used));
  }

  void encode(const Row& row, Bytes src, Bytes slot) const {
    if (row.coder < 0) return encode_none(src, slot);
    if (encode_slot(program_.coders[static_cast<std::size_t>(row.coder)], src, slot)) return;
    throw not_coded(row, Verdict::content, program_.of(row)[0]);
  }

  void decode(const Row& row, Bytes slot, Bytes dst) const {
    if (row.coder >= 0) {
      const Verdict found = decode_slot(program_.coders[static_cast<std::size_t>(row.coder)], slot, dst);
      if (found == Verdict::good) return;
      throw not_coded(row, found, program_.of(row)[1]);
    }
    if (const auto found = decode_none(slot, dst)) {
      throw Abort{AbortCause::slot, -1, static_cast<std::int64_t>(index_of(row)), *found, dst.size()};
    }
  }

  [[nodiscard]] Abort not_coded(const Row& row, Verdict found, const Access& chunk) const {
    return at(row, AbortCause::codec, program_.resolver.self, static_cast<std::uint64_t>(found),
              chunk.offset);
  }

  [[nodiscard]] Abort at(const Row& row, AbortCause cause, std::uint32_t rank, std::uint64_t have,
                         std::uint64_t want) const {
    return {cause, static_cast<int>(rank), static_cast<std::int64_t>(index_of(row)), have, want};
  }

  void stamp(const Row& row, std::size_t which) const noexcept {
    if (stamps_ == nullptr) return;
    const auto now = Clock::now().time_since_epoch();
    stamps_[2 * index_of(row) + which] =
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  }

  [[nodiscard]] std::size_t index_of(const Row& row) const noexcept {
    return static_cast<std::size_t>(&row - program_.rows.data());
  }

  // The row of the first stream that waits for more than its own lanes.
  [[nodiscard]] Abort at_blocked_row(Abort abort) const {
    for (const std::uint32_t stream : active_) {
      const State& state = states_[stream];
      if (state.lanes_left != 0 || is_over(stream)) continue;
      const Row& row = program_.rows[state.at];
      abort.row = state.at;
      for (const Condition* condition : {&row.gate, &row.hold, &row.wait}) {
        if (condition->holds(execution_)) continue;
        abort.have = condition->progress(execution_);
        abort.want = static_cast<std::uint64_t>(std::max<std::int64_t>(condition->value, 0));
        return abort;
      }
    }
    return abort;
  }

  const Program& program_;
  std::uint32_t runner_;
  std::uint64_t execution_ = 0;
  std::uint64_t copy_ = 0;  // of the buffers that rotate, in this execution
  std::uint64_t* stamps_ = nullptr;
  const Hooks* hooks_ = nullptr;
  CrossProcessCopy cross_process_;
  std::vector<ResolvedSlice> resolved_;  // of the row that is executed
  std::vector<Bytes> local_;
  std::vector<State> states_;
  std::vector<std::uint32_t> active_;
};

}  // namespace weft
