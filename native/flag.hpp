// A counter in shared memory: some raise it, others wait for it, nothing resets it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace weft {

// Each flag has a line of its own, so that a waiting core is disturbed by its own flag only.
inline constexpr std::size_t kLine = 64;

class Flag {
 public:
  explicit Flag(std::uint64_t& word) noexcept : word_(word) {}

  // Publishes everything this thread wrote before the call. One order with doorbells: see there.
  void raise(std::uint64_t by = 1) const noexcept { word_.fetch_add(by, std::memory_order_seq_cst); }

  // A thread that sees the value also sees what was written before it was raised. Raises
  // are read-modify-writes, so a later one keeps the release of all earlier ones.
  [[nodiscard]] std::uint64_t value() const noexcept { return word_.load(std::memory_order_seq_cst); }

 private:
  std::atomic_ref<std::uint64_t> word_;
  static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free, "a lock would live in one process only");
};

}  // namespace weft
