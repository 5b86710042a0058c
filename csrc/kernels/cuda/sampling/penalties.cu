#include "kernels/cuda/sampling/penalties.cuh"

namespace sinkstream::cuda {

namespace {

constexpr int kThreads = 1024;

__device__ inline void clear_counts(const PenaltyTable& table) {
  for (uint32_t at = threadIdx.x; at <= table.mask; at += kThreads) {
    table.hash[at] = {-1, 0};
  }
}

__global__ void __launch_bounds__(kThreads) reset_kernel(PenaltyResetArgs args) {
  wait_for_previous();
  const PenaltyTable table = penalty_table(args.tables, args.table);
  clear_counts(table);
  if (threadIdx.x == 0) *table.head = {0, args.sinks, args.window, 0, 0};
}

// While the table is built, `count_index` holds the count itself.
__device__ inline void count_in_parallel(const PenaltyTable& table, int32_t id) {
  uint32_t at = hash_of(table, id);
  for (;;) {
    const int32_t found = atomicCAS(&table.hash[at].id, -1, id);
    if (found == -1 || found == id) break;
    at = (at + 1) & table.mask;
  }
  atomicAdd(&table.hash[at].count_index, 1);
}

__global__ void __launch_bounds__(kThreads) append_kernel(PenaltyAppendArgs args) {
  wait_for_previous();
  const PenaltyTable table = penalty_table(args.tables, args.table);
  const PenaltyHead head = *table.head;
  const int64_t length = head.length + args.count;
  // Store the tokens that stay live.
  for (int64_t i = threadIdx.x; i < args.count; i += kThreads) {
    const int64_t index = head.length + i;
    if (index >= head.sinks && index < length - head.window) continue;
    table.tokens[token_offset(head, index)] = args.ids[i];
  }
  clear_counts(table);
  __syncthreads();

  const int64_t sinks = length < head.sinks ? length : head.sinks;
  for (int64_t index = threadIdx.x; index < sinks; index += kThreads) {
    count_in_parallel(table, table.tokens[index]);
  }
  int64_t first = length - head.window;
  if (first < head.sinks) first = head.sinks;
  for (int64_t index = first + threadIdx.x; index < length; index += kThreads) {
    count_in_parallel(table, table.tokens[token_offset(head, index)]);
  }
  if (threadIdx.x == 0) {
    table.head->length = length;
    table.head->distinct = 0;
  }
  __syncthreads();

  // The dense list has no fixed order; nothing depends on it, because every id has one entry.
  for (uint32_t at = threadIdx.x; at <= table.mask; at += kThreads) {
    PenaltyHashEntry& entry = table.hash[at];
    if (entry.id < 0) continue;
    const int32_t count = entry.count_index;
    entry.count_index = atomicAdd(&table.head->distinct, 1);
    table.counts[entry.count_index] = {entry.id, count};
  }
}

}  // namespace

Status penalties_reset(const PenaltyResetArgs& args, Stream stream) {
  return launch(reset_kernel, dim3(1), dim3(kThreads), 0, stream, args);
}

Status penalties_append(const PenaltyAppendArgs& args, Stream stream) {
  return launch(append_kernel, dim3(1), dim3(kThreads), 0, stream, args);
}

}  // namespace sinkstream::cuda
