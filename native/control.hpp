// The control area at the front of a heap: membership, barriers, flight recorders and the fault.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "flight_recorder.hpp"
#include "doorbell.hpp"
#include "flag.hpp"
#include "heap.hpp"
#include "process.hpp"

namespace weft {

enum class FaultReason : std::uint8_t { none = 0, raised = 1, timeout = 2, died = 3, disagree = 4 };

// The first failure of a world, after which every call fails.
struct Fault {
  FaultReason reason;
  int rank;  // the rank that failed, or -1
  std::string text;
};

class Control {
 public:
  static constexpr std::size_t kText = 960;

  static std::size_t nbytes(int num_ranks) {
    const std::size_t size = sizeof(Header) + (static_cast<std::size_t>(num_ranks) + 1) * sizeof(Slot);
    return (size + page_bytes() - 1) / page_bytes() * page_bytes();
  }

  // Writes the header of a fresh heap, whose bytes are zero.
  static void format(const Heap& heap, int num_ranks, std::uint64_t region_bytes) {
    heap.reserve(0, nbytes(num_ranks));
    auto& header = *reinterpret_cast<Header*>(heap.bytes(0, sizeof(Header)).data());
    header.num_ranks = static_cast<std::uint64_t>(num_ranks);
    header.region_bytes = region_bytes;
    // Release: a reader of the magic number sees the fields above.
    std::atomic_ref(header.magic).store(kMagic, std::memory_order_release);
  }

  explicit Control(const Heap& heap)
      : header_(*reinterpret_cast<Header*>(heap.bytes(0, sizeof(Header)).data())) {
    // Acquire: pairs with format().
    if (std::atomic_ref(header_.magic).load(std::memory_order_acquire) != kMagic) {
      throw std::runtime_error("this shared memory is not a weft world of this version");
    }
    const auto size = nbytes(num_ranks());
    slots_ = reinterpret_cast<Slot*>(heap.bytes(0, size).data() + sizeof(Header));
  }

  [[nodiscard]] int num_ranks() const noexcept { return static_cast<int>(header_.num_ranks); }
  // A rank of the world, or an exception.
  [[nodiscard]] int checked_rank(int rank) const {
    if (rank < 0 || rank >= num_ranks()) throw std::out_of_range("rank");
    return rank;
  }
  [[nodiscard]] std::uint64_t region_bytes() const noexcept { return header_.region_bytes; }

  void enter(int rank) {
    Slot& slot = slots_[rank];
    std::uint64_t absent = kAbsent;
    const Identity self = Identity::self();
    // Acquire-release: only one process claims the slot; kEntering keeps readers away.
    if (!std::atomic_ref(slot.state).compare_exchange_strong(absent, kEntering, std::memory_order_acq_rel)) {
      throw std::runtime_error("rank " + std::to_string(rank) + " is taken");
    }
    slot.who = self;
    // Release: a reader of kHere sees the identity.
    std::atomic_ref(slot.state).store(kHere, std::memory_order_release);
  }

  // Release: a reader of kLeft sees all flags raised before.
  void leave(int rank) noexcept {
    std::atomic_ref(slots_[rank].state).store(kLeft, std::memory_order_release);
  }

  [[nodiscard]] bool has_left(int rank) const noexcept { return state(rank) == kLeft; }

  // Whether a rank's process ended without leaving. It may leave between the two reads of its
  // state, so it counts as dead only if it has still not left afterwards.
  [[nodiscard]] bool has_died(int rank) const {
    return state(rank) == kHere && slots_[rank].who.gone() && state(rank) == kHere;
  }
  [[nodiscard]] bool is_stopped(int rank) const { return state(rank) == kHere && slots_[rank].who.stopped(); }
  // Zero until it has entered: before that its identity is being written.
  [[nodiscard]] std::int64_t pid(int rank) const noexcept {
    return state(rank) < kHere ? 0 : slots_[rank].who.pid;
  }

  // A barrier is a counter per rank: it is complete when no counter is behind.
  std::uint64_t arrive(int rank) noexcept {
    std::atomic_ref count(slots_[rank].arrived);
    // Release, for has_arrived(): a reader sees what was written before the arrival.
    return count.fetch_add(1, std::memory_order_release) + 1;
  }
  [[nodiscard]] bool has_arrived(int rank, std::uint64_t count) const noexcept {
    return std::atomic_ref(slots_[rank].arrived).load(std::memory_order_acquire) >= count;
  }

  // A payload for the other ranks; barriers before and after reading make it safe.
  void show(int rank, std::string_view text) {
    Slot& slot = slots_[rank];
    if (text.size() > kText) throw std::length_error("too long to be shown to the other ranks");
    std::memcpy(slot.shown.data(), text.data(), text.size());
    slot.shown_size = text.size();
  }
  [[nodiscard]] std::string shown(int rank) const {
    const Slot& slot = slots_[rank];
    return {slot.shown.data(), std::min<std::size_t>(slot.shown_size, kText)};
  }

  [[nodiscard]] Doorbell& bell(int rank) const noexcept { return slots_[rank].bell; }

  [[nodiscard]] FlightRecorder& recorder(int rank) const noexcept { return slots_[rank].recorder; }

  // A rank that made other calls than ``self`` up to the last one that both made, if any. All calls count,
  // not the last alone: some collectives end although another rank made a different one.
  [[nodiscard]] std::optional<int> disagreeing(int self) const {
    for (int rank = 0; rank < num_ranks(); ++rank) {
      if (differ(self, rank, last_common_call(self, rank))) return rank;
    }
    return std::nullopt;
  }

  // The first different calls of two ranks, as text.
  [[nodiscard]] std::string disagreement(int self, int other) const {
    const std::uint64_t last = last_common_call(self, other);
    std::uint64_t number = last < FlightRecorder::kKept ? 1 : last - FlightRecorder::kKept + 1;
    while (number < last && !differ(self, other, number)) ++number;
    const auto call = [&](int rank) {
      return "rank " + std::to_string(rank) + " calls " + recorder(rank).text(number).value_or("?");
    };
    const int first = std::min(self, other);
    const int second = std::max(self, other);
    const std::string which = "call " + std::to_string(number);
    if (recorder(first).text(number) == recorder(second).text(number)) {
      return "rank " + std::to_string(first) + " and rank " + std::to_string(second) +
             " made different calls before " + which;
    }
    return which + ": " + call(first) + ", " + call(second);
  }

  // What a rank does according to its flight recorder: in a call, after one, or before the first.
  [[nodiscard]] std::string doing(int rank) const {
    const std::uint64_t number = recorder(rank).latest();
    if (number == 0) return "before its first call";
    const std::string when = number <= recorder(rank).ended() ? "after" : "in";
    return when + " call " + std::to_string(number) + ", " + recorder(rank).text(number).value_or("?");
  }

  // The ranks that ``self`` waits for, as text: awaited, behind in calls, or stopped.
  [[nodiscard]] std::string missing(int self, int awaited) const {
    std::string text;
    for (int rank = 0; rank < num_ranks(); ++rank) {
      const bool stopped = is_stopped(rank);
      const bool late = rank == awaited || recorder(rank).latest() < recorder(self).latest();
      if (rank == self || !(stopped || late)) continue;
      text += "; rank " + std::to_string(rank) + (late ? " did not come" : "") +
              (late && stopped ? " and" : "") + (stopped ? " is stopped" : "") + " (" + doing(rank) + ")";
    }
    return text;
  }

  // Reports a fault; the first one stays. ``reporter`` is a rank, or num_ranks() for the
  // launcher. Threads of one reporter share its text buffer: one at a time.
  bool fail(int reporter, FaultReason reason, int rank, std::string_view text) noexcept {
    const std::scoped_lock lock(failing_);
    if (has_fault()) return false;
    Slot& slot = slots_[reporter];
    const std::size_t size = std::min(text.size(), kText - 1);
    std::memcpy(slot.text.data(), text.data(), size);
    slot.text[size] = '\0';
    std::uint64_t none = 0;
    const std::uint64_t word = static_cast<std::uint64_t>(reason) << 32 |
                               static_cast<std::uint64_t>(rank + 1) << 16 |
                               static_cast<std::uint64_t>(reporter + 1);
    // Release: a reader of the word sees the text. The text of a later fault is never read.
    return std::atomic_ref(header_.fault)
        .compare_exchange_strong(none, word, std::memory_order_release, std::memory_order_relaxed);
  }

  // Relaxed: only to decide whether to stop; fault() reads with acquire.
  [[nodiscard]] bool has_fault() const noexcept {
    return std::atomic_ref(header_.fault).load(std::memory_order_relaxed) != 0;
  }

  [[nodiscard]] std::optional<Fault> fault() const {
    const std::uint64_t word = std::atomic_ref(header_.fault).load(std::memory_order_acquire);
    if (word == 0) return std::nullopt;
    const Slot& slot = slots_[(word & 0xffff) - 1];
    return Fault{static_cast<FaultReason>(word >> 32), static_cast<int>(word >> 16 & 0xffff) - 1,
                 std::string(slot.text.data())};
  }

 private:
  static constexpr std::uint64_t kMagic = 0x3174'6665'7700'0004;  // and the layout's version
  static constexpr std::uint64_t kAbsent = 0, kEntering = 1, kHere = 2, kLeft = 3;

  [[nodiscard]] std::uint64_t last_common_call(int a, int b) const noexcept {
    return std::min(recorder(a).latest(), recorder(b).latest());
  }

  // Whether two ranks made different calls up to that number, as far as both still keep it.
  [[nodiscard]] bool differ(int a, int b, std::uint64_t number) const {
    const auto mine = recorder(a).digest(number);
    const auto theirs = recorder(b).digest(number);
    return mine && theirs && *mine != *theirs;
  }

  struct alignas(kLine) Header {
    std::uint64_t magic;
    std::uint64_t num_ranks;
    std::uint64_t region_bytes;
    alignas(kLine) std::uint64_t fault;
  };
  struct alignas(kLine) Slot {
    std::uint64_t arrived;
    alignas(kLine) std::uint64_t state;
    Identity who;
    Doorbell bell;
    alignas(kLine) std::uint64_t shown_size;
    std::array<char, kText> shown;
    alignas(kLine) std::array<char, kText> text;
    FlightRecorder recorder;
  };

  [[nodiscard]] std::uint64_t state(int rank) const noexcept {
    return std::atomic_ref(slots_[rank].state).load(std::memory_order_acquire);
  }

  Header& header_;
  Slot* slots_ = nullptr;
  std::mutex failing_;  // of the threads of this process: no other process writes its text
};

}  // namespace weft
