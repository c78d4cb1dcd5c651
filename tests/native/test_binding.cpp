// Memory of the caller is found where it lies, in this process and in another.
#include <sys/mman.h>
#include <sys/wait.h>

#include <cstring>
#include <thread>
#include <vector>

#include "check.hpp"
#include "member.hpp"
#include "reductions.hpp"

namespace {

using weft::Access;
using weft::Bound;
using weft::Bytes;
using weft::CrossProcessCopy;
using weft::AddressResolver;
using weft::ResolvedSlice;
using weft::Location;
using weft::Program;

std::vector<std::byte> filled(std::size_t size, int value) {
  return std::vector<std::byte>(size, std::byte(value));
}

AddressResolver finder_in(std::vector<std::byte>& heap, std::uint32_t self) {
  AddressResolver resolver;
  resolver.heap = heap;
  resolver.self = self;
  resolver.pids = {::getpid(), ::getpid()};
  return resolver;
}

void test_a_slice_is_found_in_the_heap_here_or_there() {
  auto heap = filled(1000, 0), mine = filled(100, 0);
  const AddressResolver resolver = finder_in(heap, 0);
  const Location in_heap{200, 100};
  const Location ordinary{Location::kOrdinary | reinterpret_cast<std::uint64_t>(mine.data()), 100};
  const auto a = resolver.resolve(Access(&in_heap, 1, 10, 90));
  CHECK(a && !a->is_remote() && a->here.data() == heap.data() + 210 && a->size() == 90);
  const auto b = resolver.resolve(Access(&ordinary, 0, 10, 90));
  CHECK(b && !b->is_remote() && b->here.data() == mine.data() + 10);
  const auto c = resolver.resolve(Access(&ordinary, 1, 10, 90));
  CHECK(c && c->is_remote() && c->there == reinterpret_cast<std::uint64_t>(mine.data()) + 10);
}

void test_a_slice_outside_its_place_is_not_found() {
  auto heap = filled(1000, 0);
  const AddressResolver resolver = finder_in(heap, 0);
  const Location small{0, 10}, outside{990, 100}, wild{~Location::kOrdinary, 10};
  CHECK(!resolver.resolve(Access(&small, 1, 5, 6)));
  CHECK(!resolver.resolve(Access(&small, 1, 11, 0)));
  CHECK(!resolver.resolve(Access(&outside, 1, 0, 100)));
  CHECK(!resolver.resolve(Access(&wild, 1, 0, 10)));
}

Program program_of(std::vector<std::byte>& heap, Location& location, bool shared) {
  Program program;
  program.resolver = finder_in(heap, 0);
  program.own.push_back({&location, {100, 50}, 50, shared, true, true});
  return program;
}

void test_little_that_others_need_is_staged_and_collected() {
  auto heap = filled(1000, 0), mine = filled(50, 7);
  Location location;
  const Program program = program_of(heap, location, true);
  const std::vector<Bound> bound = {{0, mine}};
  weft::Binding binding(program, bound);
  binding.publish({});
  CHECK(location == (Location{100, 50}) && heap[149] == std::byte(7) && heap[150] == std::byte(0));
  heap[149] = std::byte(9);
  binding.collect();
  CHECK(mine[49] == std::byte(9) && mine[0] == std::byte(7));
}

void test_what_nobody_else_needs_stays_where_it_is() {
  auto heap = filled(1000, 0), mine = filled(50, 7);
  Location location;
  const Program program = program_of(heap, location, false);
  const std::vector<Bound> bound = {{0, mine}};
  weft::Binding(program, bound).publish({});
  CHECK(location.is_ordinary() && location.address() == reinterpret_cast<std::uint64_t>(mine.data()));
  weft::Binding(program, {}).publish({});
  CHECK(location == (Location{100, 50}));
  const std::vector<Bound> inside = {{0, Bytes(heap).subspan(300, 50)}};
  weft::Binding(program, inside).publish({});
  CHECK(location == (Location{300, 50}));
}

void test_memory_of_another_size_is_refused() {
  auto heap = filled(1000, 0), mine = filled(49, 7);
  Location location;
  const Program program = program_of(heap, location, false);
  const std::vector<Bound> bound = {{0, mine}}, unknown = {{1, mine}};
  for (const auto* wrong : {&bound, &unknown}) {
    bool refused = false;
    try {
      const weft::Binding binding(program, *wrong);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused);
  }
}

// Reads and writes this very process by the calls that reach others: the same code path.
void test_bytes_cross_between_processes_block_by_block() {
  const std::size_t size = 3 * CrossProcessCopy::kBlock + 77;
  const std::vector<pid_t> pids = {::getpid()};
  auto a = filled(size, 1), b = filled(size, 2), c = filled(size, 0);
  const auto far = [&](std::vector<std::byte>& data) {
    return ResolvedSlice{
        {static_cast<std::byte*>(nullptr), size}, reinterpret_cast<std::uint64_t>(data.data()), 0};
  };
  const auto near = [&](std::vector<std::byte>& data) { return ResolvedSlice{data, 0, 0}; };
  CrossProcessCopy move(pids);
  move.copy(far(a), near(c));
  CHECK(c == a);
  move.copy(near(b), far(c));
  CHECK(c == b);
  move.copy(far(a), far(c));
  CHECK(c == a);
  move.swap(far(a), near(b));
  CHECK(a == filled(size, 2) && b == filled(size, 1));
  const std::vector<ResolvedSlice> srcs = {far(a), near(b), far(a)};
  move.reduce(weft::reduction_of("uint8", "sum"), srcs, far(c));
  CHECK(c == filled(size, 5));
  const std::vector<ResolvedSlice> dsts = {far(a), near(b)};
  move.broadcast(near(c), dsts);
  CHECK(a == c && b == c);
}

void test_memory_that_is_gone_is_unreachable() {
  const std::vector<pid_t> pids = {::getpid()};
  void* gone = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ::munmap(gone, 4096);
  auto here = filled(100, 0);
  bool caught = false;
  try {
    CrossProcessCopy(pids).copy(
        {{static_cast<std::byte*>(nullptr), 100}, reinterpret_cast<std::uint64_t>(gone), 0}, {here, 0, 0});
  } catch (const weft::Unreachable& error) {
    caught = error.error == EFAULT && error.rank == 0;
  }
  CHECK(caught);
}

void test_streamed_copies_are_exact_whatever_the_alignment() {
  constexpr std::size_t kStreamed = 5000;
  auto from = filled(kStreamed + 300, 0), to = filled(kStreamed + 300, 0);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = std::byte(i * 31 % 251);
  for (const std::size_t shift : {0, 1, 63, 64}) {
    const std::size_t size = kStreamed + 100;
    weft::copy(Bytes(from).subspan(7, size), Bytes(to).subspan(shift, size), kStreamed);
    CHECK(std::memcmp(from.data() + 7, to.data() + shift, size) == 0);
    weft::copy(Bytes(to).subspan(shift, size), Bytes(to).subspan(shift + 9, size), kStreamed);
    CHECK(std::memcmp(from.data() + 7, to.data() + shift + 9, size) == 0);
  }
}

}  // namespace

int main() {
  test_a_slice_is_found_in_the_heap_here_or_there();
  test_a_slice_outside_its_place_is_not_found();
  test_little_that_others_need_is_staged_and_collected();
  test_what_nobody_else_needs_stays_where_it_is();
  test_memory_of_another_size_is_refused();
  test_bytes_cross_between_processes_block_by_block();
  test_memory_that_is_gone_is_unreachable();
  test_streamed_copies_are_exact_whatever_the_alignment();
}
