// FlightRecorder of the operating system: an error becomes an exception, a descriptor closes itself.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace weft {

[[noreturn]] inline void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// The result of a call that answers -1 and errno when it fails.
template <class Result>
Result checked(Result result, const std::string& what) {
  if (result == static_cast<Result>(-1)) throw_errno(what);
  return result;
}

// The same for a call that a signal may break off: it is made again.
template <class Call>
auto uninterrupted(const Call& call, const std::string& what) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return checked(result, what);
  }
}

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  // Nothing is written through descriptors here, so an error of close() loses nothing.
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_;
};

}  // namespace weft
