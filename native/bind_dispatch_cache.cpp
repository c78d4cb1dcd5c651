// The dispatch cache: repeated collective calls take one step from Python into the native core, which
// finds the prepared program by the arguments of the call.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "bind_prepared.hpp"
#include "dlpack.hpp"

using weft::Bound;
using weft::Bytes;
using weft::Member;
using weft::PreparedProgram;

namespace {

// Names and dtypes are compared by identity: they are few, and entries keep them alive. An equal one
// that is another object is a cache miss.
struct CallKey {
  PyObject* kind;
  PyObject* dtype;
  PyObject* op;
  std::int64_t root;
  std::uint64_t nbytes;
  bool operator==(const CallKey&) const = default;
};

struct Hash {
  std::size_t operator()(const CallKey& key) const noexcept {
    const auto number = [](PyObject* object) { return reinterpret_cast<std::uintptr_t>(object) >> 4; };
    std::size_t result = number(key.kind);
    for (const std::size_t part : {number(key.dtype), number(key.op), static_cast<std::size_t>(key.root),
                                   static_cast<std::size_t>(key.nbytes)}) {
      result = (std::rotl(result, 7) ^ part) * 0x9e3779b97f4a7c15U;
    }
    return result ^ result >> 32;
  }
};

// The bytes of an object with a contiguous buffer; false if it has none.
class BufferView {
 public:
  BufferView(nb::handle object, int flags) : has_(PyObject_GetBuffer(object.ptr(), &view_, flags) == 0) {
    if (!has_) PyErr_Clear();
  }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  ~BufferView() {
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

// Reads the memory of tensors of one type without Python. The names of their dtypes are those of the
// cache keys.
class TensorReader {
 public:
  // ``examples``: a tensor of each dtype, with its name. ValueError if the library of the type has no
  // C exchange table of this version.
  TensorReader(nb::handle type, const nb::list& examples) : type_(nb::borrow(type)) {
    const nb::object capsule = nb::getattr(type, weft::dlpack::kAttribute, nb::none());
    if (!PyCapsule_IsValid(capsule.ptr(), weft::dlpack::kName)) throw nb::value_error("no table");
    table_ =
        static_cast<const weft::dlpack::Table*>(PyCapsule_GetPointer(capsule.ptr(), weft::dlpack::kName));
    if (table_->major != weft::dlpack::kMajor || table_->look == nullptr) {
      throw nb::value_error("another version");
    }
    for (const nb::handle example : examples) {
      if (const auto tensor = look(example[0])) names_.insert_or_assign(tensor->type, example[1]);
    }
  }

  // Nothing for objects of other types, and if the library reports an error.
  [[nodiscard]] std::optional<weft::dlpack::Tensor> look(nb::handle object) const {
    weft::dlpack::Tensor tensor{};
    if (reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) != type_.ptr()) return std::nullopt;
    if (table_->look(object.ptr(), &tensor) == 0) return tensor;
    PyErr_Clear();
    return std::nullopt;
  }

  // Null for an unknown dtype.
  [[nodiscard]] PyObject* name_of(weft::dlpack::Type type) const noexcept {
    const auto found = names_.find(type);
    return found == names_.end() ? nullptr : found->second.ptr();
  }

 private:
  nb::object type_;
  const weft::dlpack::Table* table_ = nullptr;
  std::map<weft::dlpack::Type, nb::object> names_;
};

class DispatchCache {
 public:
  static constexpr std::size_t kMost = 1024;

  // ``failed(call, abort, error)`` raises an abort, or reports an error to the other ranks.
  DispatchCache(Member& member, nb::object failed) : member_(member), failed_(std::move(failed)) {
    hooks_.poll = poll_signals;
  }

  void add(nb::object kind, std::uint64_t nbytes, nb::object dtype, nb::object op, std::int64_t root,
           nb::object program, nb::str call) {
    if (entries_.size() >= kMost) entries_.clear();
    const CallKey key{kind.ptr(), dtype.ptr(), op.ptr(), root, nbytes};
    PreparedProgram& prepared = nb::cast<PreparedProgram&>(program);
    nb::object held = nb::make_tuple(kind, dtype, op, program, call);
    entries_.insert_or_assign(key, Entry{&prepared, call.c_str(), std::move(held)});
  }

  void clear() { entries_.clear(); }

  // Returns whether the call was a hit, and is done. Without ``out``, ``x`` is in place.
  bool arrays(nb::handle kind, nb::handle out, nb::handle x, nb::handle op, std::int64_t root) {
    const bool in_place = out.is_none();
    const BufferView from(x, in_place ? PyBUF_WRITABLE : PyBUF_SIMPLE);
    if (!from) return false;
    PyObject* dtype = PyObject_GetAttrString(x.ptr(), "dtype");
    if (dtype == nullptr) {
      PyErr_Clear();
      return false;
    }
    const nb::object held = nb::steal(dtype);
    if (in_place) return serve({kind.ptr(), dtype, op.ptr(), root, 0}, from.bytes(), std::nullopt);
    const BufferView to(out, PyBUF_WRITABLE);
    return to && serve({kind.ptr(), dtype, op.ptr(), root, 0}, from.bytes(), to.bytes());
  }

  // The same for tensors. The first dimension of the output must have ``parts`` equal parts.
  bool tensors(const TensorReader& known, nb::handle kind, nb::handle out, nb::handle x, nb::handle op,
               std::int64_t root, std::int64_t parts) {
    const auto from = known.look(x);
    const auto input = from ? weft::dlpack::bytes_of(*from) : std::nullopt;
    PyObject* dtype = input ? known.name_of(from->type) : nullptr;
    if (dtype == nullptr) return false;
    const CallKey key{kind.ptr(), dtype, op.ptr(), root, 0};
    if (out.is_none()) return serve(key, *input, std::nullopt);
    const auto to = known.look(out);
    const auto output = to ? weft::dlpack::bytes_of(*to) : std::nullopt;
    if (!output || to->type != from->type || !weft::dlpack::has_rows_for(*to, parts)) return false;
    return serve(key, *input, output);
  }

  // The same for memory by address; 0 means no output.
  bool memory(nb::handle kind, std::uint64_t to, std::uint64_t to_bytes, std::uint64_t from,
              std::uint64_t from_bytes, nb::handle dtype, nb::handle op, std::int64_t root) {
    return serve({kind.ptr(), dtype.ptr(), op.ptr(), root, 0}, bytes_at(from, from_bytes),
                 to != 0 ? std::optional(bytes_at(to, to_bytes)) : std::nullopt);
  }

 private:
  struct Entry {
    PreparedProgram* prepared;
    std::string_view call;
    nb::object held;  // what the key, ``prepared`` and ``call`` point to
  };

  // The input is the first buffer of every schedule, the output the second.
  bool serve(CallKey key, Bytes x, std::optional<Bytes> out) {
    key.nbytes = std::max(x.size(), out ? out->size() : 0);
    const auto found = entries_.find(key);
    if (found == entries_.end() || !member_.threads().is_idle()) return false;
    if (out && !may_write(x, *out)) return false;
    const std::array<Bound, 2> both{Bound{0, x}, Bound{1, out.value_or(Bytes{})}};
    const auto bound = std::span(both).first(out ? 2 : 1);
    if (!found->second.prepared->fits(bound)) return false;
    run(found->second, bound);
    return true;
  }

  // Whether writing the output changes no data of the input that other ranks still read: they do not
  // overlap, or the smaller one is this rank's own part of the larger.
  [[nodiscard]] bool may_write(Bytes x, Bytes out) const noexcept {
    // As integers: pointers into different objects have no order.
    const auto from = reinterpret_cast<std::uint64_t>(x.data());
    const auto to = reinterpret_cast<std::uint64_t>(out.data());
    if (from + x.size() <= to || to + out.size() <= from) return true;
    const auto rank = static_cast<std::uint64_t>(member_.rank());
    return x.size() < out.size()   ? from == to + rank * x.size()
           : out.size() < x.size() ? to == from + rank * out.size()
                                   : false;
  }

  void run(const Entry& entry, std::span<const Bound> bound) {
    // While the GIL is released, another thread may clear the cache.
    const nb::object held = entry.held;
    run_prepared(*entry.prepared, member_, bound, entry.call, hooks_,
                 [&](nb::handle abort, nb::handle error) { failed_(held[4], abort, error); });
  }

  Member& member_;
  nb::object failed_;
  weft::Hooks hooks_;
  std::unordered_map<CallKey, Entry, Hash> entries_;
};

}  // namespace

void bind_dispatch_cache(nb::module_& module) {
  nb::class_<TensorReader>(module, "TensorReader", "Reads the memory of tensors of a type without Python.")
      .def(nb::init<nb::handle, const nb::list&>(), nb::arg("kind"), nb::arg("examples"));
  nb::class_<DispatchCache>(module, "DispatchCache", "Prepared programs of repeated calls.")
      .def(nb::init<Member&, nb::object>(), nb::arg("member"), nb::arg("failed"), nb::keep_alive<1, 2>())
      .def("add", &DispatchCache::add, nb::arg("kind"), nb::arg("nbytes"), nb::arg("dtype"), nb::arg("op"),
           nb::arg("root"), nb::arg("program"), nb::arg("call"))
      .def("clear", &DispatchCache::clear)
      .def("arrays", &DispatchCache::arrays, nb::arg("kind"), nb::arg("out").none(), nb::arg("x"),
           nb::arg("op"), nb::arg("root"))
      .def("tensors", &DispatchCache::tensors, nb::arg("known"), nb::arg("kind"), nb::arg("out").none(),
           nb::arg("x"), nb::arg("op"), nb::arg("root"), nb::arg("parts") = 1)
      .def("memory", &DispatchCache::memory, nb::arg("kind"), nb::arg("to"), nb::arg("to_bytes"),
           nb::arg("from_address"), nb::arg("from_bytes"), nb::arg("dtype"), nb::arg("op"), nb::arg("root"));
}
