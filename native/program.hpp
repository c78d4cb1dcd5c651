// The program of one rank: rows of commands with checked memory accesses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "coder.hpp"
#include "doorbell.hpp"
#include "flag.hpp"
#include "heap.hpp"
#include "move.hpp"
#include "location.hpp"
#include "reduce.hpp"

namespace weft {

// What a row does. weft.schedule.CommandKind has the same numbers; a test compares them.
enum class Kind : std::uint8_t {
  kernel = 0,
  launch = 1,
  copy = 2,
  broadcast = 3,
  swap = 4,
  reduce = 5,
  encode = 6,
  decode = 7,
  signal = 8,
  wait = 9,
  submit = 10,
  call = 11,
};

// A threshold of a counter. The counter is never reset: each execution raises it by ``step``, so the
// threshold moves with the execution. A negative value waits for an earlier execution.
struct Condition {
  std::uint64_t* word = nullptr;  // null: always holds
  std::int64_t value = 0;
  std::uint64_t step = 0;

  [[nodiscard]] bool holds(std::uint64_t execution) const noexcept {
    if (word == nullptr) return true;
    return static_cast<std::int64_t>(Flag(*word).value()) >=
           static_cast<std::int64_t>(execution * step) + value;
  }
  // How far it has come in this execution.
  [[nodiscard]] std::uint64_t progress(std::uint64_t execution) const noexcept {
    const std::uint64_t now = Flag(*word).value();
    return now < execution * step ? 0 : now - execution * step;
  }
};

struct Row {
  Kind kind = Kind::call;
  std::uint32_t first_access = 0;
  std::uint32_t num_accesses = 0;
  std::uint32_t next = 0;        // the row after it, lanes of a launch skipped
  std::uint32_t first_lane = 0;  // of a launch, into Program::lanes
  std::uint32_t num_lanes = 0;
  Condition gate;                // the doorbell that submits it
  Condition hold;                // the flag that releases it when it was prelaunched
  Condition wait;
  std::uint64_t* raised = nullptr;  // by a signal or a submit
  std::uint64_t by = 0;
  Doorbell* bell = nullptr;  // of the rank that waits for it; null: no thread sleeps
  Reduction reduction;
  std::int32_t coder = -1;  // of an encode or decode, into Program::coders; -1: as it is
  bool slot = false;        // a copy of a slot: as much of it as is in use
  bool cached = false;      // what a copy writes is read again at once: no streaming stores
};

// Rows that run in order: a queue, or one lane of a launch.
struct InstructionStream {
  std::uint32_t begin;
  std::uint32_t end;
  std::int64_t launch;  // the row that starts it, -1: it is a queue
  std::uint32_t runner; // 0: the calling thread, else an engine
};

// A buffer of this rank: its backing memory, its published location, and how it is used.
struct OwnBuffer {
  Location* location = nullptr;  // published to the other ranks
  Location backing;              // its own memory in the heap, if it has any
  std::uint64_t nbytes = 0;
  bool shared = true;  // other ranks access it
  bool filled = true;  // the caller's bytes are read
  bool taken = true;   // the caller's bytes are written
  std::int32_t stage_of = -1;  // the buffer it is a stage of, if the schedule has both
};

struct Program {
  std::vector<Row> rows;
  std::vector<Access> accesses;
  AddressResolver resolver;
  std::vector<OwnBuffer> own;
  std::vector<Coder> coders;
  std::vector<InstructionStream> streams;
  std::vector<std::uint32_t> lanes;  // streams, by the launch that starts them
  std::vector<std::uint32_t> engines;  // the runners above 0 that are used
  std::uint64_t num_buffers = 1;  // copies that executions rotate through
  std::uint64_t* stamps = nullptr;  // begin and end of each row, nanoseconds
  std::uint64_t copied = 0;  // see count_copied

  // The size from which a copy uses streaming stores. If all ranks together access more than the
  // last-level cache (four times the limit of one copy), nothing is found there again, however short
  // the copies are. 2 ranks, 32 MiB of cache, all_to_all with and without streaming: 4 MiB 0.40 and
  // 0.28 ms, 8 MiB 0.8 and 0.9 ms, 16 MiB 1.5 and 2.6 ms.
  [[nodiscard]] std::size_t streamed() const noexcept {
    constexpr std::size_t kLeast = 64 << 10;
    const std::size_t limit = streamed_from();
    return copied / 2 >= limit ? std::min(limit, kLeast) : limit;
  }

  [[nodiscard]] std::span<const Access> of(const Row& row) const noexcept {
    return std::span(accesses).subspan(row.first_access, row.num_accesses);
  }

  [[nodiscard]] bool calls_python(const Row& row) const noexcept {
    return row.coder >= 0 && coders[static_cast<std::size_t>(row.coder)].calls_python;
  }

  // Whether executing it may block on more than flags.
  [[nodiscard]] bool blocks() const noexcept {
    return !engines.empty() ||
           std::any_of(coders.begin(), coders.end(), [](const Coder& coder) { return coder.calls_python; });
  }
};

// Throws std::invalid_argument for invalid rows and streams.
class Checker {
 public:
  explicit Checker(const Program& program) : program_(program) {}

  void check() const {
    for (const Row& row : program_.rows) check(row);
    for (const InstructionStream& stream : program_.streams) check(stream);
  }

 private:
  void check(const Row& row) const {
    const auto slices = program_.of(row);
    switch (row.kind) {
      case Kind::copy:
        return require(row, slices.size() == 2 && slices[0].size() == slices[1].size() &&
                                (!row.slot || slices[0].size() >= kSlotHead));
      case Kind::broadcast: return check_broadcast(row, slices);
      case Kind::swap:
        return require(row, slices.size() == 2 && slices[0].size() == slices[1].size() &&
                                !overlap(slices[0], slices[1]));
      case Kind::reduce: return check_reduce(row, slices);
      case Kind::encode: return require(row, slices.size() == 2 && has_room(row, slices[1], slices[0]));
      case Kind::decode: return require(row, slices.size() == 2 && has_room(row, slices[0], slices[1]));
      case Kind::signal:
      case Kind::submit: return require(row, row.raised != nullptr);
      case Kind::wait: return require(row, row.wait.word != nullptr);
      case Kind::kernel:
      case Kind::launch:
      case Kind::call: return;
    }
    throw std::invalid_argument("a row has no kind");
  }

  void check_broadcast(const Row& row, std::span<const Access> slices) const {
    require(row, slices.size() >= 2);
    for (const Access& dst : slices.subspan(1)) {
      require(row, dst.size() == slices[0].size() && !overlap(slices[0], dst));
    }
  }

  void check_reduce(const Row& row, std::span<const Access> slices) const {
    require(row, slices.size() >= 2 && row.reduction.apply != nullptr);
    const Access& dst = slices.back();
    require(row, dst.size() % row.reduction.item_bytes == 0);
    for (const Access& src : slices.first(slices.size() - 1)) {
      require(row, src.size() == dst.size() && (same(src, dst) || !overlap(src, dst)));
    }
  }

  // As far as is known before memory is bound: slices of one buffer.
  static bool overlap(const Access& a, const Access& b) noexcept {
    if (a.location == nullptr || b.location == nullptr) return weft::overlap(a.fixed, b.fixed);
    return a.location == b.location && a.size() != 0 && b.size() != 0 && a.offset < b.offset + b.size() &&
           b.offset < a.offset + a.size();
  }
  static bool same(const Access& a, const Access& b) noexcept {
    if (a.location == nullptr || b.location == nullptr) return weft::same(a.fixed, b.fixed);
    return a.location == b.location && a.offset == b.offset && a.size() == b.size();
  }

  [[nodiscard]] bool has_room(const Row& row, const Access& slot, const Access& data) const {
    if (row.coder >= static_cast<std::int64_t>(program_.coders.size())) return false;
    const bool coded = row.coder >= 0;
    const std::size_t needed =
        coded ? program_.coders[static_cast<std::size_t>(row.coder)].room(data.size()) : data.size();
    return slot.size() >= kSlotHead && slot.size() - kSlotHead >= needed && !overlap(slot, data);
  }

  void check(const InstructionStream& stream) const {
    if (stream.begin > stream.end || stream.end > program_.rows.size()) {
      throw std::invalid_argument("an instruction stream is out of bounds");
    }
    for (std::uint32_t at = stream.begin; at < stream.end; at = program_.rows[at].next) {
      const Row& row = program_.rows[at];
      if (row.next <= at) throw std::invalid_argument("a row does not lead on");
      if ((row.kind == Kind::kernel || program_.calls_python(row)) && stream.runner != 0) {
        throw std::invalid_argument("a kernel or a Python codec cannot run on an engine");
      }
    }
  }

  void require(const Row& row, bool holds) const {
    if (holds) return;
    throw std::invalid_argument("row " + std::to_string(&row - program_.rows.data()) +
                                " has slices or flags that do not fit its kind");
  }

  const Program& program_;
};

// Bytes that copies write on all ranks in one execution, if all do as much as this one. Zero if other
// commands read or write the same data, which are in the caches then.
inline std::uint64_t count_copied(const Program& program) noexcept {
  std::uint64_t result = 0;
  for (const Row& row : program.rows) {
    if (row.kind == Kind::kernel || row.kind == Kind::reduce || row.coder >= 0) return 0;
    if (row.kind != Kind::copy && row.kind != Kind::broadcast) continue;
    for (const Access& written : program.of(row).subspan(1)) result += written.size();
  }
  return program.resolver.elastic ? 0 : result * program.resolver.pids.size();
}

// Sets the lanes of each launch and the row after the last of them.
inline void link_lanes(Program& program) {
  auto& rows = program.rows;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].next = static_cast<std::uint32_t>(i + 1);
    rows[i].num_lanes = 0;
  }
  for (const InstructionStream& stream : program.streams) {
    if (stream.launch < 0) continue;
    if (static_cast<std::size_t>(stream.launch) >= rows.size() ||
        rows[static_cast<std::size_t>(stream.launch)].kind != Kind::launch) {
      throw std::invalid_argument("a lane is started by no launch");
    }
    Row& launch = rows[static_cast<std::size_t>(stream.launch)];
    ++launch.num_lanes;
    launch.next = std::max(launch.next, stream.end);
  }
  std::uint32_t total = 0;
  for (Row& row : rows) {
    row.first_lane = total;
    total += row.num_lanes;
    row.num_lanes = 0;
  }
  program.lanes.resize(total);
  for (std::size_t i = 0; i < program.streams.size(); ++i) {
    const InstructionStream& stream = program.streams[i];
    if (stream.launch < 0) continue;
    Row& launch = rows[static_cast<std::size_t>(stream.launch)];
    program.lanes[launch.first_lane + launch.num_lanes++] = static_cast<std::uint32_t>(i);
  }
}

}  // namespace weft
