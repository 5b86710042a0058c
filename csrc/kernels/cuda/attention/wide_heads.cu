#include "kernels/cuda/attention/wide_heads.h"

#include "kernels/cuda/attention/walk.cuh"

namespace sinkstream::cuda {
namespace {

// Blocks of all spans, for one key head.
constexpr int walk_blocks(const AttentionArgs& args) {
  const int head_dim = int(args.pages.shape.head_dim);
  const int pairs = args.span_rows * (args.heads / int(args.pages.shape.kv_heads));
  const int tiles = (pairs + kTileRows - 1) / kTileRows;
  return args.row_count / args.span_rows * int(divide_up(tiles, warps_with_tiles(pairs, head_dim)));
}

// A block takes 16 pairs of a span for each of its warps, where pair p is head p % group of row
// p / group, for one key head. The kernel of prefill.cu has the same as local variables: with this
// struct and its functions it spills 180 to 190 bytes more per thread (sm_90a).
struct Walk {
  const TokenRow* rows;  // of the span
  int64_t span;          // its first row
  int kv_head;
  int group;             // heads that share the key head
  int warps;             // those with a tile
  bool has_tile;         // whether this warp is one
  bool is_idle;          // no query: the block has nothing to do
  int64_t first, index;  // of the oldest and of the newest token
  int32_t sequence;
  int begin, end;   // the warp's pairs; none past the newest token
  int own_rows[2];  // of the lane's queries, in the span; −1: no query

  // `block`: among the blocks of all spans of a key head.
  __device__ Walk(const AttentionArgs& args, int block) : kv_head(blockIdx.y) {
    const int head_dim = int(args.pages.shape.head_dim), warp = threadIdx.x / kWarpSize;
    group = args.heads / int(args.pages.shape.kv_heads);
    const int pairs = args.span_rows * group;
    warps = warps_with_tiles(pairs, head_dim);
    has_tile = warp < warps;
    const int blocks = (pairs + warps * kTileRows - 1) / (warps * kTileRows);  // of a span
    span = block / blocks * int64_t{args.span_rows};
    const int block_begin = block % blocks * warps * kTileRows;
    const int block_end =
        block_begin + warps * kTileRows < pairs ? block_begin + warps * kTileRows : pairs;
    rows = args.rows + span;

    const int oldest = block_begin / group;
    int youngest = (block_end - 1) / group;
    while (youngest >= oldest && rows[youngest].sequence < 0) --youngest;
    is_idle = youngest < oldest;
    if (is_idle) return;
    first = rows[oldest].first;
    index = rows[youngest].index;
    sequence = rows[oldest].sequence;
    begin = block_begin + warp * kTileRows;
    end = youngest * group + group < block_end ? youngest * group + group : block_end;
#pragma unroll
    for (int q = 0; q < 2; ++q) own_rows[q] = own_pair(q) < end ? own_pair(q) / group : -1;
  }

  __device__ int own_pair(int q) const { return begin + int(threadIdx.x) % kWarpSize / 4 + 8 * q; }
  __device__ int own_head(int q) const { return kv_head * group + own_pair(q) % group; }
};

__device__ inline void set_slopes(TileView& view, const Walk& walk, const AttentionArgs& args) {
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    if (walk.own_rows[q] >= 0 && args.slopes != nullptr) {
      view.slope[q] = args.slopes[walk.own_head(q)];
    }
  }
}

// What the lane's queries see of a page.
__device__ inline void look_at(TileView& view, const Walk& walk, const AttentionArgs& args,
                               const SequencePages& sequence, const HeadPage& page) {
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    view.rows[q] = {0, 0};
    view.distance[q] = 0;
    if (walk.own_rows[q] < 0) continue;
    const TokenRow& row = walk.rows[walk.own_rows[q]];
    view.rows[q] = seen_rows(sequence, page, row.first, row.index);
    if (args.slopes != nullptr) {
      view.distance[q] = float((page.is_sink ? row.rank : row.index) - page.base);
    }
  }
}

__device__ inline void start(RunningSoftmax<kChunk>& running) {
#pragma unroll
  for (SoftmaxState& state : running.states) state = {-INFINITY, 0};
#pragma unroll
  for (auto& sum : running.sums) sum[0] = sum[1] = sum[2] = sum[3] = 0;
}

// Writes the lane's results, `columns` from `column` on.
__device__ inline void write_results(RunningSoftmax<kChunk>& running, const Walk& walk,
                                     const AttentionArgs& args, int column, int columns) {
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    if (walk.own_rows[q] < 0) continue;
    const int head = walk.own_head(q);
    Factors factors = {1, 0};
    if (args.sink_logits != nullptr) {
      factors = merge_logit(running.states[q], args.sink_logits[head]);
    }
    const int64_t at =
        ((walk.span + walk.own_rows[q]) * args.heads + head) * args.pages.shape.head_dim + column;
    uint32_t* out = static_cast<uint32_t*>(args.out) + at / 2 + int(threadIdx.x) % kWarpSize % 4;
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      if (8 * n >= columns) break;
      const float x = merge(running.sums[n][2 * q], 0, factors);
      const float y = merge(running.sums[n][2 * q + 1], 0, factors);
      out[4 * n] = pack<bf16>(x / running.states[q].total, y / running.states[q].total);
    }
  }
}

// A run of columns of a head.
struct Chunk {
  int begin;
  int width;
};

__device__ inline int chunk_count(int head_dim) { return (head_dim + kChunk - 1) / kChunk; }

__device__ inline Chunk chunk_of(int head_dim, int c) {
  const int begin = c * kChunk;
  return {begin, head_dim - begin < kChunk ? head_dim - begin : kChunk};
}

// The shared memory of a block: less than 99 KiB, which every GPU has.
//
// Note: [Chunks]
// A page needs one load for each chunk of its keys, then one for the block's chunk of its values.
// Loads take turns in two buffers; when one has been read, the load after the next goes there. The
// scales of an int8 page take turns, too, because its values' scales are read after the next load
// has begun.
template <typename Cache>
struct ChunkMemory {
  static constexpr size_t kWideBytes = size_t{2} * kPageRows * padded(kChunk);
  static constexpr size_t kBufferBytes =
      kHasScales<Cache> ? size_t{kPageRows} * kChunk : kWideBytes;
  static constexpr size_t kScalesBytes = kHasScales<Cache> ? kPageRows * sizeof(float) : 0;

  Element<Cache>* queries;  // [warps][16][padded(head_dim)]
  unsigned char* buffers;   // [2]; 16-bit: [64][padded(width)]; int8: codes [64][width]
  unsigned char* scales;    // [2 pages][keys, values][64]
  Element<Cache>* wide;     // int8: [64][padded(width)]

  static constexpr size_t bytes(int warps, int head_dim) {
    return TileMemory<Cache>::query_bytes(warps, head_dim) + 2 * kBufferBytes + 4 * kScalesBytes +
           (kHasScales<Cache> ? kWideBytes : 0);
  }

  __device__ ChunkMemory(unsigned char* memory, int warps, int head_dim)
      : queries(reinterpret_cast<Element<Cache>*>(memory)),
        buffers(memory + TileMemory<Cache>::query_bytes(warps, head_dim)),
        scales(buffers + 2 * kBufferBytes),
        wide(reinterpret_cast<Element<Cache>*>(scales + 4 * kScalesBytes)) {}

  __device__ unsigned char* buffer(int load) const { return buffers + load % 2 * kBufferBytes; }

  __device__ unsigned char* scales_of(int page, bool of_values) const {
    return scales + (2 * (page % 2) + int(of_values)) * kScalesBytes;
  }
};

// Starts to copy a chunk of one head's keys or values, `half`. Rows that are not seen become zeros.
template <typename Cache>
__device__ inline void stage_chunk(unsigned char* to, const std::byte* half, int head_dim,
                                   const Chunk& chunk, RowRange seen) {
  constexpr int kBytes = sizeof(Cache);
  const int pitch = kHasScales<Cache> ? chunk.width : 2 * padded(chunk.width);
  for_each_part(threadIdx.x, blockDim.x, kPageRows, chunk.width * kBytes / 16,
                [&](int row, int part) {
                  unsigned char* target = to + row * pitch + part * 16;
                  if (row >= seen.begin && row < seen.end) {
                    copy_async(target, half + (row * head_dim + chunk.begin) * kBytes + part * 16);
                  } else {
                    *reinterpret_cast<uint4*>(target) = make_uint4(0, 0, 0, 0);
                  }
                });
}

__device__ inline void stage_scales(unsigned char* to, const std::byte* half, int head_dim) {
  for (int part = threadIdx.x; part < int(kPageRows) / 4; part += blockDim.x) {
    copy_async(to + part * 16, half + kPageRows * head_dim + part * 16);
  }
}

// Block (tiles of a span, key head, chunk): the chunk of the results. Every chunk's block computes
// all scores.
template <typename Cache>
__global__ void __launch_bounds__(2 * kWarpSize) walk_chunks_kernel(AttentionArgs args) {
  DYNAMIC_SHARED(unsigned char, shared);
  wait_for_previous();
  const Walk walk(args, int(blockIdx.x));
  if (walk.is_idle) return;
  const int head_dim = int(args.pages.shape.head_dim), chunks = chunk_count(head_dim);
  const Chunk own = chunk_of(head_dim, int(blockIdx.z));
  const SequencePages& sequence = args.pages.sequences[walk.sequence];
  const SeenPages seen = seen_pages(sequence, walk.first, walk.index);
  const ChunkMemory<Cache> memory(shared, walk.warps, head_dim);
  Element<Cache>* const queries =
      memory.queries + int(threadIdx.x) / kWarpSize * kTileRows * padded(head_dim);
  TileView view;
  set_slopes(view, walk, args);
  RunningSoftmax<kChunk> running;
  start(running);

  // The next load: see Note [Chunks]. Past the last one its group is empty.
  int load = 0;
  const auto start_load = [&] {
    const int n = load / (chunks + 1), c = load % (chunks + 1);
    if (n < seen.count()) {
      const HeadPage page = head_page(args.pages, sequence, seen, n, walk.kv_head);
      const RowRange rows = seen_rows(sequence, page, walk.first, walk.index);
      const bool is_keys = c < chunks;
      stage_chunk<Cache>(memory.buffer(load), is_keys ? page.keys : page.values, head_dim,
                         is_keys ? chunk_of(head_dim, c) : own, rows);
      if (kHasScales<Cache> && c == 0) {
        stage_scales(memory.scales_of(n, false), page.keys, head_dim);
        stage_scales(memory.scales_of(n, true), page.values, head_dim);
      }
    }
    copy_async_commit();
    ++load;
  };
  // The oldest of the two loads, as numbers.
  const auto wait_for_load = [&](int width) {
    copy_async_wait<1>();
    __syncthreads();
    unsigned char* const buffer = memory.buffer(load);
    if constexpr (kHasScales<Cache>) {
      widen_half(memory.wide, buffer, width);
      __syncthreads();
      return static_cast<const Element<Cache>*>(memory.wide);
    } else {
      return reinterpret_cast<const Element<Cache>*>(buffer);
    }
  };

  start_load();
  start_load();
  for (int n = 0; n < seen.count(); ++n) {
    const HeadPage page = head_page(args.pages, sequence, seen, n, walk.kv_head);
    if (walk.has_tile && (n == 0 || n == seen.sink_pages)) {
      stage_queries(queries, page.is_sink ? args.query_sink : args.query_window, args, walk.span,
                    walk.kv_head, walk.begin, walk.end);
    }
    look_at(view, walk, args, sequence, page);
    float scores[8][4];
    clear(scores);
    for (int c = 0; c < chunks; ++c) {
      const Chunk chunk = chunk_of(head_dim, c);
      const Element<Cache>* keys = wait_for_load(chunk.width);
      if (walk.has_tile) {
        add_products(scores, queries + chunk.begin, padded(head_dim), keys, padded(chunk.width),
                     chunk.width);
      }
      __syncthreads();  // the keys have been read
      start_load();
    }
    const Element<Cache>* values = wait_for_load(own.width);
    if (walk.has_tile) {
      SoftmaxState states[2];
      uint32_t weights[4][4];
      const auto scales = [&](bool of_values) {
        return reinterpret_cast<const float*>(memory.scales_of(n, of_values));
      };
      finish_scores<Cache, true>(scores, 0, view, args, scales(false));
      softmax_weights<Cache>(scores, view, scales(true), states, weights);
      const RowRange rows = seen_rows(sequence, page, walk.first, walk.index);
      merge_page(running, states, weights, values, own.width, rows, view);
    }
    __syncthreads();  // the values have been read
    start_load();
  }
  write_results(running, walk, args, own.begin, own.width);
}

template <typename Cache>
Status walk_chunks(const AttentionArgs& args, Stream stream) {
  const int kv_heads = int(args.pages.shape.kv_heads), head_dim = int(args.pages.shape.head_dim);
  const int warps = warps_with_tiles(args.span_rows * (args.heads / kv_heads), head_dim);
  const dim3 grid(walk_blocks(args), kv_heads, (head_dim + kChunk - 1) / kChunk);
  return launch(walk_chunks_kernel<Cache>, grid, dim3(2 * kWarpSize),
                ChunkMemory<Cache>::bytes(warps, head_dim), stream, args);
}

}  // namespace

Status attend_wide_heads(const AttentionArgs& args, Stream stream) {
  switch (args.pages.shape.type) {
    case DType::kFloat16: return walk_chunks<f16>(args, stream);
    case DType::kInt8: return walk_chunks<int8_t>(args, stream);
    default: return walk_chunks<bf16>(args, stream);
  }
}

}  // namespace sinkstream::cuda
