// Commands with slices in other processes, by process_vm_readv and process_vm_writev.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "location.hpp"
#include "reduce.hpp"

namespace weft {

// The memory of another process cannot be accessed.
struct Unreachable {
  std::uint32_t rank;
  int error;  // ESRCH: its process is gone
};

class CrossProcessCopy {
 public:
  static constexpr std::size_t kBlock = 128 << 10;  // a few of them fit in the L2 cache

  explicit CrossProcessCopy(const std::vector<pid_t>& pids) : pids_(pids) {}

  void copy(const ResolvedSlice& src, const ResolvedSlice& dst) {
    if (!src.is_remote()) return write(src.here, dst);
    if (!dst.is_remote()) return read(src, dst.here);
    in_blocks(src.size(), [&](std::size_t at, std::size_t size) {
      const Bytes held = scratch(0, size);
      read(src.part(at, size), held);
      write(held, dst.part(at, size));
    });
  }

  void broadcast(const ResolvedSlice& src, std::span<const ResolvedSlice> dsts) {
    in_blocks(src.size(), [&](std::size_t at, std::size_t size) {
      const Bytes held = local_bytes(src.part(at, size), 0);
      for (const ResolvedSlice& dst : dsts) write(held, dst.part(at, size));
    });
  }

  void swap(const ResolvedSlice& a, const ResolvedSlice& b) {
    in_blocks(a.size(), [&](std::size_t at, std::size_t size) {
      const ResolvedSlice left = a.part(at, size), right = b.part(at, size);
      const Bytes first = scratch(0, size), second = scratch(1, size);
      read(left, first);
      read(right, second);
      write(first, right);
      write(second, left);
    });
  }

  void reduce(const Reduction& reduction, std::span<const ResolvedSlice> srcs, const ResolvedSlice& dst) {
    std::vector<Bytes> here(srcs.size());
    in_blocks(dst.size(), [&](std::size_t at, std::size_t size) {
      for (std::size_t i = 0; i < srcs.size(); ++i) here[i] = local_bytes(srcs[i].part(at, size), i);
      const Bytes result = dst.is_remote() ? scratch(srcs.size(), size) : dst.here.subspan(at, size);
      reduction.run(here, result);
      if (dst.is_remote()) write(result, dst.part(at, size));
    });
  }

 private:
  template <class Act>
  static void in_blocks(std::size_t nbytes, Act act) {
    for (std::size_t at = 0; at < nbytes; at += kBlock) act(at, std::min(kBlock, nbytes - at));
  }

  // The bytes of a slice: in place if they are local, else read into scratch.
  Bytes local_bytes(const ResolvedSlice& piece, std::size_t number) {
    if (!piece.is_remote()) return piece.here;
    const Bytes held = scratch(number, piece.size());
    read(piece, held);
    return held;
  }

  // Per thread, not per program: there may be hundreds of programs. Not used across commands.
  static Bytes scratch(std::size_t number, std::size_t nbytes) {
    thread_local std::vector<std::unique_ptr<std::byte[]>> held;
    while (held.size() <= number) {
      held.push_back(std::make_unique_for_overwrite<std::byte[]>(kBlock));
    }
    return {held[number].get(), nbytes};
  }

  void read(const ResolvedSlice& src, Bytes dst) const {
    if (!src.is_remote()) return weft::copy(src.here, dst);
    transfer(&::process_vm_readv, src, dst);
  }

  void write(Bytes src, const ResolvedSlice& dst) const {
    if (!dst.is_remote()) return weft::copy(src, dst.here);
    transfer(&::process_vm_writev, dst, src);
  }

  // One call transfers at most 2 GiB and may end early, for example at a page being swapped in.
  template <class Call>
  void transfer(Call call, const ResolvedSlice& slice, Bytes bytes) const {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const iovec local{bytes.data() + done, bytes.size() - done};
      const iovec remote{reinterpret_cast<void*>(slice.there + done), bytes.size() - done};
      const ssize_t moved = call(pids_[slice.rank], &local, 1, &remote, 1, 0);
      if (moved < 0 && errno == EINTR) continue;
      if (moved <= 0) throw Unreachable{slice.rank, moved < 0 ? errno : EFAULT};
      done += static_cast<std::size_t>(moved);
    }
  }

  const std::vector<pid_t>& pids_;
};

}  // namespace weft
