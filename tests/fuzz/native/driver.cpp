// A small coverage-guided fuzzer for the readers of the native core.
//
// The targets have libFuzzer's entry, so either can drive them; this one needs nothing but the
// compiler that builds weft. Targets are compiled with -fsanitize-coverage=trace-pc, this file is
// not: every block of a target calls back here. An input that reaches a block, or a number of
// visits of one, that none reached before stays in the corpus; new inputs are made from it.
//
// usage: fuzz_NAME --seconds S [--seed N] [--inputs N] [FILE..]   (files are run once, alone)
#include <sanitizer/asan_interface.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "target.hpp"

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kBlocks = 1 << 16;
constexpr std::size_t kLongest = 4096;
constexpr unsigned kHang = 20;  // seconds: the machine may be busy

std::array<std::uint8_t, kBlocks> visits;
std::array<std::uint32_t, kBlocks> touched;
std::size_t num_touched = 0;
std::uint32_t last_block = 0;
std::array<std::uint8_t, kBlocks> known;  // bit b: some input had this many visits, in powers of two

Input current;
std::string crash_file;

// What ends the program leaves the input that did it.
void keep_current() {
  if (std::FILE* file = std::fopen(crash_file.c_str(), "wb")) {
    if (!current.empty()) std::fwrite(current.data(), 1, current.size(), file);
    std::fclose(file);
    std::fprintf(stderr, "the input is in %s\n", crash_file.c_str());
  }
}

void hang(int /*signal*/) {
  std::fputs("an input took too long\n", stderr);
  std::abort();
}

void aborted(int /*signal*/) {
  keep_current();
  ::_exit(1);
}

// Whether the last run reached something new.
bool learn() {
  bool is_new = false;
  for (std::size_t i = 0; i < num_touched; ++i) {
    const std::uint32_t block = touched[i];
    const auto bit = static_cast<std::uint8_t>(1U << std::min(7, 31 - __builtin_clz(visits[block])));
    is_new = is_new || (known[block] & bit) == 0;
    known[block] |= bit;
    visits[block] = 0;
  }
  num_touched = 0;
  last_block = 0;
  return is_new;
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : chance_(seed) {}

  Input next(const std::vector<Input>& corpus) {
    Input made = corpus[below(corpus.size())];
    for (std::size_t left = std::size_t{1} << below(5); left > 0; --left) change(made, corpus);
    if (made.size() > kLongest) made.resize(kLongest);
    return made;
  }

 private:
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : chance_() % bound; }

  void change(Input& made, const std::vector<Input>& corpus) {
    static constexpr std::array<std::uint8_t, 8> kOdd = {0, 1, 2, 16, 127, 128, 254, 255};
    const std::size_t at = below(made.size() + 1);
    switch (below(9)) {
      case 0:
        if (at < made.size()) made[at] ^= static_cast<std::uint8_t>(1U << below(8));
        break;
      case 1:
        if (at < made.size()) made[at] = kOdd[below(kOdd.size())];
        break;
      case 2:
        if (at < made.size()) made[at] = static_cast<std::uint8_t>(chance_());
        break;
      case 3: made.resize(at); break;
      case 4: made.insert(place(made, at), 1 + below(16), static_cast<std::uint8_t>(chance_())); break;
      case 5: made.erase(place(made, at), place(made, at + below(made.size() - at + 1))); break;
      case 6: splice(made, at, corpus[below(corpus.size())]); break;
      case 7: splice(made, at, word()); break;
      default: number(made, at); break;
    }
  }

  static Input::iterator place(Input& made, std::size_t at) {
    return made.begin() + static_cast<std::ptrdiff_t>(at);
  }

  void splice(Input& made, std::size_t at, const Input& other) {
    const std::size_t from = below(other.size() + 1), count = below(other.size() - from + 1);
    const auto begin = other.begin() + static_cast<std::ptrdiff_t>(from);
    made.insert(place(made, at), begin, begin + static_cast<std::ptrdiff_t>(count));
  }

  // A word of the format, whole.
  void splice(Input& made, std::size_t at, std::string_view text) {
    made.insert(place(made, at), text.begin(), text.end());
  }

  std::string_view word() {
    const auto& words = fuzz_words();
    return words.empty() ? std::string_view{} : words[below(words.size())];
  }

  // A length or count of two, four or eight bytes that lies at a border.
  void number(Input& made, std::size_t at) {
    const std::size_t width = std::size_t{2} << below(3);
    if (at + width > made.size()) return;
    const std::uint64_t value = (std::uint64_t{1} << below(64)) + below(3) - 1;
    std::memcpy(made.data() + at, &value, width);
  }

  std::mt19937_64 chance_;
};

struct Options {
  double seconds = 10;
  std::uint64_t seed = 1, inputs = ~std::uint64_t{0};
  std::vector<std::string> files;
};

Options read(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : "0"; };
    if (name == "--seconds")
      options.seconds = std::atof(value());
    else if (name == "--seed")
      options.seed = std::strtoull(value(), nullptr, 10);
    else if (name == "--inputs")
      options.inputs = std::strtoull(value(), nullptr, 10);
    else
      options.files.emplace_back(name);
  }
  return options;
}

void run(const Input& input) {
  current = input;
  fuzz_one(current.data(), current.size());
}

int run_files(const std::vector<std::string>& files) {
  for (const std::string& name : files) {
    std::ifstream file(name, std::ios::binary);
    run(Input(std::istreambuf_iterator<char>(file), {}));
  }
  std::printf("%zu inputs of files passed\n", files.size());
  return 0;
}

}  // namespace

extern "C" void __sanitizer_cov_trace_pc() {
  // Addresses from the start of the program: equal in every run of it.
  extern const char __executable_start;
  const auto here = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)) -
                                               reinterpret_cast<std::uintptr_t>(&__executable_start));
  const std::uint32_t block = (here * 2654435761U >> 16 ^ last_block) % kBlocks;
  last_block = here * 40503U >> 8 & (kBlocks - 1);
  if (visits[block] == 0) touched[num_touched++] = block;
  if (visits[block] < 255) ++visits[block];
}

extern "C" const char* __asan_default_options() {
  return "hard_rss_limit_mb=2048:max_allocation_size_mb=1024:abort_on_error=0";
}

int main(int argc, char** argv) {
  const Options options = read(argc, argv);
  crash_file = std::string(argv[0]) + ".crash";
  __sanitizer_set_death_callback(keep_current);
  ::signal(SIGALRM, hang);
  ::signal(SIGABRT, aborted);
  if (!options.files.empty()) return run_files(options.files);
  std::vector<Input> corpus = fuzz_seeds();
  for (const Input& seed : corpus) {
    run(seed);
    learn();
  }
  Mutator mutator(options.seed);
  const auto began = Clock::now();
  std::uint64_t count = corpus.size();
  double passed = 0;
  for (; count < options.inputs; ++count) {
    if (count % 1024 == 0) {
      passed = std::chrono::duration<double>(Clock::now() - began).count();
      if (passed >= options.seconds) break;
      ::alarm(kHang);
    }
    run(mutator.next(corpus));
    if (learn()) corpus.push_back(current);
  }
  passed = std::chrono::duration<double>(Clock::now() - began).count();
  const auto blocks = std::count_if(known.begin(), known.end(), [](std::uint8_t b) { return b != 0; });
  std::printf("{\"target\": \"%s\", \"inputs\": %llu, \"seconds\": %.1f, \"corpus\": %zu, \"blocks\": %td}\n",
              fuzz_name(), static_cast<unsigned long long>(count), passed, corpus.size(), blocks);
  return 0;
}
