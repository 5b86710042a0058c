#include "common/divide_up.h"
#include "kernels/cuda/attention/tile.cuh"
#include "kernels/cuda/attention/wide_heads.h"

namespace sinkstream::cuda {
namespace {

constexpr int kMostWarps = 8;      // one tile each: 128 heads per key head
constexpr int kLeastWarps = 4;     // those without a tile only copy
constexpr int kMergeColumns = 64;  // of a warp that merges, two per lane
constexpr int kMergePages = 8;     // whose sums it loads at once

// One head's result for one page: sums, then m and l.
struct PageResult {
  float* sums;  // [head_dim]
  SoftmaxState* state;
};

// For the n-th page that `row` sees. Scratch holds [rows][heads][page_slots] results.
__device__ inline PageResult result_of(const AttentionArgs& args, int64_t row, int head, int n) {
  const int64_t entry = (row * args.heads + head) * args.page_slots + n;
  const int64_t entries = int64_t{args.row_count} * args.heads * args.page_slots;
  const int64_t head_dim = args.pages.shape.head_dim;
  return {args.scratch + entry * head_dim,
          reinterpret_cast<SoftmaxState*>(args.scratch + entries * head_dim) + entry};
}

// Block (row, key head, n): the row's n-th page.
template <typename Cache>
__global__ void __launch_bounds__(kMostWarps* kWarpSize) attend_page_kernel(AttentionArgs args) {
  DYNAMIC_SHARED(unsigned char, shared);
  wait_for_previous();
  const TokenRow row = args.rows[blockIdx.x];
  if (row.sequence < 0) return;
  const SequencePages sequence = args.pages.sequences[row.sequence];
  const SeenPages seen = seen_pages(sequence, row.first, row.index);
  const int kv_head = blockIdx.y, n = blockIdx.z;
  if (n >= seen.count()) return;
  const HeadPage page = head_page(args.pages, sequence, seen, n, kv_head);
  const RowRange rows = seen_rows(sequence, page, row.first, row.index);

  const int head_dim = int(args.pages.shape.head_dim);
  const int group = args.heads / int(args.pages.shape.kv_heads);
  const int warp = threadIdx.x / kWarpSize, tiles = (group + kTileRows - 1) / kTileRows;
  const bool has_tile = warp < tiles;
  const TileMemory<Cache> memory(shared, tiles, head_dim);
  Element<Cache>* const queries = memory.queries + warp * kTileRows * padded(head_dim);

  stage_half<Cache>(memory.keys, page.keys, head_dim, rows);
  copy_async_commit();
  stage_half<Cache>(memory.values, page.values, head_dim, rows);
  copy_async_commit();
  if (has_tile) {
    stage_queries(queries, page.is_sink ? args.query_sink : args.query_window, args, blockIdx.x,
                  kv_head, warp * kTileRows, group);
  }

  // Heads of the lane's queries in the key head's group; a tile has none past its end.
  int heads[2];
  TileView view;
  for (int q = 0; q < 2; ++q) {
    heads[q] = warp * kTileRows + threadIdx.x % kWarpSize / 4 + 8 * q;
    view.rows[q] = rows;
    view.slope[q] =
        args.slopes != nullptr && heads[q] < group ? args.slopes[kv_head * group + heads[q]] : 0;
    view.distance[q] = float((page.is_sink ? row.rank : row.index) - page.base);
  }

  float scores[8][4];
  const Element<Cache>* keys = wait_for_half<1>(memory, memory.keys, head_dim);
  if (has_tile) multiply_keys(scores, queries, keys, head_dim);
  const Element<Cache>* values = wait_for_half<0>(memory, memory.values, head_dim);
  if (!has_tile) return;
  SoftmaxState states[2];
  uint32_t weights[4][4];
  softmax_weights<Cache>(scores, view, args, scales_of(memory.keys, head_dim),
                         scales_of(memory.values, head_dim), states, weights);

  const int pair = threadIdx.x % 4;
  for (int column = 0; column < head_dim; column += 32) {
    float sums[4][4];
    multiply_values(sums, weights, values, head_dim, column);
    for (int q = 0; q < 2; ++q) {
      if (heads[q] >= group) continue;
      const PageResult to = result_of(args, blockIdx.x, kv_head * group + heads[q], n);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = column + 8 * j;
        if (at < head_dim) {
          *reinterpret_cast<float2*>(to.sums + at + 2 * pair) =
              make_float2(sums[j][2 * q], sums[j][2 * q + 1]);
        }
      }
      if (column == 0 && pair == 0) *to.state = states[q];
    }
  }
}

// Block (row, head); a warp merges 64 columns. Pages are merged one after another, but their
// factors depend only on the largest m so far, which all lanes find in parallel.
__global__ void __launch_bounds__(4 * kWarpSize) merge_pages_kernel(AttentionArgs args) {
  wait_for_previous();
  const TokenRow row = args.rows[blockIdx.x];
  if (row.sequence < 0) return;
  const int head = blockIdx.y, lane = threadIdx.x % kWarpSize;
  const int64_t head_dim = args.pages.shape.head_dim;
  const int count = seen_pages(args.pages.sequences[row.sequence], row.first, row.index).count();
  const int column = threadIdx.x / kWarpSize * kMergeColumns + 2 * lane;
  const bool has_column = column < head_dim;

  SoftmaxState state = {-INFINITY, 0};
  float2 sums = make_float2(0, 0);
  for (int begin = 0; begin < count; begin += kWarpSize) {
    // The lane's page: its state, and the largest m up to it.
    SoftmaxState own = {-INFINITY, 0};
    if (begin + lane < count) own = *result_of(args, blockIdx.x, head, begin + lane).state;
    float largest = fmaxf(state.largest, own.largest);
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const float other = __shfl_sync(kWarp, largest, lane < distance ? lane : lane - distance);
      largest = fmaxf(largest, other);
    }
    const float before = __shfl_sync(kWarp, largest, lane == 0 ? 0 : lane - 1);
    const Factors own_factors = factors_of(lane == 0 ? state.largest : before, own.largest);

    const int pages = count - begin < kWarpSize ? count - begin : kWarpSize;
    for (int first = 0; first < pages; first += kMergePages) {
      float2 added[kMergePages];
#pragma unroll
      for (int i = 0; i < kMergePages; ++i) {
        added[i] = make_float2(0, 0);
        if (has_column && first + i < pages) {
          const PageResult from = result_of(args, blockIdx.x, head, begin + first + i);
          added[i] = *reinterpret_cast<const float2*>(from.sums + column);
        }
      }
#pragma unroll
      for (int i = 0; i < kMergePages; ++i) {
        if (first + i >= pages) break;
        const Factors factors = {__shfl_sync(kWarp, own_factors.before, first + i),
                                 __shfl_sync(kWarp, own_factors.added, first + i)};
        state.total = merge(state.total, __shfl_sync(kWarp, own.total, first + i), factors);
        sums.x = merge(sums.x, added[i].x, factors);
        sums.y = merge(sums.y, added[i].y, factors);
      }
    }
    state.largest = __shfl_sync(kWarp, largest, kWarpSize - 1);
  }
  if (args.sink_logits != nullptr) {
    const Factors factors = merge_logit(state, args.sink_logits[head]);
    sums.x = merge(sums.x, 0, factors);
    sums.y = merge(sums.y, 0, factors);
  }
  if (has_column) {
    const int64_t at = (int64_t{blockIdx.x} * args.heads + head) * head_dim + column;
    static_cast<uint32_t*>(args.out)[at / 2] =
        pack<bf16>(sums.x / state.total, sums.y / state.total);
  }
}

template <typename Cache>
Status attend_pages(const AttentionArgs& args, Stream stream) {
  const int kv_heads = int(args.pages.shape.kv_heads), head_dim = int(args.pages.shape.head_dim);
  const int tiles = int(divide_up(args.heads / kv_heads, kTileRows));
  const int warps = tiles > kLeastWarps ? tiles : kLeastWarps;
  return launch(attend_page_kernel<Cache>, dim3(args.row_count, kv_heads, args.page_slots),
                dim3(warps * kWarpSize), TileMemory<Cache>::bytes(tiles, head_dim), stream, args);
}

Status attend_pages_of(const AttentionArgs& args, Stream stream) {
  switch (args.pages.shape.type) {
    case DType::kFloat16: return attend_pages<f16>(args, stream);
    case DType::kInt8: return attend_pages<int8_t>(args, stream);
    default: return attend_pages<bf16>(args, stream);
  }
}

}  // namespace

Status attention_decode(const AttentionArgs& args, Stream stream) {
  if (args.pages.shape.head_dim > kChunk) {
    AttentionArgs rows = args;
    rows.span_rows = 1;
    return attend_wide_heads(rows, stream);
  }
  const Status status = attend_pages_of(args, stream);
  if (status != kSuccess) return status;
  const int warps = int(divide_up(args.pages.shape.head_dim, kMergeColumns));
  return launch(merge_pages_kernel, dim3(args.row_count, args.heads), dim3(warps * kWarpSize), 0,
                stream, args);
}

}  // namespace sinkstream::cuda
