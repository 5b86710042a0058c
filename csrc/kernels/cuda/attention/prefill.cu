#include "common/divide_up.h"
#include "kernels/cuda/attention/walk.cuh"
#include "kernels/cuda/attention/wide_heads.h"

namespace sinkstream::cuda {
namespace {

// Block (tiles of a span, key head): each warp takes 16 pairs of a span, where pair p is head p %
// group of row p / group. The next page's keys are copied while values are multiplied, its values
// while keys are.
template <typename Cache, int kMostDim, bool kBent>
__global__ void __launch_bounds__(kMostWalkWarps* kWarpSize, kMostDim == 64 ? 3 : 2)
    walk_pages_kernel(AttentionArgs args) {
  DYNAMIC_SHARED(unsigned char, shared);
  wait_for_previous();
  const int head_dim = int(args.pages.shape.head_dim);
  const int kv_head = blockIdx.y, group = args.heads / int(args.pages.shape.kv_heads);
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;

  const int pairs = args.span_rows * group;
  const int warps = warps_with_tiles(pairs, head_dim);
  const bool has_tile = warp < warps;
  const int blocks = (pairs + warps * kTileRows - 1) / (warps * kTileRows);  // of a span
  const int64_t span = blockIdx.x / blocks * int64_t{args.span_rows};        // its first row
  const int block_begin = int(blockIdx.x) % blocks * warps * kTileRows;
  const int block_end =
      block_begin + warps * kTileRows < pairs ? block_begin + warps * kTileRows : pairs;
  const TokenRow* rows = args.rows + span;

  const int oldest = block_begin / group;
  int youngest = (block_end - 1) / group;
  while (youngest >= oldest && rows[youngest].sequence < 0) --youngest;
  if (youngest < oldest) return;
  const int64_t first = rows[oldest].first, index = rows[youngest].index;
  const SequencePages& sequence = args.pages.sequences[rows[oldest].sequence];
  const SeenPages seen = seen_pages(sequence, first, index);

  // The lane's queries. Past the block's last token a lane has none and sees no rows.
  const int begin = block_begin + warp * kTileRows;
  const int end = youngest * group + group < block_end ? youngest * group + group : block_end;
  const auto own_pair = [&](int q) { return begin + lane / 4 + 8 * q; };
  int own_rows[2];  // −1: no query
  TileView view;
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    own_rows[q] = own_pair(q) < end ? own_pair(q) / group : -1;
    if (kBent && own_rows[q] >= 0 && args.slopes != nullptr) {
      view.slope[q] = args.slopes[kv_head * group + own_pair(q) % group];
    }
  }

  const TileMemory<Cache> memory(shared, warps, head_dim);
  Element<Cache>* const queries = memory.queries + warp * kTileRows * padded(head_dim);
  RunningSoftmax<kMostDim> running;
#pragma unroll
  for (SoftmaxState& state : running.states) state = {-INFINITY, 0};
#pragma unroll
  for (auto& sum : running.sums) sum[0] = sum[1] = sum[2] = sum[3] = 0;

  HeadPage page = head_page(args.pages, sequence, seen, 0, kv_head);
  RowRange staged = seen_rows(sequence, page, first, index);
  stage_half<Cache>(memory.keys, page.keys, head_dim, staged);
  copy_async_commit();
  stage_half<Cache>(memory.values, page.values, head_dim, staged);
  copy_async_commit();
  for (int n = 0; n < seen.count(); ++n) {
    if (has_tile && (n == 0 || n == seen.sink_pages)) {
      stage_queries(queries, page.is_sink ? args.query_sink : args.query_window, args, span,
                    kv_head, begin, end);
    }
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      view.rows[q] = {0, 0};
      view.distance[q] = 0;
      if (own_rows[q] < 0) continue;
      const TokenRow& row = rows[own_rows[q]];
      view.rows[q] = seen_rows(sequence, page, row.first, row.index);
      if (kBent && args.slopes != nullptr) {
        view.distance[q] = float((page.is_sink ? row.rank : row.index) - page.base);
      }
    }
    float scores[8][4];
    const Element<Cache>* keys = wait_for_half<1>(memory, memory.keys, head_dim);
    if (has_tile) multiply_keys(scores, queries, keys, head_dim);
    const Element<Cache>* values = wait_for_half<0>(memory, memory.values, head_dim);
    SoftmaxState states[2];
    uint32_t weights[4][4];
    if (has_tile) {
      finish_scores<Cache, kBent>(scores, 0, view, args, scales_of(memory.keys, head_dim));
      softmax_weights<Cache>(scores, view, scales_of(memory.values, head_dim), states, weights);
    }
    if constexpr (kHasScales<Cache>) __syncthreads();  // the keys' scales have been read

    const RowRange now = staged;
    const bool is_last = n + 1 == seen.count();
    if (!is_last) {
      page = head_page(args.pages, sequence, seen, n + 1, kv_head);
      staged = seen_rows(sequence, page, first, index);
      stage_half<Cache>(memory.keys, page.keys, head_dim, staged);
      copy_async_commit();
    }
    if (has_tile) merge_page(running, states, weights, values, head_dim, now, view);
    if (!is_last) {
      __syncthreads();  // the values have been read
      stage_half<Cache>(memory.values, page.values, head_dim, staged);
      copy_async_commit();
    }
  }

#pragma unroll
  for (int q = 0; q < 2; ++q) {
    if (own_rows[q] < 0) continue;
    const int head = kv_head * group + own_pair(q) % group;
    Factors factors = {1, 0};
    if (args.sink_logits != nullptr) {
      factors = merge_logit(running.states[q], args.sink_logits[head]);
    }
    uint32_t* out = static_cast<uint32_t*>(args.out) +
                    ((span + own_rows[q]) * args.heads + head) * head_dim / 2 + lane % 4;
#pragma unroll
    for (int n = 0; n < kMostDim / 8; ++n) {
      if (8 * n >= head_dim) break;
      const float x = merge(running.sums[n][2 * q], 0, factors);
      const float y = merge(running.sums[n][2 * q + 1], 0, factors);
      out[4 * n] = pack<bf16>(x / running.states[q].total, y / running.states[q].total);
    }
  }
}

template <typename Cache, int kMostDim>
Status walk_pages(const AttentionArgs& args, Stream stream) {
  const int kv_heads = int(args.pages.shape.kv_heads), head_dim = int(args.pages.shape.head_dim);
  const int pairs = args.span_rows * (args.heads / kv_heads);
  const int tiles = int(divide_up(pairs, kTileRows)), warps = warps_with_tiles(pairs, head_dim);
  const int blocks = args.row_count / args.span_rows * int(divide_up(tiles, warps));
  const int all_warps = warps > kLeastWalkWarps ? warps : kLeastWalkWarps;
  const auto kernel = bends_scores(args) ? walk_pages_kernel<Cache, kMostDim, true>
                                         : walk_pages_kernel<Cache, kMostDim, false>;
  return launch(kernel, dim3(blocks, kv_heads), dim3(all_warps * kWarpSize),
                TileMemory<Cache>::bytes(warps, head_dim), stream, args);
}

template <typename Cache>
Status walk_pages_of(const AttentionArgs& args, Stream stream) {
  if (args.pages.shape.head_dim <= 64) return walk_pages<Cache, 64>(args, stream);
  if (args.pages.shape.head_dim <= 128) return walk_pages<Cache, 128>(args, stream);
  return walk_pages<Cache, 256>(args, stream);
}

}  // namespace

Status attention_prefill(const AttentionArgs& args, Stream stream) {
  if (args.pages.shape.head_dim > kChunk) return attend_wide_heads(args, stream);
  switch (args.pages.shape.type) {
    case DType::kFloat16: return walk_pages_of<f16>(args, stream);
    case DType::kInt8: return walk_pages_of<int8_t>(args, stream);
    default: return walk_pages_of<bf16>(args, stream);
  }
}

}  // namespace sinkstream::cuda
