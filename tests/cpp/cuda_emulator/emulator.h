// The subset of CUDA that kernels/cuda/portable.h names, in plain C++. Kernels include no other
// part of the emulator. For what a name does, see CUDA's documentation; a kernel that leaves the
// subset does not compile here or throws a Fault (orders.h).
#pragma once

#include <atomic>
#include <source_location>
#include <type_traits>

#include "cuda_emulator/block.h"
#include "cuda_emulator/capture.h"
#include "cuda_emulator/numbers.h"
#include "kernels/cuda/cuda_stream.h"

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ a_bare_shared_variable_is_outside_of_the_subset_use_SHARED

// Each use has its own lambda, so each variable has its own key, in every instance of a template.
#define SHARED(type, name, dimensions) \
  auto& name = ::sinkstream::cuda::emulator::shared_variable<type dimensions, decltype([] {})>()
#define DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(::sinkstream::cuda::emulator::dynamic_shared())

namespace sinkstream::cuda {

namespace emulator {

using Where = std::source_location;

template <typename Key>
inline constexpr char kKey = 0;

template <typename T, typename Key>
T& shared_variable() {
  static_assert(std::is_trivially_default_constructible_v<T>);
  return *static_cast<T*>(shared(&kKey<Key>, sizeof(T)));
}

template <typename T>
Words to_words(const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  Words words;
  std::memcpy(words.word, &value, sizeof(T));
  return words;
}

template <typename T>
T from_words(const Words& words) {
  T value;
  std::memcpy(&value, words.word, sizeof(T));
  return value;
}

// The value of lane `from`, or the lane's own if there is no such lane.
template <typename T>
T shuffle(unsigned mask, const CallSite& site, T value, int from) {
  const Words* words = exchange(mask, site, to_words(value));
  return from < 32 ? from_words<T>(given(words, from)) : value;
}

}  // namespace emulator

inline size_t shared_limit() { return emulator::shared_limit; }
inline int64_t blocks_together(size_t, int64_t) { return emulator::blocks_together; }
inline void wait_for_previous() { emulator::wait_for_previous(); }

template <typename... Args>
Status launch(void (*kernel)(Args...), dim3 grid, dim3 block, size_t dynamic_bytes, Stream stream,
              const std::type_identity_t<Args>&... args) {
  static_assert((std::is_trivially_copyable_v<Args> && ...));
  if (emulator::capturing != nullptr) {
    emulator::capturing->push_back(
        [=] { return launch(kernel, grid, block, dynamic_bytes, stream, args...); });
    return kSuccess;
  }
  const auto thread = [&] { kernel(args...); };
  return emulator::run({grid, block, dynamic_bytes,
                        [](const void* body) { (*static_cast<decltype(thread)*>(body))(); },
                        &thread});
}

}  // namespace sinkstream::cuda

inline void __syncthreads(
    sinkstream::cuda::emulator::Where where = sinkstream::cuda::emulator::Where::current()) {
  sinkstream::cuda::emulator::block_barrier({"__syncthreads", where});
}

inline void __syncwarp(
    unsigned mask = 0xFFFFFFFFu,
    sinkstream::cuda::emulator::Where where = sinkstream::cuda::emulator::Where::current()) {
  sinkstream::cuda::emulator::warp_barrier(mask, {"__syncwarp", where});
}

template <typename T>
T __shfl_sync(
    unsigned mask, T value, int from,
    sinkstream::cuda::emulator::Where where = sinkstream::cuda::emulator::Where::current()) {
  return sinkstream::cuda::emulator::shuffle(mask, {"__shfl_sync", where}, value, from & 31);
}

template <typename T>
T __shfl_xor_sync(
    unsigned mask, T value, int bits,
    sinkstream::cuda::emulator::Where where = sinkstream::cuda::emulator::Where::current()) {
  return sinkstream::cuda::emulator::shuffle(mask, {"__shfl_xor_sync", where}, value,
                                             sinkstream::cuda::emulator::lane() ^ bits);
}

template <typename T>
T __shfl_down_sync(
    unsigned mask, T value, unsigned distance,
    sinkstream::cuda::emulator::Where where = sinkstream::cuda::emulator::Where::current()) {
  return sinkstream::cuda::emulator::shuffle(
      mask, {"__shfl_down_sync", where}, value,
      sinkstream::cuda::emulator::lane() + static_cast<int>(distance));
}

inline unsigned __ballot_sync(
    unsigned mask, int predicate,
    sinkstream::cuda::emulator::Where where = sinkstream::cuda::emulator::Where::current()) {
  return sinkstream::cuda::emulator::ballot(mask, {"__ballot_sync", where}, predicate != 0);
}

inline int __all_sync(
    unsigned mask, int predicate,
    sinkstream::cuda::emulator::Where where = sinkstream::cuda::emulator::Where::current()) {
  return __ballot_sync(mask, predicate, where) == 0xFFFFFFFFu;
}

inline int __any_sync(
    unsigned mask, int predicate,
    sinkstream::cuda::emulator::Where where = sinkstream::cuda::emulator::Where::current()) {
  return __ballot_sync(mask, predicate, where) != 0;
}

template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T> && (sizeof(T) == 4 || std::is_same_v<T, unsigned long long>));
  return std::atomic_ref(*address).fetch_add(value, std::memory_order_relaxed);
}

template <typename T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> desired) {
  static_assert(std::is_integral_v<T> && sizeof(T) == 4);
  std::atomic_ref(*address).compare_exchange_strong(expected, desired, std::memory_order_relaxed);
  return expected;
}

template <typename T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T> && sizeof(T) == 4);
  const std::atomic_ref<T> target(*address);
  T old = target.load(std::memory_order_relaxed);
  while (old < value && !target.compare_exchange_weak(old, value, std::memory_order_relaxed)) {
  }
  return old;
}

inline void __threadfence() { sinkstream::cuda::emulator::fence(); }
