// A device type of its own whose memory is host memory, and a c10d backend for its tensors.
//
//   tensors  PrivateUse1: allocated by malloc, kernels of the CPU through torch's cpu_fallback
//   c10d     StandInBackend: a C++ Backend, as NCCL's is; a Gloo backend moves the bytes
//
// As on a GPU, a kernel of the CPU that is handed such a tensor by mistake raises, and so does Gloo.

#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <pybind11/chrono.h>

namespace {

constexpr auto kStandIn = c10::DeviceType::PrivateUse1;
const c10::Device kDevice(kStandIn, 0);

struct HostAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    void* data = nbytes == 0 ? nullptr : std::malloc(nbytes);
    return {data, data, &std::free, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
};

HostAllocator allocator;
REGISTER_ALLOCATOR(kStandIn, &allocator);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kStandIn> {
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

void resize_bytes(const c10::Storage& storage, size_t nbytes) {
  auto* impl = storage.unsafeGetStorageImpl();
  auto grown = allocator.allocate(nbytes);
  if (const auto kept = std::min(nbytes, impl->nbytes()); kept > 0) {
    std::memcpy(grown.get(), impl->data(), kept);
  }
  impl->set_data_ptr_noswap(std::move(grown));
  impl->set_nbytes(nbytes);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_bytes(storage, nbytes);
  }
};

// A tensor of the CPU over the same memory.
at::Tensor on_host(const at::Tensor& x) {
  if (!x.is_privateuseone()) {
    return x;
  }
  // The memory may be freed by a resize of the storage, never by its tensors while one is in use.
  return at::from_blob(
      x.data_ptr(), x.sizes(), x.strides(), [x](void*) {}, x.options().device(c10::kCPU),
      c10::Device(c10::kCPU));
}

std::vector<at::Tensor> on_host(const std::vector<at::Tensor>& xs) {
  std::vector<at::Tensor> found;
  for (const auto& x : xs) {
    found.push_back(on_host(x));
  }
  return found;
}

std::vector<std::vector<at::Tensor>> on_host(const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<std::vector<at::Tensor>> found;
  for (const auto& xs : lists) {
    found.push_back(on_host(xs));
  }
  return found;
}

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                 std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(self));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const auto needed = (impl->storage_offset() + impl->numel()) * impl->itemsize();
  if (needed > self.storage().nbytes()) {
    resize_bytes(self.storage(), needed);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage from, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(from));
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(size, stride);
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage from) {
  const auto numel = static_cast<int64_t>(from.nbytes() / self.itemsize());
  return set_storage(self, std::move(from), 0, {numel}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& from) {
  return set_storage(self, from.storage(), from.storage_offset(), from.sizes(), from.strides());
}

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

void record_stream(at::Tensor&, c10::Stream) {}  // kernels have ended when they return

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("record_stream", &record_stream);
  m.impl("as_strided", &as_strided);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
}

using Work = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

// The Work of coalesced calls.
struct CoalescedWork final : c10d::Work {
  explicit CoalescedWork(std::vector<::Work> works) : works_(std::move(works)) {}
  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(), [](auto& each) { return each->isCompleted(); });
  }
  bool wait(std::chrono::milliseconds timeout) override {
    for (auto& each : works_) {
      each->wait(timeout);
    }
    return true;
  }
  std::vector<::Work> works_;
};

// Hands every call to Gloo, with tensors of the CPU over the same memory, and notes its name.
struct StandInBackend final : c10d::Backend {
  StandInBackend(c10::intrusive_ptr<c10d::Backend> gloo, std::vector<std::string>* notes)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), notes_(notes) {}

  const std::string getBackendName() const override { return "standin"; }
  bool supportsCoalescing() const override { return true; }
  bool supportsSplitting() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    note("set_timeout");
    gloo_->setTimeout(timeout);
  }
  c10::intrusive_ptr<Options> getBackendOptions() override { return gloo_->getBackendOptions(); }
  void setSequenceNumberForGroup() override {}
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& opts) override {
    note("split");
    auto part = gloo_->split(store, ranks, opts);
    return part ? c10::make_intrusive<StandInBackend>(part, notes_) : nullptr;
  }
  void shutdown() override { note("shutdown"); }
  void abort() override { note("abort"); }

  void startCoalescing() override {
    note("start_coalescing");
    coalescing_ = true;
  }
  ::Work endCoalescing() override {
    note("end_coalescing");
    coalescing_ = false;
    return c10::make_intrusive<CoalescedWork>(std::move(coalesced_));
  }

  ::Work broadcast(Tensors& x, const c10d::BroadcastOptions& opts) override {
    auto host = on_host(x);
    return issued("broadcast", gloo_->broadcast(host, opts));
  }
  ::Work allreduce(Tensors& x, const c10d::AllreduceOptions& opts) override {
    auto host = on_host(x);
    return issued("allreduce", gloo_->allreduce(host, opts));
  }
  ::Work allreduce_coalesced(Tensors& x, const c10d::AllreduceCoalescedOptions& opts) override {
    c10d::AllreduceOptions each;
    each.reduceOp = opts.reduceOp;
    note("allreduce_coalesced");
    return for_each(x.size(), [&](size_t i) {
      Tensors one{x[i]};
      return allreduce(one, each);
    });
  }
  ::Work reduce(Tensors& x, const c10d::ReduceOptions& opts) override {
    auto host = on_host(x);
    return issued("reduce", gloo_->reduce(host, opts));
  }
  ::Work allgather(std::vector<Tensors>& out, Tensors& in, const c10d::AllgatherOptions& opts) override {
    auto host_out = on_host(out);
    auto host_in = on_host(in);
    return issued("allgather", gloo_->allgather(host_out, host_in, opts));
  }
  ::Work _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& opts) override {
    auto host_out = on_host(out);
    auto host_in = on_host(in);
    return issued("_allgather_base", gloo_->_allgather_base(host_out, host_in, opts));
  }
  ::Work allgather_into_tensor_coalesced(Tensors& out, Tensors& in,
                                         const c10d::AllgatherOptions& opts) override {
    note("allgather_into_tensor_coalesced");
    return for_each(out.size(), [&](size_t i) { return _allgather_base(out[i], in[i], opts); });
  }
  ::Work gather(std::vector<Tensors>& out, Tensors& in, const c10d::GatherOptions& opts) override {
    auto host_out = on_host(out);
    auto host_in = on_host(in);
    return issued("gather", gloo_->gather(host_out, host_in, opts));
  }
  ::Work scatter(Tensors& out, std::vector<Tensors>& in, const c10d::ScatterOptions& opts) override {
    auto host_out = on_host(out);
    auto host_in = on_host(in);
    return issued("scatter", gloo_->scatter(host_out, host_in, opts));
  }
  ::Work reduce_scatter(Tensors& out, std::vector<Tensors>& in,
                        const c10d::ReduceScatterOptions& opts) override {
    auto flat = at::cat(on_host(in[0]));
    auto host_out = on_host(out[0]);
    return issued("reduce_scatter", gloo_->_reduce_scatter_base(host_out, flat, opts));
  }
  ::Work _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                              const c10d::ReduceScatterOptions& opts) override {
    auto host_out = on_host(out);
    auto host_in = on_host(in);
    return issued("_reduce_scatter_base", gloo_->_reduce_scatter_base(host_out, host_in, opts));
  }
  ::Work reduce_scatter_tensor_coalesced(Tensors& out, Tensors& in,
                                         const c10d::ReduceScatterOptions& opts) override {
    note("reduce_scatter_tensor_coalesced");
    return for_each(out.size(), [&](size_t i) { return _reduce_scatter_base(out[i], in[i], opts); });
  }
  ::Work alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_splits,
                       std::vector<int64_t>& in_splits, const c10d::AllToAllOptions& opts) override {
    auto host_out = on_host(out);
    auto host_in = on_host(in);
    return issued("alltoall_base", gloo_->alltoall_base(host_out, host_in, out_splits, in_splits, opts));
  }
  ::Work alltoall(Tensors& out, Tensors& in, const c10d::AllToAllOptions&) override {
    note("alltoall");
    std::vector<::Work> works;
    for (int peer = 0; peer < getSize(); ++peer) {
      Tensors to{on_host(in[peer])};
      Tensors from{on_host(out[peer])};
      if (peer == getRank()) {
        from[0].copy_(to[0]);
        continue;
      }
      works.push_back(gloo_->send(to, peer, 7));
      works.push_back(gloo_->recv(from, peer, 7));
    }
    return c10::make_intrusive<CoalescedWork>(std::move(works));
  }
  ::Work send(Tensors& x, int to, int tag) override {
    auto host = on_host(x);
    return issued("send", gloo_->send(host, to, tag));
  }
  ::Work recv(Tensors& x, int from, int tag) override {
    auto host = on_host(x);
    return issued("recv", gloo_->recv(host, from, tag));
  }
  ::Work recvAnysource(Tensors& x, int tag) override {
    auto host = on_host(x);
    return issued("recv_anysource", gloo_->recvAnysource(host, tag));
  }
  ::Work barrier(const c10d::BarrierOptions& opts) override {
    return issued("barrier", gloo_->barrier(opts));
  }

 private:
  void note(const char* name) { notes_->emplace_back(name); }

  ::Work issued(const char* name, ::Work work) {
    note(name);
    if (coalescing_) {
      coalesced_.push_back(work);
    }
    return work;
  }

  template <typename Call>
  ::Work for_each(size_t count, Call call) {
    std::vector<::Work> works;
    for (size_t i = 0; i < count; ++i) {
      works.push_back(call(i));
    }
    return c10::make_intrusive<CoalescedWork>(std::move(works));
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::vector<std::string>* notes_;
  std::vector<::Work> coalesced_;
  bool coalescing_ = false;
};

std::vector<std::string> notes;  // names of the calls of all groups, in order

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  m.def("backend", [](c10::intrusive_ptr<c10d::Backend> gloo) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<StandInBackend>(std::move(gloo), &notes);
  });
  m.def("take_notes", [] { return std::exchange(notes, {}); });
}
