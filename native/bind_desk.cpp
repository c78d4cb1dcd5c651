// Calls that were made before, with one step from Python to the native core: what is prepared
// is found by what is asked for.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "bind_runtime.hpp"
#include "ready.hpp"

using weft::Bound;
using weft::Bytes;
using weft::Halt;
using weft::Member;
using weft::Ready;

namespace {

// Names and dtypes are compared by who they are: they are few, they live as long as they are
// known here, and an equal one that is another object is merely not found.
struct Question {
  PyObject* kind;
  PyObject* dtype;
  PyObject* op;
  std::int64_t root;
  std::uint64_t nbytes;
  bool operator==(const Question&) const = default;
};

struct Hash {
  std::size_t operator()(const Question& question) const noexcept {
    const auto number = [](PyObject* object) { return reinterpret_cast<std::uintptr_t>(object) >> 4; };
    std::size_t result = number(question.kind);
    for (const std::size_t part : {number(question.dtype), number(question.op),
                                   static_cast<std::size_t>(question.root),
                                   static_cast<std::size_t>(question.nbytes)}) {
      result = (std::rotl(result, 7) ^ part) * 0x9e3779b97f4a7c15U;
    }
    return result ^ result >> 32;
  }
};

// The bytes of an object that shows one contiguous block; nothing if it does not.
class Shown {
 public:
  Shown(nb::handle object, int flags) : has_(PyObject_GetBuffer(object.ptr(), &view_, flags) == 0) {
    if (!has_) PyErr_Clear();
  }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;
  ~Shown() {
    if (has_) PyBuffer_Release(&view_);
  }
  explicit operator bool() const noexcept { return has_; }
  [[nodiscard]] Bytes bytes() const noexcept {
    return {static_cast<std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_;
  bool has_;
};

class Desk {
 public:
  static constexpr std::size_t kMost = 1024;

  // ``failed(call, halt, error)`` turns a halt into an error and tells the others of one.
  Desk(Member& member, nb::object failed) : member_(member), failed_(std::move(failed)) {
    hooks_.poll = poll_signals;
  }

  void add(nb::object kind, std::uint64_t nbytes, nb::object dtype, nb::object op, std::int64_t root,
           nb::object program, nb::str call) {
    if (entries_.size() >= kMost) entries_.clear();
    const Question question{kind.ptr(), dtype.ptr(), op.ptr(), root, nbytes};
    Ready& ready = nb::cast<Ready&>(program);
    nb::object held = nb::make_tuple(kind, dtype, op, program, call);
    entries_.insert_or_assign(question, Entry{&ready, call.c_str(), std::move(held)});
  }

  void clear() { entries_.clear(); }

  // Whether the call was known, and is done. ``x`` is in place where there is no ``out``.
  bool arrays(nb::handle kind, nb::handle out, nb::handle x, nb::handle op, std::int64_t root) {
    const bool in_place = out.is_none();
    const Shown from(x, in_place ? PyBUF_WRITABLE : PyBUF_SIMPLE);
    if (!from) return false;
    PyObject* dtype = PyObject_GetAttrString(x.ptr(), "dtype");
    if (dtype == nullptr) {
      PyErr_Clear();
      return false;
    }
    const nb::object held = nb::steal(dtype);
    if (in_place) return serve({kind.ptr(), dtype, op.ptr(), root, 0}, from.bytes(), std::nullopt);
    const Shown to(out, PyBUF_WRITABLE);
    return to && serve({kind.ptr(), dtype, op.ptr(), root, 0}, from.bytes(), to.bytes());
  }

  // The same for memory by its address; an output at 0 is none.
  bool memory(nb::handle kind, std::uint64_t to, std::uint64_t to_bytes, std::uint64_t from,
              std::uint64_t from_bytes, nb::handle dtype, nb::handle op, std::int64_t root) {
    const Bytes x(reinterpret_cast<std::byte*>(from), from_bytes);
    const Bytes out(reinterpret_cast<std::byte*>(to), to_bytes);
    return serve({kind.ptr(), dtype.ptr(), op.ptr(), root, 0}, x,
                 to != 0 ? std::optional(out) : std::nullopt);
  }

 private:
  struct Entry {
    Ready* ready;
    std::string_view call;
    nb::object held;  // what the question, ``ready`` and ``call`` point to
  };

  // The input is the first buffer of every schedule, the output the second.
  bool serve(Question question, Bytes x, std::optional<Bytes> out) {
    question.nbytes = std::max(x.size(), out ? out->size() : 0);
    const auto found = entries_.find(question);
    if (found == entries_.end() || !member_.is_idle()) return false;
    const std::array<Bound, 2> both{Bound{0, x}, Bound{1, out.value_or(Bytes{})}};
    const auto bound = std::span(both).first(out ? 2 : 1);
    if (!found->second.ready->fits(bound)) return false;
    run(found->second, bound);
    return true;
  }

  void run(const Entry& entry, std::span<const Bound> bound) {
    // While Python runs other threads, one of them may clear the desk.
    const nb::object held = entry.held;
    Ready& ready = *entry.ready;
    const std::string_view call = entry.call;
    std::optional<Halt> halt;
    try {
      const nb::gil_scoped_release release;
      halt = ready.run(member_, bound, call, false, hooks_);
    } catch (nb::python_error& error) {
      failed_(held[4], nb::none(), error.value());
      throw;
    }
    if (halt) failed_(held[4], to_tuple(halt), nb::none());
  }

  Member& member_;
  nb::object failed_;
  weft::Hooks hooks_;
  std::unordered_map<Question, Entry, Hash> entries_;
};

}  // namespace

void bind_desk(nb::module_& module) {
  nb::class_<Desk>(module, "Desk", "What was asked before, served at once.")
      .def(nb::init<Member&, nb::object>(), nb::arg("member"), nb::arg("failed"),
           nb::keep_alive<1, 2>())
      .def("add", &Desk::add, nb::arg("kind"), nb::arg("nbytes"), nb::arg("dtype"), nb::arg("op"),
           nb::arg("root"), nb::arg("program"), nb::arg("call"))
      .def("clear", &Desk::clear)
      .def("arrays", &Desk::arrays, nb::arg("kind"), nb::arg("out").none(), nb::arg("x"),
           nb::arg("op"), nb::arg("root"))
      .def("memory", &Desk::memory, nb::arg("kind"), nb::arg("to"), nb::arg("to_bytes"),
           nb::arg("from_address"), nb::arg("from_bytes"), nb::arg("dtype"), nb::arg("op"),
           nb::arg("root"));
}
