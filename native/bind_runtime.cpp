// The runtime for Python: worlds and the programs that run in them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "member.hpp"

namespace nb = nanobind;
using weft::Condition;
using weft::Control;
using weft::Halt;
using weft::Heap;
using weft::Member;
using weft::Program;

namespace {

using Column = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using View = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

// Whoever creates a world: spawn(), or rank 0 of a launcher that knows nothing of weft.
class Launcher {
 public:
  Launcher(int num_ranks, std::uint64_t region_bytes)
      : heap_(formatted(num_ranks, region_bytes)), control_(*heap_) {}

  [[nodiscard]] const Heap& heap() const {
    if (!heap_) throw std::invalid_argument("this launcher is closed");
    return *heap_;
  }
  [[nodiscard]] Control& control() {
    static_cast<void>(heap());
    return control_;
  }

  // Takes the name away, if that has not been done, and lets go of the memory.
  void close() {
    if (heap_) heap_->unlink();
    heap_.reset();
  }

 private:
  static Heap make(int num_ranks, std::uint64_t region_bytes) {
    if (num_ranks < 1 || num_ranks >= 0xffff) throw std::invalid_argument("number of ranks");
    const std::size_t front = Control::nbytes(num_ranks);
    const auto count = static_cast<std::uint64_t>(num_ranks);
    if (region_bytes > (static_cast<std::uint64_t>(INT64_MAX) - front) / count) {
      throw std::invalid_argument("a heap so large cannot be addressed");
    }
    return Heap::create(front + count * region_bytes);
  }

  static Heap formatted(int num_ranks, std::uint64_t region_bytes) {
    Heap heap = make(num_ranks, region_bytes);
    try {
      Control::format(heap, num_ranks, region_bytes);
    } catch (...) {
      heap.unlink();
      throw;
    }
    return heap;
  }

  std::optional<Heap> heap_;
  Control control_;
};

std::chrono::nanoseconds to_duration(double seconds) {
  constexpr double kLongest = 1e9;  // thirty years, and far from an overflow
  if (!(seconds > 0)) throw std::invalid_argument("the timeout must be positive");
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::fmin(seconds, kLongest) * 1e9));
}

// Lets Python see Ctrl-C while a rank waits.
void poll_signals() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

nb::object to_tuple(const std::optional<Halt>& halt) {
  if (!halt) return nb::none();
  return nb::make_tuple(static_cast<int>(halt->cause), halt->rank, halt->row, halt->have,
                        halt->want);
}

nb::object to_tuple(const std::optional<weft::Fault>& fault) {
  if (!fault) return nb::none();
  const nb::bytes text(fault->text.data(), fault->text.size());
  return nb::make_tuple(static_cast<int>(fault->reason), fault->rank, text);
}

std::uint64_t unsigned_of(std::int64_t value) {
  if (value < 0) throw std::invalid_argument("a column holds a negative number");
  return static_cast<std::uint64_t>(value);
}

// The columns of a program as Python hands them over. Offsets are from the heap's start.
struct Columns {
  Column kind, access_start;
  Matrix accesses;          // offset, nbytes
  Matrix gate, hold, wait;  // word's offset or -1, value, step
  Matrix raised;            // word's offset or -1, by how much
  Column reduction;         // into reductions, or -1
  Matrix strands;           // begin, end, launch or -1, runner
};

void require(bool holds) {
  if (!holds) throw std::invalid_argument("the columns of a program do not fit together");
}

void check_shapes(const Columns& c) {
  const std::size_t num_rows = c.kind.shape(0);
  require(num_rows < UINT32_MAX && c.accesses.shape(0) < UINT32_MAX);
  require(c.access_start.shape(0) == num_rows + 1 && c.reduction.shape(0) == num_rows);
  for (const Matrix* matrix : {&c.gate, &c.hold, &c.wait}) {
    require(matrix->shape(0) == num_rows && matrix->shape(1) == 3);
  }
  require(c.raised.shape(0) == num_rows && c.raised.shape(1) == 2);
  require(c.accesses.shape(1) == 2 && c.strands.shape(1) == 4);
}

Condition condition_at(const Heap& heap, const Matrix& matrix, std::size_t row) {
  if (matrix(row, 0) < 0) return {};
  return {&heap.word(unsigned_of(matrix(row, 0))), unsigned_of(matrix(row, 1)),
          unsigned_of(matrix(row, 2))};
}

weft::Row row_at(const Heap& heap, const Columns& c, std::size_t i,
                 const std::vector<weft::Reduction>& reductions) {
  require(c.kind(i) >= 0 && c.kind(i) <= static_cast<int>(weft::Kind::call));
  require(c.access_start(i) >= 0 && c.access_start(i) <= c.access_start(i + 1) &&
          unsigned_of(c.access_start(i + 1)) <= c.accesses.shape(0));
  weft::Row row;
  row.kind = static_cast<weft::Kind>(c.kind(i));
  row.first_access = static_cast<std::uint32_t>(c.access_start(i));
  row.num_accesses = static_cast<std::uint32_t>(c.access_start(i + 1) - c.access_start(i));
  row.gate = condition_at(heap, c.gate, i);
  row.hold = condition_at(heap, c.hold, i);
  row.wait = condition_at(heap, c.wait, i);
  if (c.raised(i, 0) >= 0) {
    row.raised = &heap.word(unsigned_of(c.raised(i, 0)));
    row.by = unsigned_of(c.raised(i, 1));
  }
  if (c.reduction(i) >= 0) row.reduction = reductions.at(unsigned_of(c.reduction(i)));
  return row;
}

weft::Strand strand_at(const Columns& c, std::size_t i) {
  const auto small = [&](std::size_t column) {
    const std::uint64_t value = unsigned_of(c.strands(i, column));
    require(value < UINT32_MAX);
    return static_cast<std::uint32_t>(value);
  };
  return {small(0), small(1), c.strands(i, 2), small(3)};
}

Program build(const Heap& heap, const Columns& c,
              const std::vector<std::pair<std::string, std::string>>& named,
              std::uint64_t stamps) {
  check_shapes(c);
  std::vector<weft::Reduction> reductions;
  for (const auto& [dtype, op] : named) reductions.push_back(weft::reduction_of(dtype, op));
  Program program;
  for (std::size_t i = 0; i < c.accesses.shape(0); ++i) {
    program.accesses.push_back(
        heap.bytes(unsigned_of(c.accesses(i, 0)), unsigned_of(c.accesses(i, 1))));
  }
  for (std::size_t i = 0; i < c.kind.shape(0); ++i) {
    program.rows.push_back(row_at(heap, c, i, reductions));
  }
  std::vector<std::uint32_t> runners;
  for (std::size_t i = 0; i < c.strands.shape(0); ++i) {
    program.strands.push_back(strand_at(c, i));
    if (program.strands.back().runner > 0) runners.push_back(program.strands.back().runner);
  }
  std::sort(runners.begin(), runners.end());
  runners.erase(std::unique(runners.begin(), runners.end()), runners.end());
  program.engines = std::move(runners);
  require(program.engines.empty() || program.engines.back() <= 4096);
  static_cast<void>(heap.bytes(stamps, program.rows.size() * 2 * sizeof(std::uint64_t)));
  if (!program.rows.empty()) program.stamps = &heap.word(stamps);
  weft::link_lanes(program);
  weft::Checker(program).check();
  return program;
}

View view(nb::handle self, std::uint64_t offset, std::uint64_t nbytes) {
  const auto bytes = nb::cast<Member&>(self).heap().bytes(offset, nbytes);
  const std::size_t shape[] = {bytes.size()};
  return View(bytes.data(), 1, shape, self);
}

nb::object run(const Program& program, Member& member, std::uint64_t execution, bool stamps,
               nb::object kernel) {
  weft::Hooks hooks;
  hooks.kernel = [&](std::size_t row) {
    const nb::gil_scoped_acquire gil;
    kernel(row);
  };
  hooks.poll = poll_signals;
  std::optional<Halt> halt;
  {
    const nb::gil_scoped_release release;
    halt = member.run(program, execution, stamps, hooks);
  }
  return to_tuple(halt);
}

int checked_rank(Member& member, int rank) {
  if (rank < 0 || rank >= member.control().num_ranks()) throw std::out_of_range("rank");
  return rank;
}

nb::object barrier(Member& member) {
  std::optional<Halt> halt;
  {
    const nb::gil_scoped_release release;
    halt = member.barrier(poll_signals);
  }
  return to_tuple(halt);
}

void translate(const std::exception_ptr& error, void* /*payload*/) {
  try {
    std::rethrow_exception(error);
  } catch (const std::system_error& failure) {
    const nb::object value = nb::steal(
        Py_BuildValue("(is)", failure.code().value(), failure.what()));
    if (value.is_valid()) PyErr_SetObject(PyExc_OSError, value.ptr());
  }
}

void bind_launcher(nb::module_& module) {
  nb::class_<Launcher>(module, "Launcher", "Whoever creates a world.")
      .def(nb::init<int, std::uint64_t>(), nb::arg("num_ranks"), nb::arg("region_bytes"))
      .def_prop_ro("name", [](const Launcher& self) { return self.heap().name(); })
      .def("close", &Launcher::close)
      .def("fault", [](Launcher& self) { return to_tuple(self.control().fault()); })
      .def(
          "fail",
          [](Launcher& self, int reason, int rank, const nb::bytes& text) {
            Control& control = self.control();
            return control.fail(control.num_ranks(), static_cast<weft::Reason>(reason), rank,
                                {text.c_str(), text.size()});
          },
          nb::arg("reason"), nb::arg("rank"), nb::arg("text"));
}

void bind_member(nb::module_& module) {
  nb::class_<Member>(module, "Member", "One rank's part of a world.")
      .def(
          "__init__",
          [](Member* self, const std::string& name, int rank, double timeout) {
            new (self) Member(name, rank, to_duration(timeout));
          },
          nb::arg("name"), nb::arg("rank"), nb::arg("timeout"))
      .def_prop_ro("num_ranks", [](Member& self) { return self.control().num_ranks(); })
      .def_prop_ro("region_bytes", [](Member& self) { return self.control().region_bytes(); })
      .def_prop_ro("control_bytes",
                   [](Member& self) { return Control::nbytes(self.control().num_ranks()); })
      .def("set_spins", &Member::set_spins, nb::arg("spins"))
      .def("set_timeout",
           [](Member& self, double timeout) { self.set_timeout(to_duration(timeout)); },
           nb::arg("timeout"))
      .def("leave", &Member::leave)
      .def("unlink", [](const Member& self) { self.heap().unlink(); })
      .def("barrier", &barrier)
      .def("pid", [](Member& self, int rank) { return self.control().pid(checked_rank(self, rank)); }, nb::arg("rank"))
      .def("is_stopped",
           [](Member& self, int rank) { return self.control().is_stopped(checked_rank(self, rank)); },
           nb::arg("rank"))
      .def(
          "show",
          [](Member& self, const nb::bytes& text) {
            self.control().show(self.rank(), {text.c_str(), text.size()});
          },
          nb::arg("text"))
      .def(
          "shown",
          [](Member& self, int rank) {
            const std::string text = self.control().shown(checked_rank(self, rank));
            return nb::bytes(text.data(), text.size());
          },
          nb::arg("rank"))
      .def("fault", [](Member& self) { return to_tuple(self.control().fault()); })
      .def(
          "fail",
          [](Member& self, int reason, int rank, const nb::bytes& text) {
            return self.control().fail(self.rank(), static_cast<weft::Reason>(reason), rank,
                                       {text.c_str(), text.size()});
          },
          nb::arg("reason"), nb::arg("rank"), nb::arg("text"))
      .def("reserve", [](const Member& self, std::uint64_t offset,
                         std::uint64_t nbytes) { self.heap().reserve(offset, nbytes); },
           nb::arg("offset"), nb::arg("nbytes"), nb::call_guard<nb::gil_scoped_release>())
      .def("populate", [](const Member& self, std::uint64_t offset,
                          std::uint64_t nbytes) { self.heap().populate(offset, nbytes); },
           nb::arg("offset"), nb::arg("nbytes"), nb::call_guard<nb::gil_scoped_release>())
      .def("release", [](const Member& self, std::uint64_t offset,
                         std::uint64_t nbytes) { self.heap().release(offset, nbytes); },
           nb::arg("offset"), nb::arg("nbytes"))
      .def("view", &view, nb::arg("offset"), nb::arg("nbytes"));
}

void bind_program(nb::module_& module) {
  nb::class_<Program>(module, "Program", "What one rank executes.")
      .def(
          "__init__",
          [](Program* self, const Member& member, Column kind, Column access_start, Matrix accesses,
             Matrix gate, Matrix hold, Matrix wait, Matrix raised, Column reduction,
             const nb::list& reductions, Matrix strands, std::uint64_t stamps) {
            std::vector<std::pair<std::string, std::string>> named;
            for (const nb::handle entry : reductions) {
              named.emplace_back(nb::cast<std::string>(entry[0]), nb::cast<std::string>(entry[1]));
            }
            const Columns columns{kind, access_start, accesses, gate,      hold,
                                  wait, raised,       reduction, strands};
            new (self) Program(build(member.heap(), columns, named, stamps));
          },
          nb::arg("member"), nb::arg("kind"), nb::arg("access_start"), nb::arg("accesses"),
          nb::arg("gate"), nb::arg("hold"), nb::arg("wait"), nb::arg("raised"),
          nb::arg("reduction"), nb::arg("reductions"), nb::arg("strands"), nb::arg("stamps"),
          nb::keep_alive<1, 2>())
      .def("run", &run, nb::arg("member"), nb::arg("execution"), nb::arg("stamps"),
           nb::arg("kernel"));
}

}  // namespace

void bind_runtime(nb::module_& module) {
  // A world that a program keeps until it ends is no leak worth a warning.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate);
  module.def("reduction_item_bytes", [](const std::string& dtype, const std::string& op) {
    return weft::reduction_of(dtype, op).item_bytes;
  }, nb::arg("dtype"), nb::arg("op"), "The bytes of an element. ValueError where there is none.");
  module.def("die_with", &weft::die_with, nb::arg("parent"),
             "Let this process be killed when its parent ends; False if that has ended already.");
  bind_launcher(module);
  bind_member(module);
  bind_program(module);
}
