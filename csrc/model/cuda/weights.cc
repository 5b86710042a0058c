#include "model/cuda/weights.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <span>

#include "common/carver.h"
#include "common/check.h"
#include "model/cuda/upload.h"

namespace sinkstream {

namespace {

constexpr int64_t kAlignment = 256;

// Gives each weight its address, in the order of the calls: first to count bytes, then to copy.
class Copier {
 public:
  Copier() : carver_(nullptr) {}
  Copier(std::byte* base, Upload* upload, ThreadPool* threads)
      : carver_(base), upload_(upload), threads_(threads) {}

  int64_t used() const { return carver_.used(); }
  int64_t largest_piece() const { return largest_piece_; }  // that must be in one buffer
  int64_t partials() const { return partials_; }  // the most floats of a layer's map, per row
  int64_t taken() const { return taken_; }        // weights that the host has

  CudaMap map(std::initializer_list<PackedMatrix> parts) {
    CudaMap map;
    for (auto part = parts.begin(); part != parts.end();) {
      const auto end = std::find_if(part, parts.end(), [part](const PackedMatrix& other) {
        return other.type != part->type;
      });
      map.parts.push_back(matrix({part, end}));
      part = end;
    }
    partials_ = std::max(partials_, map.splits() * map.rows());
    return map;
  }

  // Stacks parts of one type.
  cuda::TiledMatrix matrix(std::span<const PackedMatrix> parts) {
    cuda::TiledMatrix matrix{parts.front().type, 0, parts.front().cols};
    for (const PackedMatrix& part : parts) matrix.rows += part.rows;
    taken_ += std::ssize(parts);
    const int64_t bytes = cuda::tiled_bytes(matrix.type, matrix.rows, matrix.cols);
    auto* const tiles = carver_.take<std::byte>(bytes);
    matrix.tiles = tiles;
    const int64_t count = cuda::row_tiles(matrix.rows), tile_bytes = bytes / count;
    largest_piece_ = std::max(largest_piece_, tile_bytes);
    if (upload_ == nullptr) return matrix;
    for (int64_t begin = 0, end = 0; begin < count; begin = end) {
      std::byte* const to = tiles + begin * tile_bytes;
      end = std::min(begin + upload_->room(to, tile_bytes) / tile_bytes, count);
      write_tiles(parts, begin, end, tile_bytes, upload_->write(to, (end - begin) * tile_bytes));
    }
    return matrix;
  }

  const float* vector(const float* values, int64_t count) { return vector({values}, {count}); }

  // Concatenates parts. A null part among others becomes zeros; null if all are.
  const float* vector(std::initializer_list<const float*> parts,
                      std::initializer_list<int64_t> counts) {
    if (std::all_of(parts.begin(), parts.end(), [](const float* p) { return p == nullptr; })) {
      return nullptr;
    }
    taken_ += std::ranges::count_if(parts, [](const float* p) { return p != nullptr; });
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const int64_t bytes = total * int64_t{sizeof(float)};
    auto* const copied = carver_.take<float>(total);
    largest_piece_ = std::max(largest_piece_, bytes);
    if (upload_ == nullptr) return copied;
    auto* to =
        reinterpret_cast<float*>(upload_->write(reinterpret_cast<std::byte*>(copied), bytes));
    auto count = counts.begin();
    for (const float* part : parts) {
      to = part == nullptr ? std::fill_n(to, *count, 0.0f) : std::copy_n(part, *count, to);
      ++count;
    }
    return copied;
  }

 private:
  void write_tiles(std::span<const PackedMatrix> parts, int64_t begin, int64_t end,
                   int64_t tile_bytes, std::byte* to) {
    const auto write = [&](int64_t tile, int) {
      cuda::tile_rows(parts, begin + tile, to + tile * tile_bytes);
    };
    if (threads_ != nullptr) return threads_->run(end - begin, write);
    for (int64_t tile = 0; tile < end - begin; ++tile) write(tile, 0);
  }

  Carver<kAlignment> carver_;
  Upload* upload_ = nullptr;  // null: only counts
  ThreadPool* threads_ = nullptr;
  int64_t largest_piece_ = 0;
  int64_t partials_ = 0;
  int64_t taken_ = 0;
};

NormWeights norm(const NormWeights& from, int64_t count, Copier* copier) {
  return {copier->vector(from.weight, count), copier->vector(from.bias, count)};
}

void copy_attention(const LayerWeights& from, const BlockSpec& block, int64_t hidden,
                    Copier* copier, CudaLayerWeights* to) {
  const AttentionSpec& attention = block.attention();
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
  to->sink_logits = copier->vector(from.sink_logits, attention.heads);
}

void copy_mlp(const LayerWeights& from, const BlockSpec& block, int64_t hidden, Copier* copier,
              CudaLayerWeights* to) {
  const int64_t inner = block.dense().intermediate_size;
  to->mlp_norm = norm(from.mlp_norm, hidden, copier);
  const MlpWeights& mlp = from.mlp;
  if (block.dense().gated) {
    to->gate_up = copier->map({mlp.gate, mlp.up});
    to->gate_up_bias = copier->vector({mlp.gate_bias, mlp.up_bias}, {inner, inner});
  } else {
    to->gate_up = copier->map({mlp.up});
    to->gate_up_bias = copier->vector(mlp.up_bias, inner);
  }
  to->down = copier->map({mlp.down});
  to->down_bias = copier->vector(mlp.down_bias, hidden);
  to->mlp_post_norm = norm(from.mlp_post_norm, hidden, copier);
}

CudaWeights fill_weights(const DecoderSpec& spec, const DecoderWeights& from, Copier* copier) {
  const int64_t hidden = spec.hidden_size;
  CudaWeights to;
  to.embedding = copier->matrix({&from.embedding, 1});
  to.output = {{from.output.panels == from.embedding.panels ? to.embedding
                                                            : copier->matrix({&from.output, 1})}};
  to.final_norm = norm(from.final_norm, hidden, copier);
  std::vector<const float*> slopes;  // of each block
  for (const BlockSpec& block : spec.blocks) {
    const std::vector<float>& of_block = block.attention().slopes;
    slopes.push_back(of_block.empty() ? nullptr
                                      : copier->vector(of_block.data(), std::ssize(of_block)));
  }
  for (int64_t layer = 0; layer < spec.layers(); ++layer) {
    const LayerWeights& its_weights = from.layers[static_cast<size_t>(layer)];
    CudaLayerWeights& copied = to.layers.emplace_back();
    const BlockSpec& block = spec.block(layer);
    const int64_t before = copier->taken();
    copy_attention(its_weights, block, hidden, copier, &copied);
    copy_mlp(its_weights, block, hidden, copier, &copied);
    int64_t weights = before;
    for_each_weight(block, hidden, its_weights, [&](const auto&...) { ++weights; });
    SINKSTREAM_CHECK(copier->taken() == weights, "of layer ", layer, " ", copier->taken() - before,
                     " weights are copied instead of ", weights - before);
    copied.slopes = slopes[static_cast<size_t>(spec.block_of_layer[static_cast<size_t>(layer)])];
  }
  to.layer_partials = copier->partials();
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
                        const cuda::Runtime& runtime, cuda::Stream stream, ThreadPool* threads,
                        int64_t buffer_bytes) {
  Copier counter;
  const int64_t bytes = fill_weights(spec, weights, &counter).bytes;
  const cuda::MemoryBlock block = cuda::allocate_device(runtime, bytes, "the weights");
  buffer_bytes = std::max(std::min(buffer_bytes, bytes), counter.largest_piece() + kAlignment);
  Upload upload(block.get(), buffer_bytes, runtime, stream);
  Copier copier(block.get(), &upload, threads);
  CudaWeights copied = fill_weights(spec, weights, &copier);
  upload.finish();
  copied.memory = block;
  SINKSTREAM_CHECK(copied.bytes == bytes, "weights took ", copied.bytes, " bytes instead of ",
                   bytes);
  return copied;
}

}  // namespace sinkstream
