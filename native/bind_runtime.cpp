// Python bindings of the runtime: worlds and their members.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bind_runtime.hpp"
#include "member.hpp"

namespace nb = nanobind;
using weft::Control;
using weft::Abort;
using weft::Heap;
using weft::Member;

namespace {

using View = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

// The creator of a world: spawn(), or rank 0 of another launcher.
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

  // Unlinks the segment, if it still has a name, and unmaps it.
  void close() {
    if (heap_) heap_->unlink();
    heap_.reset();
  }

 private:
  static Heap make(int num_ranks, std::uint64_t region_bytes) {
    if (num_ranks < 1 || num_ranks >= 0xffff) throw std::invalid_argument("number of ranks");
    if (region_bytes == 0) throw std::invalid_argument("a rank needs a region");
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

View view(nb::handle self, std::uint64_t offset, std::uint64_t nbytes) {
  const auto bytes = nb::cast<Member&>(self).heap().bytes(offset, nbytes);
  const std::size_t shape[] = {bytes.size()};
  return View(bytes.data(), 1, shape, self);
}

nb::object barrier(Member& member) {
  std::optional<Abort> abort;
  {
    const nb::gil_scoped_release release;
    abort = member.barrier(poll_signals);
  }
  return to_tuple(abort);
}

// Whether this process may read the memory of another rank.
bool can_read(Member& self, int rank, std::uint64_t address) {
  std::uint64_t word = 0;
  const iovec local{&word, sizeof word};
  const iovec remote{reinterpret_cast<void*>(address), sizeof word};
  const auto pid = static_cast<pid_t>(self.control().pid(self.control().checked_rank(rank)));
  return ::process_vm_readv(pid, &local, 1, &remote, 1, 0) == sizeof word;
}

nb::object call_at(Member& self, int rank, std::uint64_t number) {
  const auto text = self.control().recorder(self.control().checked_rank(rank)).text(number);
  return text ? nb::object(nb::str(text->data(), text->size())) : nb::none();
}

// Whether the job is done, and how it failed.
std::pair<bool, nb::object> wait_job(Member& self, std::uint64_t job, double timeout) {
  weft::Worker* worker = self.threads().worker();
  if (worker == nullptr) return {true, nb::none()};
  bool done = worker->is_done(job);
  if (!done) {
    const nb::gil_scoped_release release;
    done = worker->wait(job, to_duration(timeout), poll_signals, self.spins());
  }
  return {done, done ? to_tuple(worker->abort_of_job(job)) : nb::none()};
}

// Makes progress on a job until it is done, for that many seconds at most.
void make_progress(Member& self, std::uint64_t job, double seconds) {
  weft::Worker* worker = self.threads().worker();
  if (worker == nullptr) return;
  const nb::gil_scoped_release release;
  static_cast<void>(worker->wait(job, to_duration(seconds), poll_signals, self.spins()));
}

// Waits for all jobs; every job ends by its own deadline.
void drain(Member& self) {
  weft::Worker* worker = self.threads().worker();
  if (worker == nullptr) return;
  const nb::gil_scoped_release release;
  worker->drain(poll_signals);
}

// Address and bytes of any object with a contiguous buffer.
std::pair<std::uint64_t, std::uint64_t> address_of(nb::handle array, bool writable) {
  Py_buffer view;
  if (PyObject_GetBuffer(array.ptr(), &view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) {
    throw nb::python_error();
  }
  const std::pair result(reinterpret_cast<std::uint64_t>(view.buf), static_cast<std::uint64_t>(view.len));
  PyBuffer_Release(&view);
  return result;
}

void translate(const std::exception_ptr& error, void* /*payload*/) {
  try {
    std::rethrow_exception(error);
  } catch (const std::system_error& failure) {
    const nb::object value = nb::steal(Py_BuildValue("(is)", failure.code().value(), failure.what()));
    if (value.is_valid()) PyErr_SetObject(PyExc_OSError, value.ptr());
  }
}

void bind_launcher(nb::module_& module) {
  nb::class_<Launcher>(module, "Launcher", "The creator of a world.")
      .def(nb::init<int, std::uint64_t>(), nb::arg("num_ranks"), nb::arg("region_bytes"))
      .def_prop_ro("name", [](const Launcher& self) { return self.heap().name(); })
      .def("close", &Launcher::close)
      .def("fault", [](Launcher& self) { return to_tuple(self.control().fault()); })
      .def(
          "fail",
          [](Launcher& self, int reason, int rank, const nb::bytes& text) {
            Control& control = self.control();
            return control.fail(control.num_ranks(), static_cast<weft::FaultReason>(reason), rank,
                                {text.c_str(), text.size()});
          },
          nb::arg("reason"), nb::arg("rank"), nb::arg("text"));
}

void bind_member(nb::module_& module) {
  nb::class_<Member>(module, "Member", "One rank's handle of a world.")
      .def(
          "__init__",
          [](Member* self, const std::string& name, int rank, double timeout) {
            new (self) Member(name, rank, to_duration(timeout));
          },
          nb::arg("name"), nb::arg("rank"), nb::arg("timeout"))
      .def_prop_ro("num_ranks", [](Member& self) { return self.control().num_ranks(); })
      .def_prop_ro("region_bytes", [](Member& self) { return self.control().region_bytes(); })
      .def_prop_ro("control_bytes", [](Member& self) { return Control::nbytes(self.control().num_ranks()); })
      .def("set_spins", &Member::set_spins, nb::arg("spins"))
      .def(
          "set_core_for_worker", [](Member& self, bool has) { self.threads().set_core_for_worker(has); },
          nb::arg("has"))
      .def(
          "set_timeout", [](Member& self, double timeout) { self.set_timeout(to_duration(timeout)); },
          nb::arg("timeout"))
      // Without the GIL: a thread that ends may need it.
      .def("leave", &Member::leave, nb::call_guard<nb::gil_scoped_release>())
      .def("unlink", [](const Member& self) { self.heap().unlink(); })
      .def("barrier", &barrier)
      .def(
          "set_staging",
          [](Member& self, bool always, std::uint64_t up_to) { self.set_staging({always, up_to}); },
          nb::arg("always"), nb::arg("up_to"))
      .def("can_read", &can_read, nb::arg("rank"), nb::arg("address"))
      .def("is_idle", [](const Member& self) { return self.threads().is_idle(); })
      .def("try_enter_call", [](Member& self) { return self.call_guard().enter(); })
      .def("leave_call", [](Member& self) { self.call_guard().leave(); })
      .def(
          "begin_call",
          [](Member& self, std::string_view text) {
            return self.control().recorder(self.rank()).begin(text);
          },
          nb::arg("text"))
      .def(
          "end_call",
          [](Member& self, std::uint64_t number) { self.control().recorder(self.rank()).end(number); },
          nb::arg("number"))
      .def(
          "report",
          [](Member& self, const std::tuple<int, int, std::int64_t, std::uint64_t, std::uint64_t>& abort,
             std::string_view place) {
            const auto& [cause, rank, row, have, want] = abort;
            self.report({static_cast<weft::AbortCause>(cause), rank, row, have, want}, place);
          },
          nb::arg("abort"), nb::arg("place"))
      .def(
          "missing", [](Member& self, int awaited) { return self.control().missing(self.rank(), awaited); },
          nb::arg("awaited"))
      .def("call", &call_at, nb::arg("rank"), nb::arg("number"))
      .def(
          "last_call",
          [](Member& self, int rank) {
            const weft::FlightRecorder& recorder = self.control().recorder(self.control().checked_rank(rank));
            return std::pair(recorder.latest(), recorder.ended());
          },
          nb::arg("rank"))
      .def(
          "is_done",
          [](const Member& self, std::uint64_t job) {
            const weft::Worker* worker = self.threads().worker();
            return worker == nullptr || worker->is_done(job);
          },
          nb::arg("job"))
      .def("drain", &drain)
      .def("make_progress", &make_progress, nb::arg("job"), nb::arg("seconds"))
      .def(
          "start_threads",
          [](Member& self, std::uint32_t num_engines) {
            return self.threads().start(num_engines, self.spins());
          },
          nb::arg("num_engines"))
      .def("is_worker", [](const Member& self) { return self.threads().is_worker(); })
      .def(
          "end_threads", [](Member& self) { self.threads().end(); }, nb::call_guard<nb::gil_scoped_release>())
      .def("wait_job", &wait_job, nb::arg("job"), nb::arg("timeout"))
      .def(
          "pid", [](Member& self, int rank) { return self.control().pid(self.control().checked_rank(rank)); },
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
            const std::string text = self.control().shown(self.control().checked_rank(rank));
            return nb::bytes(text.data(), text.size());
          },
          nb::arg("rank"))
      .def(
          "waiting_tags",
          [](Member& self, std::uint32_t source, std::size_t most) {
            return self.p2p().waiting_tags(source, most);
          },
          nb::arg("source"), nb::arg("most"))
      .def("fault", [](Member& self) { return to_tuple(self.control().fault()); })
      .def(
          "fail",
          [](Member& self, int reason, int rank, const nb::bytes& text) {
            return self.control().fail(self.rank(), static_cast<weft::FaultReason>(reason), rank,
                                       {text.c_str(), text.size()});
          },
          nb::arg("reason"), nb::arg("rank"), nb::arg("text"))
      .def(
          "reserve",
          [](const Member& self, std::uint64_t offset, std::uint64_t nbytes) {
            self.heap().reserve(offset, nbytes);
          },
          nb::arg("offset"), nb::arg("nbytes"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "populate",
          [](const Member& self, std::uint64_t offset, std::uint64_t nbytes) {
            self.heap().populate(offset, nbytes);
          },
          nb::arg("offset"), nb::arg("nbytes"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "release",
          [](const Member& self, std::uint64_t offset, std::uint64_t nbytes) {
            self.heap().release(offset, nbytes);
          },
          nb::arg("offset"), nb::arg("nbytes"))
      .def("view", &view, nb::arg("offset"), nb::arg("nbytes"));
}

}  // namespace

void bind_runtime(nb::module_& module) {
  // A world that lives until the process exits is not a leak.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate);
  module.def("die_with", &weft::die_with, nb::arg("parent"),
             "Let this process be killed when its parent ends; False if that has ended already.");
  module.def("address_of", &address_of, nb::arg("array"), nb::arg("writable"),
             "Address and bytes of an array that lies in one piece.");
  bind_launcher(module);
  bind_member(module);
  bind_program(module);
  bind_dispatch_cache(module);
  bind_p2p(module);
  bind_measure(module);
}
