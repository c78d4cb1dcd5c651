// Collectives of oneCCL by plain functions, for benchmarks.oneccl_rank, which calls them by ctypes.
#include <oneapi/ccl.hpp>

#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>

namespace {

std::shared_ptr<ccl::kvs> store;
std::optional<ccl::communicator> comm;

ccl::datatype type_of(int item_bytes) {
  return item_bytes == 2 ? ccl::datatype::bfloat16 : ccl::datatype::float32;
}

}  // namespace

extern "C" {

// The static library refers to a tracer's functions, which it calls only where they are not null.
#define WEFT_NO_TRACER(name) void* __itt_##name##_ptr__3_0 = nullptr
WEFT_NO_TRACER(domain_create);
WEFT_NO_TRACER(event_create);
WEFT_NO_TRACER(event_end);
WEFT_NO_TRACER(event_start);
WEFT_NO_TRACER(metadata_add);
WEFT_NO_TRACER(string_handle_create);
WEFT_NO_TRACER(task_begin);
WEFT_NO_TRACER(task_end);
WEFT_NO_TRACER(thread_set_name);

std::size_t address_bytes() { return ccl::kvs::address_max_size; }

// Rank 0 writes the address that the others are given.
void create_store(char* address) {
  ccl::init();
  store = ccl::create_main_kvs();
  const auto found = store->get_address();
  std::memcpy(address, found.data(), found.size());
}

void join_store(const char* address) {
  ccl::init();
  ccl::kvs::address_type given;
  std::memcpy(given.data(), address, given.size());
  store = ccl::create_kvs(given);
}

void join_ranks(int num_ranks, int rank) { comm.emplace(ccl::create_communicator(num_ranks, rank, store)); }

void barrier() { ccl::barrier(*comm).wait(); }

void broadcast(void* x, std::size_t count, int item) {
  ccl::broadcast(x, count, type_of(item), 0, *comm).wait();
}

void all_reduce(void* x, std::size_t count, int item) {
  ccl::allreduce(x, x, count, type_of(item), ccl::reduction::sum, *comm).wait();
}

void all_gather(const void* x, void* out, std::size_t count, int item) {
  ccl::allgather(x, out, count, type_of(item), *comm).wait();
}

void reduce_scatter(const void* x, void* out, std::size_t count, int item) {
  ccl::reduce_scatter(x, out, count, type_of(item), ccl::reduction::sum, *comm).wait();
}

void all_to_all(const void* x, void* out, std::size_t count, int item) {
  ccl::alltoall(x, out, count, type_of(item), *comm).wait();
}

}  // extern "C"
