// System calls: errors become exceptions, descriptors close themselves.
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

// The result of a call that returns -1 and sets errno on failure.
template <class Result>
Result checked(Result result, const std::string& what) {
  if (result == static_cast<Result>(-1)) throw_errno(what);
  return result;
}

// The same, repeated if a signal interrupts the call.
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
