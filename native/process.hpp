// Who a process is, and whether it still runs.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "system.hpp"

namespace weft {

// What /proc says: the state letter and the start time, which tells a reused pid apart.
struct ProcessStat {
  char state = 'X';  // X: there is no such process
  std::uint64_t start_time = 0;

  [[nodiscard]] bool gone() const noexcept { return state == 'X' || state == 'Z'; }
  [[nodiscard]] bool stopped() const noexcept { return state == 'T' || state == 't'; }
};

// Fields 3 and 22 of /proc/PID/stat; the name in field 2 may hold spaces and parentheses.
inline ProcessStat parse_stat(const char* text) noexcept {
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || at[1] == '\0' || at[2] == '\0') return {};
  ProcessStat result;
  result.state = at[2];
  at += 2;
  for (int field = 3; field < 22 && at != nullptr; ++field) at = std::strchr(at + 1, ' ');
  if (at == nullptr) return {};
  result.start_time = std::strtoull(at + 1, nullptr, 10);
  return result;
}

inline ProcessStat stat_of(std::int64_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) {
    // Only an absent process is gone. Out of descriptors, say, proves nothing.
    if (errno == ENOENT || errno == ESRCH) return {};
    return {'?', 0};
  }
  std::array<char, 1024> text{};
  const ssize_t size = ::read(file.get(), text.data(), text.size() - 1);
  if (size < 0) return errno == ESRCH ? ProcessStat{} : ProcessStat{'?', 0};
  return parse_stat(text.data());
}

struct Identity {
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;

  // Throws where the system does not tell: with a wrong time the others would take us for gone.
  static Identity self() {
    const auto pid = static_cast<std::int64_t>(::getpid());
    const ProcessStat now = stat_of(pid);
    if (now.gone() || now.state == '?') throw std::runtime_error("/proc does not show this process");
    return {pid, now.start_time};
  }

  [[nodiscard]] bool gone() const {
    const ProcessStat now = stat_of(pid);
    return now.gone() || (now.state != '?' && now.start_time != start_time);
  }
  [[nodiscard]] bool stopped() const { return stat_of(pid).stopped(); }
};

// Asks the kernel to kill this process when the thread that started it ends, however it ends.
// Answers false when ``parent`` is gone already.
inline bool die_with(std::int64_t parent) {
  checked(::prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
  return ::getppid() == parent;
}

}  // namespace weft
