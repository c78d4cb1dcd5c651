// Point-to-point messages: slots in the receiver's region, a row for each sender.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cross_process_copy.hpp"
#include "flag.hpp"
#include "heap.hpp"
#include "location.hpp"

namespace weft {

// Thread contract: any number of threads of one rank may post, ask whether a message was sent, and
// take, at once, to and from the same or different ranks. Messages from one rank to another with one
// tag are taken in the order in which they were posted; who posts from several threads with one tag
// says which comes first, and of several threads that take one tag each gets another message.
//
// A receive of one tag never waits for a receive of another: where messages of other tags fill the row,
// the oldest of them are put aside in memory of the receiver, up to kAside bytes.
//
// Every row has one mutex for the threads that post into it and one for those that take from it. It
// protects finding and claiming a slot, never the copy of a long message.
class P2PSlots {
 public:
  static constexpr std::size_t kSlots = 8;
  static constexpr std::size_t kInline = 1984;  // shorter messages are in the slot: no wait
  static constexpr std::size_t kAside = 64 << 20;  // bytes, but one message at least

  // Null: free to be written by the sender. The sender posts, the receiver takes it and, if
  // it held the bytes itself, frees it; else the sender does when it sees that it was taken, or
  // posts the next message into it.
  // kTaking: a thread of the receiver copies a long message; its other threads leave it alone.
  enum State : std::uint64_t { kFree = 0, kPosted = 1, kTaken = 2, kTaking = 3 };

  struct alignas(kLine) Slot {
    std::uint64_t state;
    std::uint64_t tag;
    std::uint64_t sequence;
    std::uint64_t nbytes;
    Location location;  // used where the slot is too small
    std::array<std::byte, kInline> bytes;
  };
  using Row = std::array<Slot, kSlots>;

  static constexpr std::size_t nbytes(int num_ranks) {
    return static_cast<std::size_t>(num_ranks) * sizeof(Row);
  }

  // ``start``: where the rows of rank 0 begin; those of the next rank lie ``step`` further.
  P2PSlots(const Heap& heap, AddressResolver resolver, std::uint64_t start, std::uint64_t step)
      : heap_(heap),
        resolver_(std::move(resolver)),
        cross_process_(resolver_.pids),
        start_(start),
        step_(step),
        sending_(std::make_unique<Side[]>(resolver_.pids.size())),
        receiving_(std::make_unique<Side[]>(resolver_.pids.size())) {
    for (std::size_t rank = 0; rank < resolver_.pids.size(); ++rank) static_cast<void>(row(rank, 0));
  }
  P2PSlots(const P2PSlots&) = delete;
  P2PSlots& operator=(const P2PSlots&) = delete;

  static bool fits(std::size_t nbytes) noexcept { return nbytes <= kInline; }

  // The number of the message, or nothing when all slots are in use.
  std::optional<std::size_t> post(std::uint32_t to, std::uint64_t tag, Bytes data) {
    Row& slots = row(to, resolver_.self);
    // One thread at a time looks for a free slot and fills it, so that no slot is filled twice, and who
    // sees a message posted sees all those before it.
    const std::scoped_lock lock(sending_[to].mutex);
    for (std::size_t i = 0; i < kSlots; ++i) {
      Slot& slot = slots[i];
      // Acquire: what the receiver read of the slot and of our memory, it read before it said so.
      const std::uint64_t found = state(slot).load(std::memory_order_acquire);
      if (found != kFree && found != kTaken) continue;
      slot.tag = tag;
      slot.sequence = ++sending_[to].sequence;
      slot.nbytes = data.size();
      if (fits(data.size())) {
        if (!data.empty()) std::memcpy(slot.bytes.data(), data.data(), data.size());
      } else {
        slot.location = Location::of(data, resolver_.heap);
      }
      // Release: a thread that sees it posted sees the writes above, and the data itself.
      state(slot).store(kPosted, std::memory_order_release);
      return slot.sequence * kSlots + i;
    }
    return std::nullopt;
  }

  // Whether the receiver has taken a message whose slot did not hold the bytes itself.
  bool sent(std::uint32_t to, std::size_t number) {
    Slot& slot = row(to, resolver_.self)[number % kSlots];
    const std::scoped_lock lock(sending_[to].mutex);
    if (slot.sequence != number / kSlots) return true;  // the slot has the next one by now
    // Acquire: the receiver has read our memory, so it may change.
    if (state(slot).load(std::memory_order_acquire) != kTaken) return false;
    // Relaxed: the next thread that posts has the lock.
    state(slot).store(kFree, std::memory_order_relaxed);
    return true;
  }

  // Tags of messages that wait to be taken, oldest first, each once; not more than ``most``.
  std::vector<std::uint64_t> waiting_tags(std::uint32_t from, std::size_t most) {
    Side& side = receiving_[from];
    const std::scoped_lock lock(side.mutex);
    std::vector<std::uint64_t> tags;
    const auto note = [&](std::uint64_t tag) {
      if (tags.size() < most && std::find(tags.begin(), tags.end(), tag) == tags.end()) tags.push_back(tag);
    };
    for (const Aside& each : side.aside) note(each.tag);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> posted;  // by sequence
    for (Slot& slot : row(resolver_.self, from)) {
      // Acquire: what was written before it was posted is seen.
      if (state(slot).load(std::memory_order_acquire) == kPosted)
        posted.emplace_back(slot.sequence, slot.tag);
    }
    std::sort(posted.begin(), posted.end());
    for (const auto& [sequence, tag] : posted) note(tag);
    return tags;
  }

  // The bytes of the message that was taken, or nothing while there is none of this tag. One
  // of another size than ``into`` is left. Throws Unreachable.
  std::optional<std::size_t> take(std::uint32_t from, std::uint64_t tag, Bytes into) {
    Row& slots = row(resolver_.self, from);
    Side& side = receiving_[from];
    std::unique_lock lock(side.mutex);
    if (!side.aside.empty()) {
      if (const auto found = take_aside(side, tag, into)) return found;
    }
    Slot* slot = oldest(slots, tag);
    if (slot == nullptr) {
      make_room(side, slots, from);
      return std::nullopt;
    }
    if (slot->nbytes != into.size()) return slot->nbytes;
    if (fits(into.size())) {
      if (!into.empty()) std::memcpy(into.data(), slot->bytes.data(), into.size());
      // Release, here and below: what was sent has been read by now.
      state(*slot).store(kFree, std::memory_order_release);
      return into.size();
    }
    // Relaxed: only threads of this rank look for it, with the lock held.
    state(*slot).store(kTaking, std::memory_order_relaxed);
    lock.unlock();
    take_long(*slot, from, into);
    return into.size();
  }

 private:
  struct Aside {
    std::uint64_t tag;
    std::vector<std::byte> bytes;
  };

  // What the threads of this process share of a row.
  struct alignas(kLine) Side {
    std::mutex mutex;
    std::uint64_t sequence = 0;  // of the last message that was posted
    std::deque<Aside> aside;     // older than what is in the slots
    std::size_t aside_bytes = 0;
  };

  // As take(), of what was put aside.
  static std::optional<std::size_t> take_aside(Side& side, std::uint64_t tag, Bytes into) {
    const auto found = std::find_if(side.aside.begin(), side.aside.end(),
                                    [tag](const Aside& each) { return each.tag == tag; });
    if (found == side.aside.end()) return std::nullopt;
    const std::size_t nbytes = found->bytes.size();
    if (nbytes != into.size()) return nbytes;
    if (nbytes != 0) std::memcpy(into.data(), found->bytes.data(), nbytes);
    side.aside_bytes -= nbytes;
    side.aside.erase(found);
    return nbytes;
  }

  // Puts the oldest message aside if all slots hold messages that no thread has taken. With the lock held
  // while it is copied: no thread may take a later one of its tag meanwhile.
  void make_room(Side& side, Row& slots, std::uint32_t from) {
    Slot* first = &slots[0];
    for (Slot& slot : slots) {
      // Acquire: what was written before it was posted is seen.
      if (state(slot).load(std::memory_order_acquire) != kPosted) return;
      if (slot.sequence < first->sequence) first = &slot;
    }
    if (!side.aside.empty() && side.aside_bytes + first->nbytes > kAside) return;
    Aside& held = side.aside.emplace_back(Aside{first->tag, std::vector<std::byte>(first->nbytes)});
    side.aside_bytes += first->nbytes;
    if (fits(first->nbytes)) {
      if (!held.bytes.empty()) std::memcpy(held.bytes.data(), first->bytes.data(), held.bytes.size());
      // Release: what was sent has been read by now.
      state(*first).store(kFree, std::memory_order_release);
      return;
    }
    try {
      take_long(*first, from, held.bytes);
    } catch (...) {
      side.aside_bytes -= first->nbytes;
      side.aside.pop_back();
      throw;
    }
  }

  // Copies what was claimed out of the sender's memory. One that cannot be reached stays posted.
  void take_long(Slot& slot, std::uint32_t from, Bytes into) {
    try {
      const auto piece = resolver_.resolve(Access(&slot.location, from, 0, into.size()));
      if (!piece) throw Unreachable{from, EFAULT};
      cross_process_.copy(*piece, {into, 0, resolver_.self});
    } catch (...) {
      state(slot).store(kPosted, std::memory_order_release);  // as it was before
      throw;
    }
    state(slot).store(kTaken, std::memory_order_release);
  }

  static std::atomic_ref<std::uint64_t> state(Slot& slot) noexcept { return std::atomic_ref(slot.state); }

  // Looks twice. During the first look a message may come into a slot that was passed already and a
  // later one into a slot that was not. Who sees the later one posted sees the earlier one, too, at
  // the next look; and what is posted since then is later still.
  static Slot* oldest(Row& slots, std::uint64_t tag) {
    return oldest_seen(slots, tag) == nullptr ? nullptr : oldest_seen(slots, tag);
  }

  static Slot* oldest_seen(Row& slots, std::uint64_t tag) {
    Slot* found = nullptr;
    for (Slot& slot : slots) {
      // Acquire: what was written before it was posted is seen, other slots among it.
      if (state(slot).load(std::memory_order_acquire) != kPosted || slot.tag != tag) continue;
      if (found == nullptr || slot.sequence < found->sequence) found = &slot;
    }
    return found;
  }

  // What ``from`` sends to ``to``.
  [[nodiscard]] Row& row(std::size_t to, std::size_t from) const {
    if (from >= resolver_.pids.size() || to >= resolver_.pids.size()) throw std::out_of_range("rank");
    const std::uint64_t offset = start_ + to * step_ + from * sizeof(Row);
    if (offset % kLine != 0) throw std::out_of_range("a slot is not aligned");
    return *reinterpret_cast<Row*>(heap_.bytes(offset, sizeof(Row)).data());
  }

  const Heap& heap_;
  AddressResolver resolver_;
  CrossProcessCopy cross_process_;
  std::uint64_t start_, step_;
  std::unique_ptr<Side[]> sending_, receiving_;  // by rank
};

}  // namespace weft
