#include "model/weights.h"

#include <algorithm>
#include <atomic>

#include "common/check.h"
#include "common/digest.h"
#include "common/divide_up.h"
#include "kernels/quantize.h"

namespace sinkstream {

namespace {
// Panels start on a cache line, so that 64-byte loads do not straddle two.
constexpr int64_t kAlignment = 64;
int64_t aligned(int64_t bytes) { return divide_up(bytes, kAlignment) * kAlignment; }

template <typename... Numbers>
void add_numbers(Digest* digest, const Numbers&... numbers) {
  (digest->add_number(numbers), ...);
}

void add_rope(const RopeSpec& rope, Digest* digest) {
  digest->add_number(rope.inverse_frequencies.size());
  for (const double frequency : rope.inverse_frequencies) digest->add_number(frequency);
  add_numbers(digest, rope.pairing, rope.attention_factor);
}

void add_norm(const NormSpec& norm, Digest* digest) {
  add_numbers(digest, norm.kind, norm.eps, norm.bias);
}

void add_block(const BlockSpec& block, Digest* digest) {
  const AttentionSpec& a = block.attention;
  add_rope(a.rope, digest);
  add_numbers(digest, a.scale, a.soft_cap, a.slopes.size());
  for (const float slope : a.slopes) digest->add_number(slope);
  add_numbers(digest, a.qk_norm, a.qkv_bias, a.output_bias, a.clip, a.temperature,
              a.temperature_length);
  const MlpSpec& mlp = block.mlp;
  add_numbers(digest, mlp.intermediate_size, mlp.activation, mlp.gated, mlp.bias);
  add_norm(block.norm, digest);
  add_numbers(digest, block.attention_norm, block.mlp_norm, block.attention_post_norm,
              block.mlp_post_norm, block.parallel, block.residual_scale);
}

// Saved sessions hold this digest: what came with later families is added only where it is used.
void add_spec(const DecoderSpec& spec, Digest* digest) {
  const AttentionSpec& attention = spec.blocks.front().attention;
  add_numbers(digest, spec.vocab_size, spec.hidden_size, spec.blocks.front().mlp.intermediate_size,
              spec.layers(), spec.heads(), spec.kv_heads(), spec.head_dim(), spec.final_norm.eps);
  add_rope(attention.rope, digest);
  add_numbers(digest, attention.qkv_bias, attention.output_bias, spec.blocks.front().mlp.bias,
              attention.qk_norm != QkNorm::kNone, spec.tie_embeddings);
  const CacheLayers layers = spec.cache_layers();
  const bool has_windows = layers.group_count() > 1 || layers.groups().front().own_window > 0;
  for (int64_t layer = 0; has_windows && layer < spec.layers(); ++layer) {
    digest->add_number(spec.block(layer).attention.window);
  }
  if (is_plain(spec)) return;
  for (const BlockSpec& block : spec.blocks) add_block(block, digest);
  for (const int32_t block : spec.block_of_layer) digest->add_number(block);
  add_norm(spec.final_norm, digest);
  add_numbers(digest, spec.embedding_scale, spec.logit_scale, spec.logit_soft_cap);
}
}  // namespace

int64_t WeightStore::Entry::bytes() const {
  return is_vector() ? rows * 4 : packed_bytes(weight_type_of(storage), rows, cols, block());
}

void WeightStore::add(const std::string& name, const Entry& entry) {
  SINKSTREAM_CHECK(memory_.data() == nullptr, "weight ", name,
                   " is declared after the store was allocated");
  if (entry.rows < 1 || entry.cols < 1) {
    throw CheckpointError(cat("load: weight \"", name,
                              "\" must have at least one row and one column, "
                              "but has [",
                              entry.rows, ", ", entry.cols, "]."));
  }
  SINKSTREAM_CHECK(entries_.emplace(name, entry).second, "weight ", name, " is declared twice");
  order_.push_back(name);
}

void WeightStore::declare_split(const std::string& name, const SplitFormat& format, int64_t rows,
                                int64_t cols, std::vector<int32_t> order) {
  SINKSTREAM_CHECK(row_of(format.storage).is_split && cols > 1 && format.group >= 1 &&
                       format.scale_rows >= 1 && can_pack_split(format, cols),
                   "weight ", name, " has groups of ", format.group, " in ", cols, " columns");
  Entry entry = {.file = format.storage, .storage = format.storage, .rows = rows, .cols = cols};
  entry.split = format;
  if (!order.empty()) {
    SINKSTREAM_CHECK(static_cast<int64_t>(order.size()) == cols &&
                         std::all_of(order.begin(), order.end(),
                                     [cols](int32_t col) { return col >= 0 && col < cols; }),
                     "weight ", name, " has a bad order of columns");
    for (const auto& [other, declared] : entries_) {  // those of one input are usually the same
      if (declared.order && *declared.order == order) entry.order = declared.order;
    }
    if (!entry.order) entry.order = std::make_shared<std::vector<int32_t>>(std::move(order));
  }
  add(name, entry);
}

void WeightStore::declare(const std::string& name, Storage file, Storage storage, int64_t rows,
                          int64_t cols, float added) {
  const StorageRow& row = row_of(storage);
  if (cols % row.block != 0) {
    throw CheckpointError(cat("load: weight \"", name, "\" must have a multiple of ", row.block,
                              " columns to be stored as ", row.name, ", but has ", cols, "."));
  }
  SINKSTREAM_CHECK(
      file == storage || (cols > 1 && row_of(file).block == 1 && can_quantize_to(storage)),
      "weight ", name, " cannot be rounded from ", row_of(file).name, " to ", row.name);
  SINKSTREAM_CHECK(added == 0 || cols == 1, "weight ", name, " is a matrix to which ", added,
                   " is added");
  add(name, {.file = file, .storage = storage, .rows = rows, .cols = cols, .added = added});
}

void WeightStore::allocate() {
  int64_t total = 0;
  for (const std::string& name : order_) {
    Entry& entry = entries_.at(name);
    entry.offset = total;
    total += aligned(entry.bytes());
  }
  memory_ = Buffer::reserve(total, "the weights");
}

const WeightStore::Entry& WeightStore::declared(const std::string& name) const {
  const auto found = entries_.find(name);
  SINKSTREAM_CHECK(found != entries_.end(), "weight ", name, " was not declared");
  return found->second;
}

std::vector<SplitPiece> WeightStore::pieces(const std::string& name, int64_t bytes) const {
  const Entry& entry = declared(name);
  if (entry.split) {
    return split_pieces(*entry.split, entry.rows, entry.cols, entry.order != nullptr, bytes);
  }
  std::vector<SplitPiece> pieces;
  const int64_t row_bytes = row_bytes_of(entry.file, entry.cols);
  const int64_t step = std::max<int64_t>(1, bytes / (kPanelRows * row_bytes)) * kPanelRows;
  for (int64_t row = 0; row < entry.rows; row += step) {
    const int64_t count = std::min(step, entry.rows - row);
    pieces.push_back({.row = row,
                      .rows = count,
                      .col = 0,
                      .cols = entry.cols,
                      .spans = {{row * row_bytes, count * row_bytes}}});
  }
  return pieces;
}

WeightStore::Entry& WeightStore::allocated(const std::string& name) {
  const auto found = entries_.find(name);
  SINKSTREAM_CHECK(found != entries_.end() && memory_.data() != nullptr, "weight ", name,
                   " was not declared and allocated");
  return found->second;
}

void WeightStore::write(const std::string& name, const SplitPiece& piece, const std::byte* source) {
  Entry& entry = allocated(name);
  if (!entry.split) return write(name, source, piece.spans[0].bytes, piece.row, piece.rows);
  const int32_t* order = entry.order ? entry.order->data() : nullptr;
  if (!pack_split(*entry.split, entry.rows, entry.cols, order, piece, source,
                  memory_.data() + entry.offset)) {
    const bool is_fp8 = entry.storage == Storage::kFp8;
    throw CheckpointError(cat("load: weight \"", name, "\" must have finite scales",
                              is_fp8 ? " and numbers" : "", ", but rows [", piece.row, ", ",
                              piece.row + piece.rows, ") have a value that is NaN or infinite."));
  }
  std::atomic_ref(entry.written).fetch_add(piece.rows * piece.cols, std::memory_order_relaxed);
}

void WeightStore::write(const std::string& name, const std::byte* source, int64_t bytes,
                        int64_t row, int64_t count) {
  Entry& entry = allocated(name);
  SINKSTREAM_CHECK(row >= 0 && row < entry.rows && row % kPanelRows == 0, "weight ", name,
                   " cannot be written from row ", row);
  const int64_t expected = count * row_bytes_of(entry.file, entry.cols);
  if (count < 1 || count > entry.rows - row || bytes != expected) {
    throw CheckpointError(cat("load: weight \"", name, "\" must get ", expected,
                              " bytes for rows [", row, ", ", row + count, ") of ", entry.rows,
                              ", but gets ", bytes, "."));
  }
  std::byte* target = memory_.data() + entry.offset;
  if (entry.is_vector()) {
    float* numbers = reinterpret_cast<float*>(target) + row;
    unpack_vector(entry.file, source, count, numbers);
    if (entry.added != 0) {  // so that a zero keeps its sign otherwise
      for (int64_t i = 0; i < count; ++i) numbers[i] += entry.added;
    }
  } else if (entry.file != entry.storage) {
    write_rounded(name, entry, source, row, count, target);
  } else if (!pack_rows(entry.storage, source, row, count, entry.cols, target)) {
    throw CheckpointError(cat("load: weight \"", name, "\" must have finite scales, but rows [",
                              row, ", ", row + count, ") have a value that is NaN or infinite."));
  }
  std::atomic_ref(entry.written).fetch_add(count * entry.cols, std::memory_order_relaxed);
}

void WeightStore::write_rounded(const std::string& name, const Entry& entry,
                                const std::byte* source, int64_t row, int64_t count,
                                std::byte* target) {
  std::vector<std::byte> blocks(row_bytes_of(entry.storage, entry.cols));
  for (int64_t i = 0; i < count; ++i) {
    const std::byte* from = source + i * row_bytes_of(entry.file, entry.cols);
    if (!quantize_row(entry.file, from, entry.cols, entry.storage, blocks.data()) ||
        !pack_rows(entry.storage, blocks.data(), row + i, 1, entry.cols, target)) {
      throw CheckpointError(cat("load: weight \"", name, "\" must hold finite numbers within the ",
                                "range of ", row_of(entry.storage).name, " to be rounded to it, ",
                                "but row ", row + i, " does not."));
    }
  }
}

const WeightStore::Entry& WeightStore::complete(const std::string& name, int64_t rows,
                                                int64_t cols) const {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    throw CheckpointError(cat("load: weight \"", name, "\" is missing."));
  const Entry& entry = found->second;
  if (entry.rows != rows || entry.cols != cols) {
    throw CheckpointError(cat("load: weight \"", name, "\" must have shape [", rows, ", ", cols,
                              "], but has [", entry.rows, ", ", entry.cols, "]."));
  }
  SINKSTREAM_CHECK(entry.written == rows * cols, "weight ", name, " has ", entry.written, " of ",
                   rows * cols, " numbers");
  return entry;
}

PackedMatrix WeightStore::matrix(const std::string& name) const {
  const Entry& entry = declared(name);
  return matrix(name, entry.rows, entry.cols);
}

PackedMatrix WeightStore::matrix(const std::string& name, int64_t rows, int64_t cols) const {
  const Entry& entry = complete(name, rows, cols);
  return {.type = weight_type_of(entry.storage),
          .rows = rows,
          .cols = cols,
          .panels = memory_.data() + entry.offset,
          .block = entry.block(),
          .order = entry.order ? entry.order->data() : nullptr};
}

const float* WeightStore::vector(const std::string& name, int64_t count) const {
  return reinterpret_cast<const float*>(memory_.data() + complete(name, count, 1).offset);
}

int64_t WeightStore::bytes_per_token() const {
  return bytes() - (spec_.tie_embeddings ? 0 : aligned(entries_.at("embedding").bytes()));
}

std::string WeightStore::digest() const {
  Digest digest;
  add_spec(spec_, &digest);
  for (const std::string& name : order_) {
    const Entry& entry = entries_.at(name);
    digest.add(name);
    digest.add_number(entry.storage);
    digest.add_number(entry.rows);
    digest.add_number(entry.cols);
    if (entry.split) digest.add_number(entry.block());
    if (entry.order) {
      for (const int32_t col : *entry.order) digest.add_number(col);
    }
    digest.add(memory_.data() + entry.offset, entry.bytes());
  }
  return digest.hex();
}

DecoderWeights WeightStore::finish() const {
  DecoderWeights weights;
  for (const WeightSlot& slot : weight_slots(spec_, &weights)) {
    if (PackedMatrix* const* member = std::get_if<PackedMatrix*>(&slot.member)) {
      **member = matrix(slot.name, slot.rows, slot.cols);
    } else {
      *std::get<const float**>(slot.member) = vector(slot.name, slot.rows);
    }
  }
  if (spec_.tie_embeddings) weights.output = weights.embedding;
  return weights;
}

}  // namespace sinkstream
