#include "model/cuda/weights.h"

#include <algorithm>
#include <initializer_list>
#include <span>

#include "common/carver.h"
#include "common/check.h"
#include "common/divide_up.h"

namespace sinkstream {

namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kPieceRows = 64 * kPanelRows;  // that a thread tiles at a time

// Threads must not share a tile, so a part that begins within one is tiled by one thread.
void tile_part(const PackedMatrix& part, int64_t first_row, std::byte* tiles, ThreadPool* threads) {
  if (threads == nullptr || first_row % cuda::kTileRows != 0) {
    return cuda::tile_rows(part, first_row, tiles);
  }
  threads->run(divide_up(part.rows, kPieceRows), [&](int64_t piece, int) {
    const int64_t row = piece * kPieceRows;
    const PackedMatrix rows = {part.type, std::min(kPieceRows, part.rows - row), part.cols,
                               part.panel(row / kPanelRows)};
    cuda::tile_rows(rows, first_row + row, tiles);
  });
}

// Runs twice: once to count bytes, once to copy.
class Copier {
 public:
  Copier(std::byte* base, const cuda::Runtime& runtime, cuda::Stream stream, ThreadPool* threads)
      : base_(base), carver_(base), runtime_(runtime), stream_(stream), threads_(threads) {}

  int64_t used() const { return carver_.used(); }

  CudaMap map(std::initializer_list<PackedMatrix> parts) {
    CudaMap map;
    for (auto part = parts.begin(); part != parts.end();) {
      const auto end = std::find_if(part, parts.end(), [part](const PackedMatrix& other) {
        return other.type != part->type;
      });
      map.parts.push_back(matrix({part, end}));
      part = end;
    }
    return map;
  }

  // Stacks parts of one type.
  cuda::TiledMatrix matrix(std::span<const PackedMatrix> parts) {
    cuda::TiledMatrix matrix{parts.front().type, 0, parts.front().cols};
    for (const PackedMatrix& part : parts) matrix.rows += part.rows;
    const int64_t bytes = cuda::tiled_bytes(matrix.type, matrix.rows, matrix.cols);
    auto* const place = carver_.take<std::byte>(bytes);
    matrix.tiles = place;
    if (base_ == nullptr) return matrix;
    staged_.assign(bytes, std::byte{0});
    int64_t row = 0;
    for (const PackedMatrix& part : parts) {
      tile_part(part, row, staged_.data(), threads_);
      row += part.rows;
    }
    send(place, staged_.data(), bytes);
    return matrix;
  }

  const float* vector(const float* values, int64_t count) { return vector({values}, {count}); }

  // Concatenates parts. A null part among others becomes zeros; null if all are.
  const float* vector(std::initializer_list<const float*> parts,
                      std::initializer_list<int64_t> counts) {
    if (std::all_of(parts.begin(), parts.end(), [](const float* p) { return p == nullptr; })) {
      return nullptr;
    }
    int64_t total = 0;
    for (const int64_t count : counts) total += count;
    auto* const place = carver_.take<float>(total);
    if (base_ == nullptr) return place;
    std::vector<float> joined;
    joined.reserve(total);
    auto count = counts.begin();
    for (const float* part : parts) {
      if (part == nullptr) {
        joined.insert(joined.end(), *count, 0.0f);
      } else {
        joined.insert(joined.end(), part, part + *count);
      }
      ++count;
    }
    send(place, joined.data(), total * int64_t{sizeof(float)});
    return place;
  }

 private:
  void send(void* to, const void* from, int64_t bytes) {
    cuda::check(runtime_, runtime_.copy(to, from, bytes, stream_), "copying weights");
    cuda::check(runtime_, runtime_.synchronize(stream_), "copying weights");
  }

  std::byte* base_;
  Carver<kAlignment> carver_;
  const cuda::Runtime& runtime_;
  cuda::Stream stream_;
  ThreadPool* threads_;
  std::vector<std::byte> staged_;
};

NormWeights norm(const NormWeights& from, int64_t count, Copier* copier) {
  return {copier->vector(from.weight, count), copier->vector(from.bias, count)};
}

void copy_attention(const LayerWeights& from, const BlockSpec& block, int64_t hidden,
                    Copier* copier, CudaLayerWeights* to) {
  const AttentionSpec& attention = block.attention;
  const int64_t q = attention.query_size(), kv = attention.kv_size();
  const bool is_full = attention.qk_norm == QkNorm::kFull;
  to->attention_norm = norm(from.attention_norm, hidden, copier);
  to->qkv = copier->map({from.q, from.k, from.v});
  to->qkv_bias = copier->vector({from.q_bias, from.k_bias, from.v_bias}, {q, kv, kv});
  to->q_norm = norm(from.q_norm, is_full ? q : attention.head_dim, copier);
  to->k_norm = norm(from.k_norm, is_full ? kv : attention.head_dim, copier);
  to->o = copier->map({from.o});
  to->o_bias = copier->vector(from.o_bias, hidden);
  to->attention_post_norm = norm(from.attention_post_norm, hidden, copier);
}

void copy_mlp(const LayerWeights& from, const BlockSpec& block, int64_t hidden, Copier* copier,
              CudaLayerWeights* to) {
  const int64_t inner = block.mlp.intermediate_size;
  to->mlp_norm = norm(from.mlp_norm, hidden, copier);
  if (block.mlp.gated) {
    to->gate_up = copier->map({from.gate, from.up});
    to->gate_up_bias = copier->vector({from.gate_bias, from.up_bias}, {inner, inner});
  } else {
    to->gate_up = copier->map({from.up});
    to->gate_up_bias = copier->vector(from.up_bias, inner);
  }
  to->down = copier->map({from.down});
  to->down_bias = copier->vector(from.down_bias, hidden);
  to->mlp_post_norm = norm(from.mlp_post_norm, hidden, copier);
}

CudaWeights upload(const DecoderSpec& spec, const DecoderWeights& from, Copier* copier) {
  const int64_t hidden = spec.hidden_size;
  CudaWeights to;
  to.embedding = copier->matrix({&from.embedding, 1});
  to.output = from.output.panels == from.embedding.panels ? CudaMap{{to.embedding}}
                                                          : copier->map({from.output});
  to.final_norm = norm(from.final_norm, hidden, copier);
  std::vector<const float*> slopes;  // of each block
  for (const BlockSpec& block : spec.blocks) {
    const std::vector<float>& of_block = block.attention.slopes;
    slopes.push_back(of_block.empty() ? nullptr
                                      : copier->vector(of_block.data(), std::ssize(of_block)));
  }
  for (int64_t layer = 0; layer < spec.layers(); ++layer) {
    const LayerWeights& its_weights = from.layers[static_cast<size_t>(layer)];
    CudaLayerWeights& copied = to.layers.emplace_back();
    copy_attention(its_weights, spec.block(layer), hidden, copier, &copied);
    copy_mlp(its_weights, spec.block(layer), hidden, copier, &copied);
    copied.slopes = slopes[static_cast<size_t>(spec.block_of_layer[static_cast<size_t>(layer)])];
  }
  to.bytes = copier->used();
  return to;
}

}  // namespace

int64_t CudaMap::rows() const {
  int64_t rows = 0;
  for (const cuda::TiledMatrix& part : parts) rows += part.rows;
  return rows;
}

CudaWeights copy_to_gpu(const DecoderSpec& spec, const DecoderWeights& weights,
                        const cuda::Runtime& runtime, cuda::Stream stream, ThreadPool* threads) {
  Copier counter(nullptr, runtime, stream, threads);
  const int64_t bytes = upload(spec, weights, &counter).bytes;
  const cuda::MemoryBlock block = cuda::allocate_device(runtime, bytes, "the weights");
  Copier copier(block.get(), runtime, stream, threads);
  CudaWeights copied = upload(spec, weights, &copier);
  copied.memory = block;
  SINKSTREAM_CHECK(copied.bytes == bytes, "weights took ", copied.bytes, " bytes instead of ",
                   bytes);
  return copied;
}

}  // namespace sinkstream
