// Which pages a query sees, and the copy of one head's half of a page to shared memory.
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/find_page.cuh"
#include "kernels/cuda/attention/seen_pages.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/cuda/word_ops.cuh"

namespace sinkstream::cuda {

// The element type of matrix products over a cache's type.
template <typename Cache>
struct Multiplied {
  using Type = Cache;
};
template <>
struct Multiplied<int8_t> {
  using Type = bf16;
};
template <typename Cache>
using Element = typename Multiplied<Cache>::Type;

template <typename Cache>
constexpr bool kHasScales = sizeof(Cache) == 1;

constexpr int kTileRows = 16;  // pairs of token and head, of one key head

// Row stride in shared memory, in numbers: eight more than head_dim, so that the eight rows that
// load_fragment4 reads together are in different banks.
constexpr int padded(int head_dim) { return head_dim + 8; }

// Rows of a page: [begin, end), empty if begin >= end.
struct RowRange {
  int begin;
  int end;
};

// One head of the n-th of a token's pages, and the token in its row 0.
struct HeadPage {
  const std::byte* keys;
  const std::byte* values;
  int64_t base;
  bool is_sink;
};

__device__ inline HeadPage head_page(const Pages& pages, const SequencePages& sequence,
                                     const SeenPages& seen, int n, int kv_head) {
  HeadPage page = {
      .keys = nullptr, .values = nullptr, .base = n * kPageRows, .is_sink = n < seen.sink_pages};
  const std::byte* bytes;
  if (page.is_sink) {
    bytes = page_at(pages, sequence, n);
  } else {
    const int64_t block = seen.first_block + n - seen.sink_pages;
    page.base = sequence.sinks + block * kPageRows;
    bytes = window_page(pages, sequence, block);
  }
  page.keys = bytes + pages.shape.key_offset(kv_head);
  page.values = bytes + pages.shape.value_offset(kv_head);
  return page;
}

// The rows of a page that these tokens see.
__device__ inline RowRange seen_rows(const SequencePages& sequence, const HeadPage& page,
                                     int64_t first, int64_t index) {
  int64_t begin = first - page.base, end = index + 1 - page.base;
  if (page.is_sink) {
    begin = 0;
    end = seen_sinks(sequence, index) - page.base;
  }
  return {int(begin > 0 ? begin : 0), int(end < kPageRows ? end : kPageRows)};
}

// The shared memory of a block of `warps` warps.
template <typename Cache>
struct TileMemory {
  Element<Cache>* queries;  // [warps][16][padded(head_dim)]
  unsigned char* keys;      // 16-bit: [64][padded(head_dim)]; int8: codes and scales as in the page
  unsigned char* values;    // likewise
  Element<Cache>* wide;     // int8: [64][padded(head_dim)], of the keys or the values

  static constexpr size_t query_bytes(int warps, int head_dim) {
    return size_t{2} * warps * kTileRows * padded(head_dim);
  }
  static constexpr size_t wide_bytes(int head_dim) {
    return size_t{2} * kPageRows * padded(head_dim);
  }
  static constexpr size_t half_bytes(int head_dim) {
    return kHasScales<Cache> ? kPageRows * (head_dim + sizeof(float)) : wide_bytes(head_dim);
  }
  static constexpr size_t bytes(int warps, int head_dim) {
    return query_bytes(warps, head_dim) + 2 * half_bytes(head_dim) +
           (kHasScales<Cache> ? wide_bytes(head_dim) : 0);
  }

  __device__ TileMemory(unsigned char* memory, int warps, int head_dim)
      : queries(reinterpret_cast<Element<Cache>*>(memory)),
        keys(memory + query_bytes(warps, head_dim)),
        values(keys + half_bytes(head_dim)),
        wide(reinterpret_cast<Element<Cache>*>(values + half_bytes(head_dim))) {}
};

// Calls visit(row, column) for this thread's share of `rows` rows of `columns` parts; `thread` is
// in [0, threads).
template <typename Visit>
__device__ inline void for_each_part(int thread, int threads, int rows, int columns,
                                     const Visit& visit) {
  const int row_step = threads / columns, column_step = threads % columns;
  int row = thread / columns, column = thread % columns;
  while (row < rows) {
    visit(row, column);
    row += row_step;
    column += column_step;
    if (column >= columns) {
      column -= columns;
      ++row;
    }
  }
}

// The block starts to copy one head's half of a page. Rows that none of its queries see are not
// read: they become zeros, which are safe to multiply by a zero weight.
template <typename Cache>
__device__ inline void stage_half(unsigned char* to, const std::byte* from, int head_dim,
                                  RowRange seen) {
  const int parts = head_dim * int(sizeof(Cache)) / 16;
  const int pitch = kHasScales<Cache> ? head_dim : 2 * padded(head_dim);
  for_each_part(threadIdx.x, blockDim.x, kPageRows, parts, [&](int row, int part) {
    unsigned char* target = to + row * pitch + part * 16;
    if (row >= seen.begin && row < seen.end) {
      copy_async(target, from + (row * parts + part) * 16);
    } else {
      *reinterpret_cast<uint4*>(target) = make_uint4(0, 0, 0, 0);
    }
  });
  if constexpr (kHasScales<Cache>) {
    const int codes = int(kPageRows) * head_dim;
    for (int part = threadIdx.x; part < int(kPageRows) / 4; part += blockDim.x) {
      copy_async(to + codes + part * 16, from + codes + part * 16);
    }
  }
}

// The block converts a half's codes to bfloat16.
__device__ inline void widen_half(bf16* wide, const unsigned char* half, int head_dim) {
  for_each_part(threadIdx.x, blockDim.x, kPageRows, head_dim / 16, [&](int row, int part) {
    const uint4 codes = *reinterpret_cast<const uint4*>(half + row * head_dim + part * 16);
    uint4* to = reinterpret_cast<uint4*>(wide + row * padded(head_dim) + part * 16);
    const uint2 x = int8_quad(codes.x), y = int8_quad(codes.y);
    const uint2 z = int8_quad(codes.z), w = int8_quad(codes.w);
    to[0] = make_uint4(x.x, x.y, y.x, y.y);
    to[1] = make_uint4(z.x, z.y, w.x, w.y);
  });
}

// Waits until copy_async has copied a half, and returns it as numbers. `pending`: groups of copies
// that may still be in flight. All threads of the block call it; it is a barrier.
template <int pending, typename Cache>
__device__ inline const Element<Cache>* wait_for_half(const TileMemory<Cache>& memory,
                                                      const unsigned char* half, int head_dim) {
  copy_async_wait<pending>();
  __syncthreads();
  if constexpr (kHasScales<Cache>) {
    widen_half(memory.wide, half, head_dim);
    __syncthreads();
    return memory.wide;
  } else {
    return reinterpret_cast<const Element<Cache>*>(half);
  }
}

// The 64 scales of an int8 half.
__device__ inline const float* scales_of(const unsigned char* half, int head_dim) {
  return reinterpret_cast<const float*>(half + kPageRows * head_dim);
}

}  // namespace sinkstream::cuda
