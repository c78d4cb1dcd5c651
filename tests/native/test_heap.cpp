// A segment is private, shared by those who open it, and gone with them.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cstring>
#include <string>

#include "check.hpp"
#include "heap.hpp"

namespace {

using weft::Heap;

constexpr std::size_t kSize = std::size_t{1} << 36;  // sparse: costs addresses only

std::string path_of(const Heap& heap) { return "/dev/shm" + heap.name(); }

bool has_no_owner(const std::string& path) {
  const weft::Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  CHECK(file.get() >= 0);
  return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
}

void test_two_mappings_share_bytes() {
  const Heap one = Heap::create(kSize);
  const Heap two = Heap::open(one.name());
  one.unlink();
  one.unlink();  // twice is as good as once
  one.reserve(12345, 100'000);
  two.populate(12345, 100'000);
  std::memset(one.bytes(12345, 100'000).data(), 7, 100'000);
  CHECK(two.bytes(12345 + 99'999, 1)[0] == std::byte{7});
  one.release(12345, 100'000);
  two.reserve(12345, 100'000);
  CHECK(two.bytes(12345 + 99'999, 1)[0] == std::byte{0});
  CHECK_THROWS(Heap::open(one.name()), std::system_error);
}

void test_a_segment_is_private_and_unguessable() {
  const Heap one = Heap::create(4096);
  const Heap two = Heap::create(4096);
  struct stat info{};
  CHECK(::stat(path_of(one).c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK(one.name() != two.name() && one.name().size() == std::strlen("/weft-") + 32);
  one.unlink();
  two.unlink();
}

void test_only_a_dead_segment_has_no_owner() {
  std::string path;
  {
    const Heap owner = Heap::create(4096);
    path = path_of(owner);
    CHECK(!has_no_owner(path));
  }
  CHECK(has_no_owner(path));
  CHECK(::unlink(path.c_str()) == 0);
}

void test_nothing_outside_can_be_reached() {
  const Heap heap = Heap::create(8192);
  heap.unlink();
  CHECK(heap.bytes(8192, 0).empty());
  CHECK_THROWS(heap.bytes(8192, 1), std::out_of_range);
  CHECK_THROWS(heap.bytes(8193, 0), std::out_of_range);
  CHECK_THROWS(heap.bytes(1, UINT64_MAX), std::out_of_range);
  CHECK_THROWS(heap.reserve(4096, 8192), std::out_of_range);
  CHECK_THROWS(heap.word(8185), std::out_of_range);
  CHECK_THROWS(heap.word(4), std::out_of_range);
  heap.word(8184) = 1;
}

// Whether the pages become large ones is the system's business: bytes stay what they were.
void test_large_ranges_keep_their_bytes() {
  constexpr std::size_t large = Heap::kLargePage, start = large - 4096, size = 3 * large;
  const Heap one = Heap::create(kSize);
  const Heap two = Heap::open(one.name());
  one.unlink();
  for (const Heap* heap : {&one, &two}) {
    CHECK(reinterpret_cast<std::uintptr_t>(heap->bytes(0, 1).data()) % large == 0);
  }
  for (int turn = 0; turn < 2; ++turn) {
    one.reserve(start, size);
    two.populate(start, size);
    for (std::size_t at = start; at < start + size; at += 4096) {
      CHECK(two.bytes(at, 1)[0] == std::byte{0});
      one.bytes(at, 1)[0] = static_cast<std::byte>(at >> 12);
      CHECK(two.bytes(at, 1)[0] == static_cast<std::byte>(at >> 12));
    }
    one.release(start, size);
  }
}

}  // namespace

int main() {
  test_large_ranges_keep_their_bytes();
  test_two_mappings_share_bytes();
  test_a_segment_is_private_and_unguessable();
  test_only_a_dead_segment_has_no_owner();
  test_nothing_outside_can_be_reached();
}
