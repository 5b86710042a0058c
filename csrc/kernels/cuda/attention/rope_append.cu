#include "kernels/cuda/attention/rope_append.h"

#include <cfloat>

#include "common/divide_up.h"
#include "kernels/cuda/attention/find_page.cuh"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/sum_splits.cuh"

namespace sinkstream::cuda {

namespace {

constexpr int kWarps = 4;  // per block; a warp handles one head of one row
constexpr int kStatisticsThreads = 256;

// Heads of a row in the order of its linear map.
enum class Part { kQuery, kKey, kValue };

__device__ inline double warp_sum(double x) {
  for (int lane = kWarpSize / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(kWarp, x, lane);
  return x;
}

__device__ inline float warp_max(float x) {
  for (int lane = kWarpSize / 2; lane > 0; lane /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kWarp, x, lane));
  }
  return x;
}

// Four numbers of a row of the map's output, with bias and clip.
__device__ inline float4 load4(const RopeAppendArgs& args, int64_t row, int64_t column) {
  float4 x = sum_of_splits4(args.qkv, row, column);
  if (args.bias != nullptr) {
    const float* bias = args.bias + column;
    x = make_float4(x.x + bias[0], x.y + bias[1], x.z + bias[2], x.w + bias[3]);
  }
  if (args.clip > 0) {
    const auto clipped = [&](float y) {  // NaN stays NaN
      return y > args.clip ? args.clip : y < -args.clip ? -args.clip : y;
    };
    x = make_float4(clipped(x.x), clipped(x.y), clipped(x.z), clipped(x.w));
  }
  return x;
}

// What numbers are normalized with, in double like the reference: factor · (x − mean).
struct NormStatistics {
  double mean;
  double factor;
};

__device__ inline NormStatistics statistics_of(const RopeAppendArgs& args, const float* head,
                                               int head_dim, int lane) {
  NormStatistics found = {0, 0};
  if (args.norm_kind == NormKind::kLayer) {
    double sum = 0;
    for (int d = lane; d < head_dim; d += kWarpSize) sum += head[d];
    found.mean = warp_sum(sum) / head_dim;
  }
  double squares = 0;
  for (int d = lane; d < head_dim; d += kWarpSize) {
    squares += (head[d] - found.mean) * (head[d] - found.mean);
  }
  found.factor = 1 / sqrt(warp_sum(squares) / head_dim + double{args.norm_eps});
  return found;
}

// Head h of the queries or of the keys, in place.
__device__ inline void normalize(const RopeAppendArgs& args, Part part, int64_t row, int h,
                                 float* head, int lane) {
  const NormWeights& norm = part == Part::kQuery ? args.query_norm : args.key_norm;
  if (norm.weight == nullptr) return;
  const int head_dim = int(args.pages.shape.head_dim);
  NormStatistics statistics;
  int64_t first = 0;  // of the weights
  if (args.norm_extent == NormExtent::kAllHeads) {
    const double* known = args.scratch + (2 * row + int(part)) * 2;
    statistics = {known[0], known[1]};
    first = int64_t{h} * head_dim;
  } else {
    statistics = statistics_of(args, head, head_dim, lane);
  }
  for (int d = lane; d < head_dim; d += kWarpSize) {
    const double bias = norm.bias == nullptr ? 0 : norm.bias[first + d];
    const double centered = head[d] - statistics.mean;
    head[d] = float(centered * statistics.factor * norm.weight[first + d] + bias);
  }
  __syncwarp();
}

// What a token's queries are multiplied with.
__device__ inline float query_factor(const RopeAppendArgs& args, const TokenRow& token) {
  if (args.temperature == 0) return 1;
  const int64_t steps = token.rank / args.temperature_length;
  return float(1 + double{args.temperature} * log1p(double(steps)));
}

// The rotation of reference/rotate.h, bit for bit: products of floats are exact in double, so
// fusing one with the sum changes nothing.
__device__ inline void rotate(const Rotation& rotation, int64_t row, const float* head, float* to,
                              int head_dim, int lane) {
  const int pairs = int(rotation.rotary_dim / 2);
  const bool half = rotation.pairing == Pairing::kHalf;
  for (int d = lane; d < pairs; d += kWarpSize) {
    const int first = half ? d : 2 * d, second = half ? d + pairs : 2 * d + 1;
    const double cos = rotation.cos[row * pairs + d], sin = rotation.sin[row * pairs + d];
    const double x = head[first], y = head[second];
    to[first] = float(x * cos - y * sin);
    to[second] = float(y * cos + x * sin);
  }
  for (int d = 2 * pairs + lane; d < head_dim; d += kWarpSize) to[d] = head[d];
  __syncwarp();
}

// Rounds `factor` times the numbers to 16 bits, two per lane.
template <typename T>
__device__ inline void write_rounded(const float* numbers, float factor, void* to, int head_dim,
                                     int lane) {
  for (int word = lane; word < head_dim / 2; word += kWarpSize) {
    static_cast<uint32_t*>(to)[word] =
        pack<T>(numbers[2 * word] * factor, numbers[2 * word + 1] * factor);
  }
}

// Note: [Int8] of kernels/page.h.
__device__ inline void write_codes(const float* numbers, int8_t* codes, float* scale_at,
                                   int head_dim, int lane) {
  float largest = 0;
  bool is_finite = true;
  for (int d = lane; d < head_dim; d += kWarpSize) {
    is_finite = is_finite && fabsf(numbers[d]) <= FLT_MAX;  // false for NaN
    largest = fmaxf(largest, fabsf(numbers[d]));
  }
  is_finite = __all_sync(kWarp, is_finite);
  float scale = warp_max(largest) / 127;
  if (scale < FLT_MIN) scale = 0;
  if (!is_finite) scale = nanf("");
  if (lane == 0) *scale_at = scale;
  for (int d = lane; d < head_dim; d += kWarpSize) {
    codes[d] = scale > 0 ? int8_t(rintf(numbers[d] / scale)) : int8_t(0);
  }
}

// A token's slot.
struct PageSlot {
  std::byte* page;
  int64_t row;  // of the page
};

__device__ inline PageSlot slot_of(const Pages& pages, const TokenRow& token) {
  const SequencePages& sequence = pages.sequences[token.sequence];
  if (token.index < sequence.sinks) {
    return {page_at(pages, sequence, token.index / kPageRows), token.index % kPageRows};
  }
  const int64_t i = token.index - sequence.sinks;
  return {window_page(pages, sequence, i / kPageRows), i % kPageRows};
}

// T: the type of a page's numbers.
template <typename T>
__device__ inline void write_to_page(const RopeAppendArgs& args, const TokenRow& token, Part part,
                                     int kv_head, const float* numbers, int lane) {
  const PageShape& shape = args.pages.shape;
  const PageSlot slot = slot_of(args.pages, token);
  std::byte* half =
      slot.page + (part == Part::kKey ? shape.key_offset(kv_head) : shape.value_offset(kv_head));
  T* at = reinterpret_cast<T*>(half) + slot.row * shape.head_dim;
  if constexpr (sizeof(T) == 1) {
    float* scale = reinterpret_cast<float*>(half + shape.scale_offset(slot.row));
    write_codes(numbers, at, scale, int(shape.head_dim), lane);
  } else {
    write_rounded<T>(numbers, 1, at, int(shape.head_dim), lane);
  }
}

// Mean and factor of all query heads (blockIdx.y = 0) or of all key heads of a row, to the scratch.
__global__ void __launch_bounds__(kStatisticsThreads) norm_statistics_kernel(RopeAppendArgs args) {
  SHARED(double, sums, [2][kStatisticsThreads / kWarpSize]);
  wait_for_previous();
  const int64_t row = blockIdx.x;
  if (args.tokens[row].sequence < 0) return;
  const int64_t head_dim = args.pages.shape.head_dim;
  const int64_t begin = blockIdx.y == 0 ? 0 : args.heads * head_dim;
  const int64_t count = (blockIdx.y == 0 ? args.heads : args.pages.shape.kv_heads) * head_dim;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;

  // Σ (x − mean)^power over the row; each call has its own part of `sums`.
  const auto sum_of_row = [&](double mean, int power) {
    double sum = 0;
    for (int64_t i = 4 * threadIdx.x; i < count; i += 4 * kStatisticsThreads) {
      const float4 four = load4(args, row, begin + i);
      for (const float x : {four.x, four.y, four.z, four.w}) {
        sum += power == 1 ? double{x} : (x - mean) * (x - mean);
      }
    }
    sum = warp_sum(sum);
    if (lane == 0) sums[power - 1][warp] = sum;
    __syncthreads();
    sum = 0;
    for (const double of_warp : sums[power - 1]) sum += of_warp;
    return sum;
  };
  NormStatistics found = {0, 0};
  if (args.norm_kind == NormKind::kLayer) found.mean = sum_of_row(0, 1) / double(count);
  found.factor = 1 / sqrt(sum_of_row(found.mean, 2) / double(count) + double{args.norm_eps});
  if (threadIdx.x == 0) {
    double* to = args.scratch + (2 * row + blockIdx.y) * 2;
    to[0] = found.mean;
    to[1] = found.factor;
  }
}

// Note: [One head, one warp]
// A head stays in shared memory between its steps, because lanes divide it differently to load it,
// to rotate its pairs and to round it. Rotations go from `head` to `rotated`.
template <typename T, typename QueryT>
__global__ void __launch_bounds__(kWarps* kWarpSize) rope_append_kernel(RopeAppendArgs args) {
  DYNAMIC_SHARED(float, heads_of_block);  // [kWarps][2][head_dim]
  wait_for_previous();
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int64_t row = blockIdx.x;
  const int h = int(blockIdx.y) * kWarps + warp;
  const int kv_heads = int(args.pages.shape.kv_heads), head_dim = int(args.pages.shape.head_dim);
  const TokenRow token = args.tokens[row];
  if (token.sequence < 0 || h >= args.heads + 2 * kv_heads) return;
  float* const head = heads_of_block + 2 * warp * head_dim;
  float* const rotated = head + head_dim;

  for (int d = 4 * lane; d < head_dim; d += 4 * kWarpSize) {
    *reinterpret_cast<float4*>(head + d) = load4(args, row, int64_t{h} * head_dim + d);
  }
  __syncwarp();

  if (h < args.heads) {
    normalize(args, Part::kQuery, row, h, head, lane);
    const float factor = query_factor(args, token);
    const int64_t to = (row * args.heads + h) * head_dim;
    rotate(args.by_index, row, head, rotated, head_dim, lane);
    write_rounded<QueryT>(rotated, factor, static_cast<QueryT*>(args.query_window) + to, head_dim,
                          lane);
    __syncwarp();
    rotate(args.by_rank, row, head, rotated, head_dim, lane);
    write_rounded<QueryT>(rotated, factor, static_cast<QueryT*>(args.query_sink) + to, head_dim,
                          lane);
  } else if (h < args.heads + kv_heads) {
    normalize(args, Part::kKey, row, h - args.heads, head, lane);
    rotate(args.by_index, row, head, rotated, head_dim, lane);
    write_to_page<T>(args, token, Part::kKey, h - args.heads, rotated, lane);
  } else {
    write_to_page<T>(args, token, Part::kValue, h - args.heads - kv_heads, head, lane);
  }
}

template <typename T, typename QueryT>
Status append_heads(const RopeAppendArgs& args, Stream stream) {
  const int64_t heads = args.heads + 2 * args.pages.shape.kv_heads;
  return launch(rope_append_kernel<T, QueryT>,
                dim3(unsigned(args.rows), unsigned(divide_up(heads, kWarps))),
                dim3(kWarps * kWarpSize),
                size_t{2} * kWarps * args.pages.shape.head_dim * sizeof(float), stream, args);
}

}  // namespace

Status rope_append(const RopeAppendArgs& args, Stream stream) {
  const bool has_norm = args.query_norm.weight != nullptr || args.key_norm.weight != nullptr;
  if (has_norm && args.norm_extent == NormExtent::kAllHeads) {
    const Status status = launch(norm_statistics_kernel, dim3(unsigned(args.rows), 2),
                                 dim3(kStatisticsThreads), 0, stream, args);
    if (status != kSuccess) return status;
  }
  switch (args.pages.shape.type) {
    case DType::kFloat16: return append_heads<f16, f16>(args, stream);
    case DType::kInt8: return append_heads<int8_t, bf16>(args, stream);
    default: return append_heads<bf16, bf16>(args, stream);
  }
}

}  // namespace sinkstream::cuda
