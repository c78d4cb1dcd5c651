// What a program that is fuzzed gives its driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

using Input = std::vector<std::uint8_t>;

const char* fuzz_name();
const std::vector<Input>& fuzz_seeds();             // good inputs to begin with, at least one
const std::vector<std::string_view>& fuzz_words();  // what the format is made of; may be empty

// Takes any bytes; a wrong one aborts. The name and answer of libFuzzer's entry.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

inline void fuzz_one(const std::uint8_t* data, std::size_t size) {
  static_cast<void>(LLVMFuzzerTestOneInput(data, size));
}

// Reads small numbers from the front of an input, zeros when it is over.
class Front {
 public:
  Front(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  [[nodiscard]] const std::uint8_t* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};
