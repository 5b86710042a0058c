#include "common/divide_up.h"
#include "kernels/cuda/attention/tile.cuh"
#include "kernels/cuda/attention/wide_heads.h"

namespace sinkstream::cuda {
namespace {

constexpr int kPageWarps = 4;                      // of a block: they share a page
constexpr int kMostBlocks = 5;                     // at the same time on a multiprocessor
constexpr int kWarpKeys = kPageRows / kPageWarps;  // whose scores a warp computes
constexpr int kWarpColumns = 16;                   // of values that it multiplies at once
constexpr int kScorePitch = kPageRows + 8;         // so that four rows are in different banks
constexpr int kMergeColumns = 64;                  // of a warp that merges, two per lane

// Of the heads of a key head.
constexpr int tiles_of(const AttentionArgs& args) {
  return int(divide_up(args.heads / int(args.pages.shape.kv_heads), kTileRows));
}

// One head's result for one page: sums, then m and l.
struct PageResult {
  float* sums;  // [head_dim]
  SoftmaxState* state;
};

// For a page of Note [Live pages]. Scratch holds [heads][page_capacity] results.
__device__ inline PageResult result_of(const AttentionArgs& args, int head, int page) {
  const int64_t entry = int64_t{head} * args.page_capacity + page;
  const int64_t entries = int64_t{args.heads} * args.page_capacity;
  const int64_t head_dim = args.pages.shape.head_dim;
  return {args.scratch + entry * head_dim,
          reinterpret_cast<SoftmaxState*>(args.scratch + entries * head_dim) + entry};
}

// The row of a page of Note [Live pages]. Called by all lanes of a warp.
__device__ inline int row_of(const AttentionArgs& args, int page) {
  const int lane = threadIdx.x % kWarpSize, begin = args.page_begins[0] + page;
  int begun = 0;  // rows whose pages begin at or before this one
  for (int first = 0; first < args.row_count; first += kWarpSize) {
    const int row = first + lane;
    const bool has_begun = row < args.row_count && args.page_begins[row] <= begin;
    const unsigned votes = __ballot_sync(kWarp, has_begun);
    begun += __popc(votes);
    if (votes != kWarp) break;
  }
  return begun - 1;
}

// The shared memory of a block: each query's 64 scores after what a tile needs.
template <typename Cache>
constexpr size_t scores_offset(int tiles, int head_dim) {
  return TileMemory<Cache>::bytes(tiles, head_dim);
}
template <typename Cache>
constexpr size_t shared_bytes(int tiles, int head_dim) {
  return scores_offset<Cache>(tiles, head_dim) +
         sizeof(float) * size_t(tiles) * kTileRows * kScorePitch;
}

// A block takes one page of one key head after another; how many are live is known only now. Its
// warps share the keys, pass the scores to each other, and share the columns of the values, so each
// sum has the same terms in the same order as if one warp added all.
template <typename Cache, bool kBent, int kQueries>
__global__ void __launch_bounds__(kPageWarps* kWarpSize, kMostBlocks)
    attend_pages_kernel(AttentionArgs args) {
  DYNAMIC_SHARED(unsigned char, shared);
  wait_for_previous();
  const int head_dim = int(args.pages.shape.head_dim), kv_heads = int(args.pages.shape.kv_heads);
  const int group = args.heads / kv_heads, tiles = tiles_of(args);
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const TileMemory<Cache> memory(shared, tiles, head_dim);
  float* const score_rows =
      reinterpret_cast<float*>(shared + scores_offset<Cache>(tiles, head_dim));
  const int count = (args.page_begins[args.row_count] - args.page_begins[0]) * kv_heads;

  for (int work = blockIdx.x; work < count; work += gridDim.x) {
    const int live_page = work / kv_heads, kv_head = work % kv_heads;
    const int row_index = row_of(args, live_page);
    const TokenRow row = args.rows[row_index];
    const SequencePages& sequence = args.pages.sequences[row.sequence];
    const HeadPage page =
        head_page(args.pages, sequence, seen_pages(sequence, row.first, row.index),
                  live_page - (args.page_begins[row_index] - args.page_begins[0]), kv_head);
    const RowRange rows = seen_rows(sequence, page, row.first, row.index);

    __syncthreads();  // the last page has been read
    stage_half<Cache>(memory.keys, page.keys, head_dim, rows);
    copy_async_commit();
    stage_half<Cache>(memory.values, page.values, head_dim, rows);
    copy_async_commit();
    for (int tile = warp; tile < tiles; tile += kPageWarps) {
      stage_queries(memory.queries + tile * kTileRows * padded(head_dim),
                    page.is_sink ? args.query_sink : args.query_window, args, row_index, kv_head,
                    tile * kTileRows, group);
    }

    // The lane's queries see the same rows in every tile. Past the last head there is none.
    TileView view;
    view.rows[0] = view.rows[1] = rows;
    if constexpr (kBent) {
      view.distance[0] = view.distance[1] =
          float((page.is_sink ? row.rank : row.index) - page.base);
    }
    const auto head_of = [&](int tile, int q) { return tile * kTileRows + lane / 4 + 8 * q; };
    const auto scores_of = [&](int tile, int q, int key) {
      return reinterpret_cast<float2*>(score_rows + head_of(tile, q) * kScorePitch + key +
                                       2 * (lane % 4));
    };

    const Element<Cache>* keys = wait_for_half<1>(memory, memory.keys, head_dim);
    for (int tile = 0; tile < tiles; ++tile) {
      if constexpr (kBent) {
#pragma unroll
        for (int q = 0; q < kQueries; ++q) {
          view.slope[q] = args.slopes != nullptr && head_of(tile, q) < group
                              ? args.slopes[kv_head * group + head_of(tile, q)]
                              : 0;
        }
      }
      float scores[kWarpKeys / 8][4];
      clear(scores);
      add_products(scores, memory.queries + tile * kTileRows * padded(head_dim), padded(head_dim),
                   keys + warp * kWarpKeys * padded(head_dim), padded(head_dim), head_dim);
      finish_scores<Cache, kBent, kQueries>(scores, warp * kWarpKeys, view, args,
                                            scales_of(memory.keys, head_dim));
#pragma unroll
      for (int j = 0; j < kWarpKeys / 8; ++j) {
#pragma unroll
        for (int q = 0; q < kQueries; ++q) {
          *scores_of(tile, q, warp * kWarpKeys + 8 * j) =
              make_float2(scores[j][2 * q], scores[j][2 * q + 1]);
        }
      }
    }
    // A barrier: all scores have been written.
    const Element<Cache>* values = wait_for_half<0>(memory, memory.values, head_dim);
    for (int tile = 0; tile < tiles; ++tile) {
      float scores[8][4];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int q = 0; q < kQueries; ++q) {
          const float2 two = *scores_of(tile, q, 8 * j);
          scores[j][2 * q] = two.x;
          scores[j][2 * q + 1] = two.y;
        }
      }
      SoftmaxState states[2];
      uint32_t weights[4][4];
      softmax_weights<Cache, kQueries>(scores, view, scales_of(memory.values, head_dim), states,
                                       weights);
      for (int column = warp * kWarpColumns; column < head_dim;
           column += kPageWarps * kWarpColumns) {
        float sums[kWarpColumns / 8][4];
        multiply_values(sums, weights, values, head_dim, column);
#pragma unroll
        for (int q = 0; q < kQueries; ++q) {
          if (head_of(tile, q) >= group) continue;
          const PageResult to = result_of(args, kv_head * group + head_of(tile, q), live_page);
#pragma unroll
          for (int n = 0; n < kWarpColumns / 8; ++n) {
            *reinterpret_cast<float2*>(to.sums + column + 8 * n + 2 * (lane % 4)) =
                make_float2(sums[n][2 * q], sums[n][2 * q + 1]);
          }
          if (column == 0 && lane % 4 == 0) *to.state = states[q];
        }
      }
    }
  }
}

// Block (row, head); a warp merges 64 columns. Pages are merged one after another, but their
// factors depend only on the largest m so far, which all lanes find in parallel.
__global__ void __launch_bounds__(4 * kWarpSize) merge_pages_kernel(AttentionArgs args) {
  wait_for_previous();
  const int first_page = args.page_begins[blockIdx.x] - args.page_begins[0];
  const int count = args.page_begins[blockIdx.x + 1] - args.page_begins[blockIdx.x];
  if (count == 0) return;  // an idle row
  const int head = blockIdx.y, lane = threadIdx.x % kWarpSize;
  const int64_t head_dim = args.pages.shape.head_dim;
  const int column = threadIdx.x / kWarpSize * kMergeColumns + 2 * lane;
  const bool has_column = column < head_dim;

  SoftmaxState state = {-INFINITY, 0};
  float2 sums = make_float2(0, 0);
  for (int begin = 0; begin < count; begin += kWarpSize) {
    // The lane's page: its state, and the largest m up to it.
    SoftmaxState own = {-INFINITY, 0};
    if (begin + lane < count) own = *result_of(args, head, first_page + begin + lane).state;
    float largest = fmaxf(state.largest, own.largest);
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const float other = __shfl_sync(kWarp, largest, lane < distance ? lane : lane - distance);
      largest = fmaxf(largest, other);
    }
    const float before = __shfl_sync(kWarp, largest, lane == 0 ? 0 : lane - 1);
    const Factors own_factors = factors_of(lane == 0 ? state.largest : before, own.largest);

    const int pages = count - begin < kWarpSize ? count - begin : kWarpSize;
    float2 added[kWarpSize];  // loaded together
#pragma unroll
    for (int i = 0; i < kWarpSize; ++i) {
      added[i] = make_float2(0, 0);
      if (has_column && i < pages) {
        const PageResult from = result_of(args, head, first_page + begin + i);
        added[i] = *reinterpret_cast<const float2*>(from.sums + column);
      }
    }
#pragma unroll
    for (int i = 0; i < kWarpSize; ++i) {
      if (i >= pages) break;
      const Factors factors = {__shfl_sync(kWarp, own_factors.before, i),
                               __shfl_sync(kWarp, own_factors.added, i)};
      state.total = merge(state.total, __shfl_sync(kWarp, own.total, i), factors);
      sums.x = merge(sums.x, added[i].x, factors);
      sums.y = merge(sums.y, added[i].y, factors);
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
  const size_t bytes = shared_bytes<Cache>(tiles_of(args), head_dim);
  const int64_t most = int64_t{args.page_capacity} * kv_heads;
  const int64_t together = blocks_together(bytes, kMostBlocks);
  using Kernel = void (*)(AttentionArgs);
  constexpr Kernel kKernels[2][2] = {
      {attend_pages_kernel<Cache, false, 1>, attend_pages_kernel<Cache, false, 2>},
      {attend_pages_kernel<Cache, true, 1>, attend_pages_kernel<Cache, true, 2>}};
  const Kernel kernel = kKernels[bends_scores(args)][args.heads / kv_heads > kTileRows / 2];
  const Status status = launch(kernel, dim3(unsigned(most < together ? most : together)),
                               dim3(kPageWarps * kWarpSize), bytes, stream, args);
  if (status != kSuccess) return status;
  const int warps = int(divide_up(head_dim, kMergeColumns));
  return launch(merge_pages_kernel, dim3(args.row_count, args.heads), dim3(warps * kWarpSize), 0,
                stream, args);
}

// Whether a block has enough shared memory for all heads of a key head.
template <typename Cache>
bool has_room(const AttentionArgs& args) {
  return shared_bytes<Cache>(tiles_of(args), int(args.pages.shape.head_dim)) <= shared_limit();
}

template <typename Cache>
Status decode(const AttentionArgs& args, Stream stream) {
  if (args.pages.shape.head_dim <= kChunk && has_room<Cache>(args)) {
    return attend_pages<Cache>(args, stream);
  }
  AttentionArgs rows = args;
  rows.span_rows = 1;
  return attention_prefill(rows, stream);
}

}  // namespace

Status attention_decode(const AttentionArgs& args, Stream stream) {
  switch (args.pages.shape.type) {
    case DType::kFloat16: return decode<f16>(args, stream);
    case DType::kInt8: return decode<int8_t>(args, stream);
    default: return decode<bf16>(args, stream);
  }
}

}  // namespace sinkstream::cuda
