// Strands run in their order, side by side, and stop for a reason.
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.hpp"
#include "codecs/codecs.hpp"
#include "execution.hpp"
#include "prepared_program.hpp"
#include "reductions.hpp"

namespace {

using weft::Bytes;
using weft::AbortCause;
using weft::Condition;
using weft::Control;
using weft::Heap;
using weft::Hooks;
using weft::Kind;
using weft::Member;
using weft::Program;
using weft::Row;
using weft::InstructionStream;

struct alignas(weft::kLine) Line {
  std::uint64_t word = 0;
};

Heap world_of(int num_ranks) {
  Heap heap = Heap::create(Control::nbytes(num_ranks));
  Control::format(heap, num_ranks, 0);
  return heap;
}

std::optional<weft::Abort> run(Member& member, const Program& program, std::uint64_t execution, bool stamps,
                               const Hooks& hooks) {
  std::atomic<bool> stop = false;
  return weft::run_program(member, program, execution, stamps, hooks, stop);
}

Row row_of(Kind kind) {
  Row row;
  row.kind = kind;
  return row;
}

Row signal(Line& line, std::uint64_t by = 1) {
  Row row = row_of(Kind::signal);
  row.raised = &line.word;
  row.by = by;
  return row;
}

Row wait(Line& line, std::int64_t value, std::uint64_t step) {
  Row row = row_of(Kind::wait);
  row.wait = {&line.word, value, step};
  return row;
}

Row copy(Program& program, Bytes src, Bytes dst) {
  Row row = row_of(Kind::copy);
  row.first_access = static_cast<std::uint32_t>(program.accesses.size());
  row.num_accesses = 2;
  program.accesses.insert(program.accesses.end(), {src, dst});
  return row;
}

void finish(Program& program) {
  for (const InstructionStream& stream : program.streams) {
    if (stream.runner > 0) program.engines.push_back(stream.runner);
  }
  weft::link_lanes(program);
  weft::Checker(program).check();
}

void test_two_ranks_exchange_through_an_engine_and_lanes() {
  constexpr std::size_t kSize = 1000;
  constexpr int kExecutions = 300;
  const Heap heap = world_of(2);
  std::array<std::vector<std::byte>, 2> in, out;
  std::array<Line, 2> sent, seen;
  for (auto* both : {&in, &out}) both->fill(std::vector<std::byte>(kSize));
  const auto be = [&](std::size_t rank) {
    const std::size_t peer = 1 - rank;
    Member member(heap.name(), static_cast<int>(rank), std::chrono::seconds(30));
    Program program;
    // The engine copies to the peer; lane 0 waits for what comes, lane 1 tells it was read.
    Line read;
    program.rows = {row_of(Kind::launch), wait(sent[rank], 1, 1), signal(read),          wait(read, 1, 1),
                    row_of(Kind::kernel), signal(seen[peer]),     wait(seen[rank], 1, 1)};
    program.rows.push_back(copy(program, in[rank], out[peer]));
    program.rows.push_back(signal(sent[peer]));
    program.streams = {{0, 7, -1, 0}, {1, 3, 0, 0}, {3, 6, 0, 0}, {7, 9, -1, 1}};
    std::vector<std::uint64_t> stamps(2 * program.rows.size());
    program.stamps = stamps.data();
    finish(program);
    int execution = 0;
    Hooks hooks;
    hooks.kernel = [&](std::size_t row, std::span<const weft::ResolvedSlice>) {
      CHECK(row == 4);
      for (const std::byte value : out[rank]) CHECK(value == std::byte(execution + static_cast<int>(peer)));
    };
    for (; execution < kExecutions; ++execution) {
      std::memset(in[rank].data(), (execution + static_cast<int>(rank)) & 0xff, kSize);
      CHECK(!run(member, program, static_cast<std::uint64_t>(execution), true, hooks));
      for (std::size_t i = 0; i < program.rows.size(); ++i) {
        CHECK(stamps[2 * i] != 0 && stamps[2 * i] <= stamps[2 * i + 1]);
      }
      CHECK(stamps[0] <= stamps[2] && stamps[1] >= stamps[11] && stamps[1] <= stamps[12]);
    }
  };
  std::thread other([&] { be(1); });
  be(0);
  other.join();
  heap.unlink();
}

constexpr auto kShort = std::chrono::milliseconds(50);  // for what is meant to time out

struct Alone {
  Heap heap = world_of(1);
  Member member{heap.name(), 0, std::chrono::seconds(30)};
  Alone() { heap.unlink(); }
};

void test_a_timeout_names_the_row_and_the_count() {
  Alone alone;
  alone.member.set_timeout(kShort);
  Line line;
  line.word = 10 * 3 + 1;  // ten executions, and one signal more
  for (const std::uint32_t runner : {0U, 2U}) {
    Program program;
    program.rows = {row_of(Kind::call), wait(line, 2, 3)};
    program.streams = {{0, 2, -1, runner}};
    finish(program);
    const auto abort = run(alone.member, program, 10, false, {});
    CHECK(abort && abort->cause == AbortCause::timeout);
    CHECK(abort->row == 1 && abort->have == 1 && abort->want == 2);
  }
}

// Rank 0 gives a number each time, in copies that rotate, and leaves; rank 1 takes it later.
void test_a_rank_that_gives_runs_ahead_but_not_round() {
  constexpr int kExecutions = 2000;
  constexpr std::uint64_t kTurns = 4;
  const std::size_t front = Control::nbytes(2);
  Heap heap = Heap::create(front + weft::page_bytes());
  Control::format(heap, 2, 0);
  Line prepared, done;
  const weft::Location location{front, sizeof(std::uint64_t)};
  std::atomic<int> ahead = 0, most = 0;
  const auto be = [&](int rank) {
    Member member(heap.name(), rank, std::chrono::seconds(30));
    std::uint64_t number = 0;
    const Bytes mine(reinterpret_cast<std::byte*>(&number), sizeof number);
    weft::Access shared(&location, 0, 0, sizeof number);
    shared.stride = weft::kLine;
    Program program;
    program.resolver = member.resolver();
    program.num_buffers = kTurns;
    Row moved = copy(program, mine, mine);
    program.accesses[rank == 0 ? 1 : 0] = shared;
    const std::int64_t earlier = 1 - static_cast<std::int64_t>(kTurns - 1);
    if (rank == 0)
      program.rows = {moved, signal(prepared), wait(done, earlier, 1)};
    else
      program.rows = {wait(prepared, 1, 1), moved, signal(done)};
    program.streams = {{0, 3, -1, 0}};
    finish(program);
    weft::PreparedProgram again(std::move(program));
    for (int i = 0; i < kExecutions; ++i) {
      if (rank == 0) number = static_cast<std::uint64_t>(i);
      CHECK(!again.run(member, {}, "", false, {}));
      if (rank == 1) CHECK(number == static_cast<std::uint64_t>(i));
      // Relaxed: only counted.
      const int now = ahead.fetch_add(rank == 0 ? 1 : -1, std::memory_order_relaxed);
      if (now > most.load(std::memory_order_relaxed)) most.store(now, std::memory_order_relaxed);
    }
    CHECK(again.num_executions() == kExecutions);
  };
  std::thread other(be, 1);
  be(0);
  other.join();
  heap.unlink();
  CHECK(most.load() <= static_cast<int>(kTurns) + 1);
}

void test_a_gate_and_a_hold_keep_a_row_from_starting() {
  Alone alone;
  Line bell, hold;
  std::array<std::byte, 4> from{std::byte{1}}, to{};
  Program program;
  Row move = copy(program, from, to);
  move.gate = {&bell.word, 2, 2};
  move.hold = {&hold.word, 1, 1};
  Row submit = signal(bell, 2);
  submit.kind = Kind::submit;
  program.rows = {move, submit, signal(hold)};
  program.streams = {{0, 1, -1, 0}, {1, 2, -1, 0}, {2, 3, -1, 0}};
  finish(program);
  for (std::uint64_t execution = 0; execution < 3; ++execution) {
    to = {};
    CHECK(!run(alone.member, program, execution, false, {}));
    CHECK(to == from);
  }
  program.streams = {{0, 1, -1, 0}, {1, 2, -1, 0}};  // nobody releases it
  alone.member.set_timeout(kShort);
  const auto abort = run(alone.member, program, 3, false, {});
  CHECK(abort && abort->cause == AbortCause::timeout && abort->row == 0 && abort->want == 1);
}

void test_empty_streams_end() {
  Alone alone;
  Program program;
  program.rows = {row_of(Kind::launch), row_of(Kind::launch)};
  program.streams = {{0, 2, -1, 0}, {1, 1, 0, 0}, {2, 2, -1, 0}, {2, 2, -1, 1}};
  finish(program);
  CHECK(!run(alone.member, program, 0, false, {}));
}

void test_a_fault_stops_the_run_at_once() {
  Alone alone;
  CHECK(alone.member.control().fail(0, weft::FaultReason::raised, 0, "elsewhere"));
  Line line;
  Program program;
  program.rows = {wait(line, 1, 1)};
  program.streams = {{0, 1, -1, 0}};
  finish(program);
  const auto abort = run(alone.member, program, 0, false, {});
  CHECK(abort && abort->cause == AbortCause::fault && abort->row == 0);
}

void test_an_exception_of_a_kernel_ends_the_engines() {
  Alone alone;
  Line line;
  Program program;
  program.rows = {row_of(Kind::kernel), wait(line, 1, 1)};
  program.streams = {{0, 1, -1, 0}, {1, 2, -1, 1}};
  finish(program);
  Hooks hooks;
  hooks.kernel = [](std::size_t, std::span<const weft::ResolvedSlice>) { throw std::domain_error("kernel"); };
  CHECK_THROWS(run(alone.member, program, 0, false, hooks), std::domain_error);
  // The engine is free for the next one.
  program.rows[0] = signal(line);
  weft::link_lanes(program);
  CHECK(!run(alone.member, program, 0, false, {}));
}

// Not the row at which another stream happens to wait.
void test_memory_that_cannot_be_reached_is_named_by_the_row_that_wants_it() {
  Alone alone;
  Line line;
  std::array<std::byte, 16> to{};
  const weft::Location nowhere{weft::Location::kOrdinary | 8, to.size()};
  Program program;
  program.resolver.pids = {::getpid(), ::getpid()};
  const Row read = copy(program, Bytes{}, to);
  program.accesses[0] = weft::Access(&nowhere, 1, 0, to.size());
  program.rows = {wait(line, 1, 1), read};
  program.streams = {{0, 1, -1, 0}, {1, 2, -1, 0}};
  finish(program);
  const auto abort = run(alone.member, program, 0, false, {});
  CHECK(abort && abort->cause == AbortCause::memory && abort->rank == 1 && abort->row == 1);
  CHECK(abort->have == EFAULT);
}

void test_a_wrong_slot_is_found() {
  Alone alone;
  std::array<std::byte, 16> slot{std::byte{3}};
  std::array<std::byte, 4> to{};
  Program program;
  Row decode = copy(program, slot, to);
  decode.kind = Kind::decode;
  program.rows = {decode};
  program.streams = {{0, 1, -1, 0}};
  finish(program);
  const auto abort = run(alone.member, program, 0, false, {});
  CHECK(abort && abort->cause == AbortCause::slot && abort->row == 0);
  CHECK(abort->have == 3 && abort->want == 4);
}

// Values that shrink go into a slot, from it into another, and back.
struct Coded {
  std::array<std::byte, 512> data{};
  std::array<std::byte, 2048> slot{}, copied{};
  std::array<std::byte, 512> back{};
  Program program;

  Coded() {
    program.coders.push_back(weft::coder_of(weft::codec_of("pack", "float32")));
    for (std::size_t i = 0; i < data.size(); i += 4) data[i] = static_cast<std::byte>(i / 4);
    copied.fill(std::byte{7});
    const std::array kinds = {Kind::encode, Kind::copy, Kind::decode};
    const std::array<std::pair<Bytes, Bytes>, 3> slices = {{{data, slot}, {slot, copied}, {copied, back}}};
    for (std::size_t i = 0; i < 3; ++i) {
      Row row = copy(program, slices[i].first, slices[i].second);
      row.kind = kinds[i];
      if (row.kind == Kind::copy)
        row.slot = true;
      else
        row.coder = 0;
      program.rows.push_back(row);
    }
    program.streams = {{0, 3, -1, 0}};
    finish(program);
  }
};

void test_a_copy_of_a_slot_moves_what_is_in_use() {
  Alone alone;
  Coded coded;
  CHECK(!run(alone.member, coded.program, 0, false, {}));
  CHECK(coded.back == coded.data);
  const std::uint64_t used = weft::used_of(coded.slot);
  CHECK(used > weft::kSlotHead && used < coded.data.size());
  CHECK(coded.copied[used] == std::byte{7} && coded.copied[used - 1] == coded.slot[used - 1]);
}

void test_broken_slots_are_found() {
  Alone alone;
  Coded coded;
  coded.program.streams = {{2, 3, -1, 0}};  // decodes what was never encoded
  const auto wrong = run(alone.member, coded.program, 0, false, {});
  CHECK(wrong && wrong->cause == AbortCause::codec && wrong->row == 2);
  CHECK(wrong->have == static_cast<std::uint64_t>(weft::Verdict::cut));
  coded.slot.fill(std::byte{0xff});
  coded.program.streams = {{1, 2, -1, 0}};
  const auto long_one = run(alone.member, coded.program, 1, false, {});
  CHECK(long_one && long_one->cause == AbortCause::slot && long_one->row == 1);
  coded.program.rows[0].coder = 1;  // there is no such coder
  CHECK_THROWS(finish(coded.program), std::invalid_argument);
}

void test_rows_that_could_do_harm_are_refused() {
  std::array<std::byte, 64> memory{};
  const Bytes all(memory);
  const auto refused = [&](Kind kind, Bytes a, Bytes b) {
    Program program;
    Row row = copy(program, a, b);
    row.kind = kind;
    row.reduction = weft::reduction_of("float32", "sum");
    program.rows = {row};
    program.streams = {{0, 1, -1, 0}};
    CHECK_THROWS(finish(program), std::invalid_argument);
  };
  refused(Kind::copy, all.first(8), all.subspan(8, 7));
  refused(Kind::broadcast, all.first(8), all.subspan(4, 8));
  refused(Kind::swap, all.first(8), all.subspan(4, 8));
  refused(Kind::reduce, all.first(8), all.subspan(4, 8));
  refused(Kind::reduce, all.first(6), all.subspan(8, 6));
  refused(Kind::encode, all.first(8), all.subspan(8, 15));
  refused(Kind::decode, all.first(7), all.subspan(8, 0));
  refused(Kind::signal, all, all);
  refused(Kind::wait, all, all);
  Program program;
  program.rows = {row_of(Kind::kernel)};
  program.streams = {{0, 1, -1, 1}};
  CHECK_THROWS(finish(program), std::invalid_argument);
  program.streams = {{0, 2, -1, 0}};
  CHECK_THROWS(finish(program), std::invalid_argument);
  program.streams = {{0, 1, 0, 0}};
  CHECK_THROWS(finish(program), std::invalid_argument);
}

void test_short_copies_of_much_go_past_the_caches() {
  const std::size_t limit = weft::streamed_from();
  std::vector<std::byte> memory(64);
  const auto of = [&](std::size_t nbytes) { return Bytes(memory.data(), nbytes); };  // not touched
  Program program;
  program.resolver.pids = {1, 2};
  program.rows = {copy(program, of(limit / 2), of(limit / 2)), copy(program, of(limit / 4), of(limit / 4))};
  CHECK(weft::count_copied(program) == 3 * limit / 2);
  program.copied = weft::count_copied(program);
  CHECK(program.streamed() == limit);  // the caches hold it
  program.rows.push_back(copy(program, of(limit / 4), of(limit / 4)));
  program.copied = weft::count_copied(program);
  CHECK(program.streamed() < limit);
  program.rows.push_back(row_of(Kind::reduce));  // it reads what was copied
  CHECK(weft::count_copied(program) == 0);
}

}  // namespace

int main() {
  test_short_copies_of_much_go_past_the_caches();
  test_two_ranks_exchange_through_an_engine_and_lanes();
  test_a_timeout_names_the_row_and_the_count();
  test_a_rank_that_gives_runs_ahead_but_not_round();
  test_a_gate_and_a_hold_keep_a_row_from_starting();
  test_empty_streams_end();
  test_a_fault_stops_the_run_at_once();
  test_an_exception_of_a_kernel_ends_the_engines();
  test_memory_that_cannot_be_reached_is_named_by_the_row_that_wants_it();
  test_a_wrong_slot_is_found();
  test_a_copy_of_a_slot_moves_what_is_in_use();
  test_broken_slots_are_found();
  test_rows_that_could_do_harm_are_refused();
}
