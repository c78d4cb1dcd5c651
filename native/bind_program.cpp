// Python bindings of programs: columns are converted to rows.
#include "bind_prepared.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels.hpp"
#include "python_coder.hpp"
#include "reductions.hpp"

using weft::Condition;
using weft::Abort;
using weft::Heap;
using weft::Member;
using weft::Program;
using weft::PreparedProgram;

namespace {

using Column = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::uint64_t unsigned_of(std::int64_t value) {
  if (value < 0) throw std::invalid_argument("a column holds a negative number");
  return static_cast<std::uint64_t>(value);
}

// The columns of a program as Python passes them. Offsets count from the start of the heap.
struct Columns {
  Column kind, access_start;
  Matrix accesses;          // rank, buffer, offset, nbytes, distance to its next buffer, direct offset
  Matrix gate, hold, wait;  // word's offset or -1, value, step
  Matrix raised;            // word's offset or -1, by how much
  Column reduction;         // into reductions, or -1
  Column coder;             // into coders, or -1
  Column slot;              // whether a copy is of a slot
  Matrix streams;           // begin, end, launch or -1, runner
  Matrix locations;            // by rank and buffer: the offset of its location
  Matrix own;               // backing offset and bytes, nbytes, shared, filled, taken, stage of or -1
};

void require(bool holds) {
  if (!holds) throw std::invalid_argument("the columns of a program do not fit together");
}

void check_shapes(const Columns& c) {
  const std::size_t num_rows = c.kind.shape(0);
  require(num_rows < UINT32_MAX && c.accesses.shape(0) < UINT32_MAX);
  require(c.access_start.shape(0) == num_rows + 1 && c.reduction.shape(0) == num_rows);
  require(c.coder.shape(0) == num_rows && c.slot.shape(0) == num_rows);
  for (const Matrix* matrix : {&c.gate, &c.hold, &c.wait}) {
    require(matrix->shape(0) == num_rows && matrix->shape(1) == 3);
  }
  require(c.raised.shape(0) == num_rows && c.raised.shape(1) == 2);
  require(c.accesses.shape(1) == 6 && c.streams.shape(1) == 4);
  require(c.own.shape(1) == 7 && c.own.shape(0) == c.locations.shape(1));
}

Condition condition_at(const Heap& heap, const Matrix& matrix, std::size_t row) {
  if (matrix(row, 0) < 0) return {};
  return {&heap.word(unsigned_of(matrix(row, 0))), matrix(row, 1), unsigned_of(matrix(row, 2))};
}

weft::Row row_at(Member& member, const Columns& c, std::size_t i,
                 const std::vector<weft::Reduction>& reductions) {
  const Heap& heap = member.heap();
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
    row.bell = &member.bell_at(unsigned_of(c.raised(i, 0)));
  }
  if (c.reduction(i) >= 0) row.reduction = reductions.at(unsigned_of(c.reduction(i)));
  require(c.coder(i) >= -1 && c.coder(i) < INT32_MAX);
  row.coder = static_cast<std::int32_t>(c.coder(i));
  row.slot = c.slot(i) != 0;
  if (row.num_accesses > 1) {
    const std::uint64_t last = unsigned_of(c.accesses(unsigned_of(c.access_start(i + 1)) - 1, 1));
    row.cached = last < c.own.shape(0) && c.own(last, 6) >= 0;
  }
  return row;
}

weft::InstructionStream stream_at(const Columns& c, std::size_t i) {
  const auto small = [&](std::size_t column) {
    const std::uint64_t value = unsigned_of(c.streams(i, column));
    require(value < UINT32_MAX);
    return static_cast<std::uint32_t>(value);
  };
  return {small(0), small(1), c.streams(i, 2), small(3)};
}

weft::Location* location_at(const Heap& heap, const Columns& c, std::size_t rank, std::size_t buffer) {
  require(rank < c.locations.shape(0) && buffer < c.locations.shape(1));
  const std::uint64_t offset = unsigned_of(c.locations(rank, buffer));
  require(offset % alignof(weft::Location) == 0);
  return reinterpret_cast<weft::Location*>(heap.bytes(offset, sizeof(weft::Location)).data());
}

weft::Access access_at(const Heap& heap, const Columns& c, std::size_t i) {
  const std::uint64_t rank = unsigned_of(c.accesses(i, 0));
  weft::Access access(location_at(heap, c, rank, unsigned_of(c.accesses(i, 1))),
                      static_cast<std::uint32_t>(rank), unsigned_of(c.accesses(i, 2)),
                      unsigned_of(c.accesses(i, 3)));
  access.stride = unsigned_of(c.accesses(i, 4));
  access.direct = unsigned_of(c.accesses(i, 5));
  return access;
}

weft::OwnBuffer own_at(const Heap& heap, const Columns& c, int rank, std::size_t i) {
  weft::OwnBuffer own;
  own.location = location_at(heap, c, static_cast<std::size_t>(rank), i);
  own.backing = {unsigned_of(c.own(i, 0)), unsigned_of(c.own(i, 1))};
  static_cast<void>(heap.bytes(own.backing.word, own.backing.nbytes));
  own.nbytes = unsigned_of(c.own(i, 2));
  own.shared = c.own(i, 3) != 0;
  own.filled = c.own(i, 4) != 0;
  own.taken = c.own(i, 5) != 0;
  require(c.own(i, 6) >= -1 && c.own(i, 6) < static_cast<std::int64_t>(c.own.shape(0)));
  own.stage_of = static_cast<std::int32_t>(c.own(i, 6));
  *own.location = own.backing;  // no rank reads it before all have synchronized
  return own;
}

Program build(Member& member, const Columns& c, bool elastic,
              const std::vector<std::pair<std::string, std::string>>& named, std::vector<weft::Coder> coders,
              std::uint64_t stamps) {
  check_shapes(c);
  const Heap& heap = member.heap();
  std::vector<weft::Reduction> reductions;
  for (const auto& [dtype, op] : named) reductions.push_back(weft::reduction_of(dtype, op));
  Program program;
  program.resolver = member.resolver(elastic);
  require(c.locations.shape(0) == program.resolver.pids.size());
  program.coders = std::move(coders);
  for (std::size_t i = 0; i < c.accesses.shape(0); ++i) {
    program.accesses.push_back(access_at(heap, c, i));
  }
  for (std::size_t i = 0; i < c.own.shape(0); ++i) {
    program.own.push_back(own_at(heap, c, member.rank(), i));
  }
  for (std::size_t i = 0; i < c.kind.shape(0); ++i) {
    program.rows.push_back(row_at(member, c, i, reductions));
  }
  std::vector<std::uint32_t> runners;
  for (std::size_t i = 0; i < c.streams.shape(0); ++i) {
    program.streams.push_back(stream_at(c, i));
    if (program.streams.back().runner > 0) runners.push_back(program.streams.back().runner);
  }
  std::sort(runners.begin(), runners.end());
  runners.erase(std::unique(runners.begin(), runners.end()), runners.end());
  program.engines = std::move(runners);
  require(program.engines.empty() || program.engines.back() <= 4096);
  static_cast<void>(heap.bytes(stamps, program.rows.size() * 2 * sizeof(std::uint64_t)));
  if (!program.rows.empty()) program.stamps = &heap.word(stamps);
  weft::link_lanes(program);
  weft::Checker(program).check();
  program.copied = weft::count_copied(program);
  return program;
}

using Binds = std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>>;

std::vector<weft::Bound> bound_of(const Binds& binds) {
  std::vector<weft::Bound> result;
  for (const auto& [buffer, address, nbytes] : binds) {
    result.push_back({buffer, bytes_at(address, nbytes)});
  }
  return result;
}

nb::object run(PreparedProgram& prepared, Member& member, bool stamps, nb::object kernel, const Binds& binds,
               std::string_view call) {
  weft::Hooks hooks;
  if (nb::isinstance<weft::Kernels>(kernel)) {
    hooks.kernel = nb::cast<weft::Kernels&>(kernel).caller();
  } else {
    hooks.kernel = [&](std::size_t row, std::span<const weft::ResolvedSlice>) {
      const nb::gil_scoped_acquire gil;
      kernel(row);
    };
  }
  hooks.poll = poll_signals;
  const auto bound = bound_of(binds);
  std::optional<Abort> abort;
  {
    const nb::gil_scoped_release release;
    abort = prepared.run(member, bound, call, stamps, hooks);
  }
  return to_tuple(abort);
}

// A program without kernels whose memory is bound permanently: a call without arguments starts it.
class PersistentCollective {
 public:
  // ``keep`` owns the memory.
  PersistentCollective(nb::handle program, Member& member, const Binds& binds, nb::object failed,
                       nb::object keep)
      : held_(nb::borrow(program)),
        prepared_(nb::cast<PreparedProgram&>(program)),
        member_(member),
        bound_(bound_of(binds)),
        failed_(std::move(failed)),
        keep_(std::move(keep)) {
    hooks_.poll = poll_signals;
  }

  void call() {
    run_prepared(prepared_, member_, bound_, {}, hooks_,
                 [this](nb::handle abort, nb::handle error) { failed_(abort, error); });
  }

 private:
  nb::object held_;
  PreparedProgram& prepared_;
  Member& member_;
  std::vector<weft::Bound> bound_;
  weft::Hooks hooks_;
  nb::object failed_;
  nb::object keep_;
};

// The caller keeps the kernels alive until the job is done.
std::uint64_t submit(PreparedProgram& prepared, Member& member, const Binds& binds, std::string call,
                     weft::Kernels* kernels) {
  return prepared.submit(member, bound_of(binds), std::move(call), kernels);
}

// Reduces memory of this process; the caller guarantees that every address is valid.
void reduce_into(std::uint64_t dst, const std::vector<std::uint64_t>& sources, std::uint64_t nbytes,
                 const std::string& dtype, const std::string& op) {
  const weft::Reduction reduction = weft::reduction_of(dtype, op);
  std::vector<weft::Bytes> srcs;
  for (const std::uint64_t address : sources) srcs.push_back(bytes_at(address, nbytes));
  const nb::gil_scoped_release release;
  reduction.run(srcs, bytes_at(dst, nbytes));
}

}  // namespace

void bind_program(nb::module_& module) {
  nb::class_<PersistentCollective>(module, "PersistentCollective",
                                   "A program on permanently bound memory, started by calling it.")
      .def(nb::init<nb::handle, Member&, const Binds&, nb::object, nb::object>(), nb::arg("program"),
           nb::arg("member"), nb::arg("binds"), nb::arg("failed"), nb::arg("keep"), nb::keep_alive<1, 3>())
      .def("__call__", &PersistentCollective::call);
  module.def(
      "reduction_item_bytes",
      [](const std::string& dtype, const std::string& op) {
        return weft::reduction_of(dtype, op).item_bytes;
      },
      nb::arg("dtype"), nb::arg("op"), "The bytes of an element. ValueError where there is none.");
  module.def("reduce_into", &reduce_into, nb::arg("dst"), nb::arg("sources"), nb::arg("nbytes"),
             nb::arg("dtype"), nb::arg("op"),
             "Reduces memory at several addresses, in their order, into that at dst.");
  nb::class_<PreparedProgram>(module, "Program", "What one rank executes.")
      .def(
          "__init__",
          [](PreparedProgram* self, Member& member, Column kind, Column access_start, Matrix accesses,
             Matrix gate, Matrix hold, Matrix wait, Matrix raised, Column reduction,
             const nb::list& reductions, Column coder, const nb::list& coders, Column slot, Matrix streams,
             Matrix locations, Matrix own, bool elastic, std::uint64_t num_buffers, std::uint64_t stamps) {
            std::vector<std::pair<std::string, std::string>> named;
            for (const nb::handle entry : reductions) {
              named.emplace_back(nb::cast<std::string>(entry[0]), nb::cast<std::string>(entry[1]));
            }
            std::vector<weft::Coder> made;
            for (const nb::handle entry : coders) made.push_back(weft::coder_from(entry));
            const Columns columns{kind,      access_start, accesses, gate,    hold,      wait, raised,
                                  reduction, coder,        slot,     streams, locations, own};
            Program program = build(member, columns, elastic, named, std::move(made), stamps);
            require(num_buffers > 0);
            program.num_buffers = num_buffers;
            new (self) PreparedProgram(std::move(program));
          },
          nb::arg("member"), nb::arg("kind"), nb::arg("access_start"), nb::arg("accesses"), nb::arg("gate"),
          nb::arg("hold"), nb::arg("wait"), nb::arg("raised"), nb::arg("reduction"), nb::arg("reductions"),
          nb::arg("coder"), nb::arg("coders"), nb::arg("slot"), nb::arg("streams"), nb::arg("locations"),
          nb::arg("own"), nb::arg("elastic"), nb::arg("num_buffers"), nb::arg("stamps"),
          nb::keep_alive<1, 2>())
      .def_prop_ro("num_executions", &PreparedProgram::num_executions)
      .def_prop_ro("last_use", &PreparedProgram::last_use)
      .def("run", &run, nb::arg("member"), nb::arg("stamps"), nb::arg("kernel").none(), nb::arg("binds"),
           nb::arg("call"))
      .def("submit", &submit, nb::arg("member"), nb::arg("binds"), nb::arg("call"),
           nb::arg("kernels").none() = nb::none());
}
