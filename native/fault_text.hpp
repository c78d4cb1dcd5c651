// The texts of faults: what every rank raises after one of them stopped waiting.
#pragma once

#include <array>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "codecs/frame.hpp"
#include "control.hpp"
#include "failure_monitor.hpp"

namespace weft {

inline std::string seconds_text(std::chrono::nanoseconds time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", std::chrono::duration<double>(time).count());
  return text.data();
}

// The text of FaultReason::raised for an exception of rank ``self`` in a call.
inline std::string raised_text(int self, std::string_view error, std::string_view call) {
  return "rank " + std::to_string(self) + " raised " + std::string(error) + " in " + std::string(call);
}

// The fault to report for an abort of rank ``self`` at ``place`` (a call, or a command of it).
// Empty where another rank, or another thread of this process, reports it.
inline std::optional<Fault> fault_of(const Abort& abort, const Control& control, int self,
                                     std::string_view place, std::chrono::nanoseconds timeout) {
  const std::string me = "rank " + std::to_string(self), at(place);
  const std::string other = "rank " + std::to_string(abort.rank);
  const std::string have = std::to_string(abort.have), want = std::to_string(abort.want);
  switch (abort.cause) {
    case AbortCause::fault:
    case AbortCause::stopped: return std::nullopt;
    case AbortCause::died:
      return Fault{
          FaultReason::died, abort.rank,
          other + " died (pid " + std::to_string(control.pid(abort.rank)) + ") " + control.doing(abort.rank)};
    case AbortCause::left:
      return Fault{FaultReason::died, abort.rank, other + " left the world " + control.doing(abort.rank)};
    case AbortCause::timeout: {
      const std::string came = abort.want != 0 ? " (" + have + " of " + want + " came)" : "";
      return Fault{FaultReason::timeout, abort.rank,
                   me + ": timeout after " + seconds_text(timeout) + " s at " + at + came +
                       control.missing(self, abort.row < 0 ? abort.rank : -1)};
    }
    case AbortCause::disagree:
      return Fault{FaultReason::disagree, abort.rank, control.disagreement(self, abort.rank)};
    case AbortCause::threads:
      return Fault{FaultReason::disagree, self,
                   me + " calls " + at + " while another of its threads is " + control.doing(self) +
                       "; threads that make collective calls at once need a group each (World.group)"};
    case AbortCause::size:
      return Fault{FaultReason::disagree, self,
                   me + " receives " + have + " bytes from " + other + ", expected " + want + ", " +
                       control.doing(self)};
    case AbortCause::slot:
      return Fault{FaultReason::raised, self,
                   me + " found a slot of " + have + " bytes, expected " + want + ", at " + at};
    case AbortCause::codec:
      return Fault{FaultReason::raised, self,
                   me + " cannot decode the chunk at byte " + want + ": " +
                       reason_of(static_cast<Verdict>(abort.have)) + ", at " + at};
    case AbortCause::memory:
      return Fault{FaultReason::raised, self,
                   me + " cannot access the memory of " + other + " (" +
                       std::generic_category().message(static_cast<int>(abort.have)) + ") at " + at};
  }
  return std::nullopt;
}

}  // namespace weft
