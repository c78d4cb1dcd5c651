// The symmetric heap: one segment of shared memory, mapped as a whole by every rank.
//
// The segment is as large as all ranks may ever need and sparse: memory is taken when a range
// is reserved and given back when it is released, so the heap grows without moving.
//
// Every process that has it open holds a shared lock on it. A segment that can be locked exclusively has
// no owner left, which is how the next start tells what a killed world left behind.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "flag.hpp"
#include "system.hpp"

namespace weft {

inline std::size_t page_bytes() {
  static const auto size = static_cast<std::size_t>(checked(::sysconf(_SC_PAGESIZE), "sysconf"));
  return size;
}

class Heap {
 public:
  static constexpr std::size_t kLargePage = 2 << 20;

  // A new segment, readable by this user only, under a name that cannot be guessed.
  static Heap create(std::size_t nbytes) {
    for (;;) {
      const std::string name = "/weft-" + random_token();
      Descriptor file(checked(::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600),
                              "creating shared memory"));
      const UnlinkOnError guard{name};
      lock_shared(file);
      // Another process may have removed the file as a left one before it was locked.
      if (is_unlinked(file)) continue;
      checked(::ftruncate(file.get(), static_cast<off_t>(nbytes)), "sizing shared memory");
      Heap heap(name, std::move(file), nbytes);
      guard.dismissed = true;
      return heap;
    }
  }

  static Heap open(const std::string& name) {
    Descriptor file(
        checked(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0), "opening shared memory " + name));
    lock_shared(file);
    struct stat info{};
    checked(::fstat(file.get(), &info), "fstat");
    if (info.st_uid != ::geteuid()) {
      throw std::runtime_error("shared memory " + name + " belongs to another user");
    }
    return Heap(name, std::move(file), static_cast<std::size_t>(info.st_size));
  }

  Heap(Heap&& other) noexcept
      : name_(std::move(other.name_)),
        file_(std::move(other.file_)),
        base_(std::exchange(other.base_, nullptr)),
        nbytes_(std::exchange(other.nbytes_, 0)) {}
  Heap& operator=(Heap&&) = delete;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;
  ~Heap() {
    if (base_ != nullptr) ::munmap(base_, nbytes_);
  }

  // Takes the name away; the memory lives on until the last process has unmapped it.
  void unlink() const {
    if (::shm_unlink(name_.c_str()) != 0 && errno != ENOENT) throw_errno("unlinking " + name_);
  }

  // Memory for a range, so that using it can fail no more, and pages for this process.
  void reserve(std::size_t offset, std::size_t nbytes) const {
    const auto range = pages(offset, nbytes);
    if (range.empty()) return;
    allocate(0, range, "taking " + std::to_string(nbytes) + " bytes of shared memory");
    join_pages(range);
    populate(offset, nbytes);
  }

  // Maps the pages of a reserved range, here and now rather than in the first execution.
  void populate(std::size_t offset, std::size_t nbytes) const {
    const auto range = pages(offset, nbytes);
    if (range.empty()) return;
#ifdef MADV_POPULATE_WRITE
    if (::madvise(range.data(), range.size(), MADV_POPULATE_WRITE) == 0) return;
    // EINVAL: a kernel before 5.14. EFAULT: the memory is not there; reading would kill us.
    if (errno != EINVAL) throw_errno("mapping shared memory");
#endif
    // A read maps as well and, unlike a write, cannot undo what a peer writes meanwhile.
    for (std::size_t at = 0; at < range.size(); at += page_bytes()) {
      static_cast<void>(*reinterpret_cast<const volatile std::byte*>(range.data() + at));
    }
  }

  // Releases the memory of a range; it reads as zeros when it is reserved again.
  void release(std::size_t offset, std::size_t nbytes) const {
    const auto range = pages(offset, nbytes);
    if (range.empty()) return;
    allocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, range, "giving shared memory back");
  }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::size_t size() const noexcept { return nbytes_; }

  // The bytes of a range. Throws where it reaches outside.
  [[nodiscard]] std::span<std::byte> bytes(std::uint64_t offset, std::uint64_t nbytes) const {
    if (offset > nbytes_ || nbytes > nbytes_ - offset) {
      throw std::out_of_range("bytes " + std::to_string(offset) + " + " + std::to_string(nbytes) +
                              " reach outside a heap of " + std::to_string(nbytes_));
    }
    return {base_ + offset, nbytes};
  }

  [[nodiscard]] std::uint64_t& word(std::uint64_t offset) const {
    if (offset % alignof(std::uint64_t) != 0) throw std::out_of_range("a flag is not aligned");
    return *reinterpret_cast<std::uint64_t*>(bytes(offset, sizeof(std::uint64_t)).data());
  }

 private:
  Heap(std::string name, Descriptor file, std::size_t nbytes)
      : name_(std::move(name)), file_(std::move(file)), nbytes_(nbytes) {
    base_ = map(file_, nbytes);
    // A core dump needs none of it; whether the kernel agrees does not matter.
    static_cast<void>(::madvise(base_, nbytes, MADV_DONTDUMP));
  }

  // At a multiple of a large page: only so can one be mapped. Addresses are taken with room on
  // both sides, which is given back.
  static std::byte* map(const Descriptor& file, std::size_t nbytes) {
    void* taken =
        ::mmap(nullptr, nbytes + kLargePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (taken == MAP_FAILED) throw_errno("taking addresses for shared memory");
    const auto first = reinterpret_cast<std::uintptr_t>(taken);
    const std::size_t page = page_bytes(), whole = (nbytes + page - 1) / page * page;
    const std::uintptr_t start = (first + kLargePage - 1) / kLargePage * kLargePage;
    void* mapped = ::mmap(reinterpret_cast<void*>(start), nbytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_FIXED, file.get(), 0);
    if (mapped == MAP_FAILED) {
      ::munmap(taken, nbytes + kLargePage);
      throw_errno("mapping shared memory");
    }
    const std::size_t before = start - first;
    const std::size_t after = (nbytes + kLargePage + page - 1) / page * page - before - whole;
    if (before != 0) ::munmap(taken, before);
    if (after != 0) ::munmap(reinterpret_cast<void*>(start + whole), after);
    return static_cast<std::byte*>(mapped);
  }

  void allocate(int mode, std::span<std::byte> range, const std::string& what) const {
    const off_t offset = range.data() - base_, size = static_cast<off_t>(range.size());
    uninterrupted([&] { return ::fallocate(file_.get(), mode, offset, size); }, what);
  }

  // Advises the kernel to make large pages of what lies whole in a range that was just taken. Systems
  // give shared memory small ones, by default even where they would give large ones on request;
  // a copy of 16 MiB and more is half again as fast with large ones on a virtual machine. Where
  // this cannot be done (before Linux 6.1, or no large page is free), nothing is lost.
  void join_pages(std::span<std::byte> range) const noexcept {
#if defined(__linux__)
    constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack
    const auto first = static_cast<std::size_t>(range.data() - base_), last = first + range.size();
    const std::size_t start = (first + kLargePage - 1) / kLargePage * kLargePage;
    const std::size_t stop = last / kLargePage * kLargePage;
    if (start < stop) static_cast<void>(::madvise(base_ + start, stop - start, kCollapse));
#endif
  }

  struct UnlinkOnError {
    const std::string& name;
    mutable bool dismissed = false;
    ~UnlinkOnError() {
      if (!dismissed) ::shm_unlink(name.c_str());
    }
  };

  static std::string random_token() {
    std::array<unsigned char, 16> bits{};
    const auto size = static_cast<ssize_t>(bits.size());
    if (::getrandom(bits.data(), bits.size(), 0) != size) throw_errno("getrandom");
    std::string text;
    for (const unsigned char value : bits) {
      text += "0123456789abcdef"[value >> 4];
      text += "0123456789abcdef"[value & 15];
    }
    return text;
  }

  static void lock_shared(const Descriptor& file) {
    uninterrupted([&] { return ::flock(file.get(), LOCK_SH); }, "locking shared memory");
  }

  static bool is_unlinked(const Descriptor& file) {
    struct stat info{};
    checked(::fstat(file.get(), &info), "fstat");
    return info.st_nlink == 0;
  }

  // The whole pages around a range: reserved ranges share none, so this takes no more.
  [[nodiscard]] std::span<std::byte> pages(std::size_t offset, std::size_t nbytes) const {
    if (nbytes == 0) return {};
    static_cast<void>(bytes(offset, nbytes));
    const std::size_t page = page_bytes();
    const std::size_t first = offset / page * page;
    const std::size_t last = std::min((offset + nbytes + page - 1) / page * page, nbytes_);
    return {base_ + first, last - first};
  }

  std::string name_;
  Descriptor file_;
  std::byte* base_ = nullptr;
  std::size_t nbytes_ = 0;
};

}  // namespace weft
