// Tensor-core products and asynchronous copies as plain functions. The emulator's versions are in
// tests/cpp/cuda_emulator/tensor_core_twins.h.
//
// Note: [Fragments]
// multiply_add<T>(d, a, b): D[16][8] += A[16][16] · B[16][8], T = bf16 or f16, sums in float32. A
// lane has group = lane / 4 and pair = lane % 4, and holds
//   a[r]  A[group + 8 (r & 1)][2 pair + 8 (r >> 1) + {0, 1}]
//   b[r]  B[2 pair + 8 r + {0, 1}][group]
//   d[i]  D[group + 8 (i >> 1)][2 pair + (i & 1)]
// the first of a pair in the low half of the word.
//
// load_fragment4(words, row): four 8 × 8 matrices of 16-bit numbers from shared memory. Lane l
// gives the 16-byte aligned address of row l % 8 of matrix l / 8; words[m] is then the pair
// [group][2 pair + {0, 1}] of matrix m, and with load_fragment4_transposed that of its transpose.
//
// copy_async(to_shared, from_global) copies 16 bytes, both 16-byte aligned. They may be read after
// copy_async_wait<n>() (all but the last n groups have arrived) and a barrier. copy_async_commit()
// ends a group.
#pragma once

#include "kernels/cuda/portable.h"

#if defined(SINKSTREAM_CUDA_EMULATED)

#include "cuda_emulator/tensor_core_twins.h"

#else

namespace sinkstream::cuda {

template <typename T>
__device__ inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

template <>
__device__ inline void multiply_add<bf16>(float (&d)[4], const uint32_t (&a)[4],
                                          const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ inline void multiply_add<f16>(float (&d)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ inline void load_fragment4(uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ inline void load_fragment4_transposed(uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ inline void copy_async(void* to_shared, const void* from_global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(shared_address(to_shared)), "l"(from_global)
               : "memory");
}

__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int n>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

}  // namespace sinkstream::cuda

#endif
