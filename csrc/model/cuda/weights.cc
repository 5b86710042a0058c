#include "model/cuda/weights.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "common/carver.h"
#include "common/check.h"
#include "common/errors.h"
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
  int64_t most_ordered() const { return most_ordered_; }

  CudaMap map(std::span<const PackedMatrix> parts) {
    CudaMap map;
    for (auto part = parts.begin(); part != parts.end();) {
      const auto end = std::find_if(part, parts.end(), [part](const PackedMatrix& other) {
        return other.type != part->type || other.block != part->block || other.order != part->order;
      });
      map.parts.push_back(matrix({part, end}));
      part = end;
    }
    reserve_partials(map.splits() * map.rows());
    return map;
  }
  CudaMap map(std::initializer_list<PackedMatrix> parts) {
    return map(std::span(parts.begin(), parts.size()));
  }
  void reserve_partials(int64_t floats) { partials_ = std::max(partials_, floats); }

  // Stacks parts of one type, open block and order of columns.
  cuda::TiledMatrix matrix(std::span<const PackedMatrix> parts) {
    const PackedMatrix& first = parts.front();
    cuda::TiledMatrix matrix{.type = first.type, .cols = first.cols, .block = first.block};
    for (const PackedMatrix& part : parts) matrix.rows += part.rows;
    matrix.order = order(first);
    taken_ += std::ssize(parts);
    const int64_t bytes = cuda::tiled_bytes(matrix.type, matrix.rows, matrix.cols, matrix.block);
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

  struct Numbers {
    const float* values;  // null: none
    int64_t count;
  };

  const float* vector(const float* values, int64_t count) { return vector({{values, count}}); }

  // Concatenates parts. A null part among others becomes zeros; null if all are.
  const float* vector(std::initializer_list<Numbers> parts) {
    return vector(std::span(parts.begin(), parts.size()));
  }
  const float* vector(std::span<const Numbers> parts) {
    int64_t total = 0, given = 0;
    for (const auto& [values, count] : parts) {
      total += count;
      given += values != nullptr;
    }
    if (given == 0) return nullptr;
    taken_ += given;
    auto [copied, to] = take<float>(total);
    if (to == nullptr) return copied;
    for (const auto& [values, count] : parts) {
      to = values == nullptr ? std::fill_n(to, count, 0.0f) : std::copy_n(values, count, to);
    }
    return copied;
  }

 private:
  // Memory for some numbers, and where the host writes them: null if it only counts.
  template <typename Number>
  std::pair<Number*, Number*> take(int64_t count) {
    const int64_t bytes = count * int64_t{sizeof(Number)};
    auto* const taken = carver_.take<Number>(count);
    largest_piece_ = std::max(largest_piece_, bytes);
    if (upload_ == nullptr) return {taken, nullptr};
    std::byte* const to = upload_->write(reinterpret_cast<std::byte*>(taken), bytes);
    return {taken, reinterpret_cast<Number*>(to)};
  }

  // The order of a matrix's columns, copied once for all matrices that share it.
  const int32_t* order(const PackedMatrix& matrix) {
    if (matrix.order == nullptr) return nullptr;
    const auto [known, is_new] = orders_.emplace(matrix.order, nullptr);
    if (is_new) {
      const auto [copied, to] = take<int32_t>(matrix.cols);
      if (to != nullptr) std::copy_n(matrix.order, matrix.cols, to);
      known->second = copied;
    }
    most_ordered_ = std::max(most_ordered_, matrix.cols);
    return known->second;
  }

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
  std::unordered_map<const int32_t*, const int32_t*> orders_;  // on the host, on the GPU
  int64_t most_ordered_ = 0;
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
  to->qkv_bias = copier->vector({{from.q_bias, q}, {from.k_bias, kv}, {from.v_bias, kv}});
  to->q_norm = norm(from.q_norm, is_full ? q : attention.head_dim, copier);
  to->k_norm = norm(from.k_norm, is_full ? kv : attention.head_dim, copier);
  to->o = copier->map({from.o});
  to->o_bias = copier->vector(from.o_bias, hidden);
  to->attention_post_norm = norm(from.attention_post_norm, hidden, copier);
  to->sink_logits = copier->vector(from.sink_logits, attention.heads);
}

CudaMlpWeights copy_mlp(const MlpWeights& from, const DenseSpec& spec, int64_t hidden,
                        Copier* copier) {
  const int64_t inner = spec.intermediate_size;
  CudaMlpWeights to;
  if (spec.gated) {
    to.gate_up = copier->map({from.gate, from.up});
    to.gate_up_bias = copier->vector({{from.gate_bias, inner}, {from.up_bias, inner}});
  } else {
    to.gate_up = copier->map({from.up});
    to.gate_up_bias = copier->vector(from.up_bias, inner);
  }
  to.down = copier->map({from.down});
  to.down_bias = copier->vector(from.down_bias, hidden);
  return to;
}

std::string storage_of(const PackedMatrix& matrix) {
  const bool open = is_open(format_of(matrix.type));
  return cat(name_of(matrix.type), open ? cat(" in blocks of ", matrix.block) : "");
}

// Kernels are compiled for a type, and one launch multiplies all experts.
void require_alike(int64_t layer, const DenseSpec& spec, int64_t hidden,
                   const ExpertsWeights& experts) {
  std::map<std::string, PackedMatrix> first;  // of expert 0
  for (size_t e = 0; e < experts.each.size(); ++e) {
    const auto check = [&](const std::string& name, int64_t, int64_t, const PackedMatrix& matrix) {
      const PackedMatrix& other = first.emplace(name, matrix).first->second;
      const auto refuse = [&](const std::string& rule) {
        throw CheckpointError(cat("load: weight \"layers.", layer, ".experts.", e, ".", name,
                                  "\" must ", rule, ". Use `device=\"cpu\"`."));
      };
      if (matrix.order != nullptr) {
        refuse("keep the order of its columns on a GPU, but is sorted by its groups");
      }
      if (matrix.type != other.type || matrix.block != other.block) {
        refuse(cat("be stored as that of expert 0 is on a GPU, as ", storage_of(other), ", but is ",
                   storage_of(matrix)));
      }
    };
    for_each_mlp_matrix(spec, "", hidden, experts.each[e], check);
  }
}

// Maps of experts that are next to each other in memory, all in the same way.
void copy_each(const std::vector<MlpWeights>& each, const ExpertsSpec& spec, int64_t hidden,
               Copier* copier, CudaExpertsWeights* to) {
  const DenseSpec& expert = spec.expert;
  const int64_t inner = expert.intermediate_size;
  std::vector<Copier::Numbers> gate_up_biases, down_biases;
  for (size_t e = 0; e < each.size(); ++e) {
    const MlpWeights& from = each[e];
    const PackedMatrix parts[] = {from.gate, from.up};
    const CudaMap gate_up = copier->map(std::span(parts).last(expert.gated ? 2 : 1));
    const CudaMap down = copier->map({from.down});
    if (expert.gated) gate_up_biases.push_back({from.gate_bias, inner});
    gate_up_biases.push_back({from.up_bias, inner});
    down_biases.push_back({from.down_bias, hidden});
    for (auto [map, all] : {std::pair{&gate_up, &to->gate_up}, {&down, &to->down}}) {
      if (e == 0) all->first = *map;
      const int64_t distance = map->parts[0].tiles - all->first.parts[0].tiles;
      if (e == 1) all->expert_bytes = distance;
      SINKSTREAM_CHECK(distance == static_cast<int64_t>(e) * all->expert_bytes, "expert ", e,
                       " is ", distance, " bytes after the first");
    }
  }
  to->gate_up.bias = copier->vector(gate_up_biases);
  to->down.bias = copier->vector(down_biases);
  for (CudaExpertMap* map : {&to->gate_up, &to->down}) {
    map->chosen = spec.chosen;
    map->experts = spec.experts;
    copier->reserve_partials(spec.chosen * map->splits() * map->first.rows());
  }
}

CudaExpertsWeights copy_experts(const ExpertsWeights& from, const ExpertsSpec& spec, int64_t hidden,
                                Copier* copier) {
  CudaExpertsWeights to;
  to.router = copier->map({from.router});
  copier->reserve_partials(2 * to.router.splits() * spec.experts);  // Note: [Exact logits]
  to.router_bias = copier->vector(from.router_bias, spec.experts);
  to.choice_bias = copier->vector(from.choice_bias, spec.experts);
  to.expert_scale = copier->vector(from.expert_scale, spec.experts);
  copy_each(from.each, spec, hidden, copier, &to);
  if (spec.shared_size > 0) to.shared = copy_mlp(from.shared, spec.shared(), hidden, copier);
  if (spec.shared_size > 0 && spec.shared_gate) to.shared_gate = copier->map({from.shared_gate});
  return to;
}

void copy_feed_forward(const LayerWeights& from, const BlockSpec& block, int64_t hidden,
                       Copier* copier, CudaLayerWeights* to) {
  to->mlp_norm = norm(from.mlp_norm, hidden, copier);
  if (const ExpertsSpec* const experts = block.experts()) {
    to->experts = copy_experts(from.experts, *experts, hidden, copier);
  } else {
    to->mlp = copy_mlp(from.mlp, block.dense(), hidden, copier);
  }
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
    if (const ExpertsSpec* const experts = block.experts()) {
      require_alike(layer, experts->expert, hidden, its_weights.experts);
    }
    copy_attention(its_weights, block, hidden, copier, &copied);
    copy_feed_forward(its_weights, block, hidden, copier, &copied);
    int64_t weights = before;
    for_each_weight(block, hidden, its_weights, [&](const auto&...) { ++weights; });
    SINKSTREAM_CHECK(copier->taken() == weights, "of layer ", layer, " ", copier->taken() - before,
                     " weights are copied instead of ", weights - before);
    const CudaMap& shared = copied.experts.shared.down;
    if (!shared.parts.empty()) {
      to.shared_partials = std::max(to.shared_partials, shared.splits() * shared.rows());
    }
    copied.slopes = slopes[static_cast<size_t>(spec.block_of_layer[static_cast<size_t>(layer)])];
  }
  to.layer_partials = copier->partials();
  to.most_ordered = copier->most_ordered();
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
