#include "model/weights.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string_view>
#include <variant>

#include "common/check.h"
#include "common/digest.h"
#include "common/divide_up.h"
#include "kernels/quantize.h"

namespace sinkstream {

namespace {
// Panels start on a cache line, so that 64-byte loads do not straddle two.
constexpr int64_t kAlignment = 64;
int64_t aligned(int64_t bytes) { return divide_up(bytes, kAlignment) * kAlignment; }

// Writes [rows][cols] from columns that are `stride` numbers apart, each with `rows` or more.
template <typename Number>
void transpose(const std::byte* source, int64_t stride, int64_t rows, int64_t cols,
               std::byte* out) {
  constexpr int64_t kSize = sizeof(Number);
  for (int64_t col = 0; col < cols; ++col) {
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(out + (row * cols + col) * kSize, source + (col * stride + row) * kSize, kSize);
    }
  }
}

// Note: [What the digest has of a spec]
// Saved sessions hold it, so it never changes for a model that could be computed before. It began
// with what distinguishes llama's decoders and qwen's; a model that has more also adds its blocks.
// There, the fields in kAlways are added whatever they are; any other, and so each new one, is
// added with its name, and only if it is not neutral. A new field is not added to kAlways.

template <typename Spec>
constexpr std::array<std::string_view, 0> kAlways{};
template <>
constexpr std::array kAlways<RopeSpec> =
    std::to_array<std::string_view>({"inverse_frequencies", "pairing", "attention_factor"});
template <>
constexpr std::array kAlways<NormSpec> = std::to_array<std::string_view>({"kind", "eps", "bias"});
template <>
constexpr std::array kAlways<AttentionSpec> =
    std::to_array<std::string_view>({"rope", "scale", "soft_cap", "slopes", "qk_norm", "qkv_bias",
                                     "output_bias", "clip", "temperature", "temperature_length"});
template <>
constexpr std::array kAlways<DenseSpec> =
    std::to_array<std::string_view>({"intermediate_size", "activation", "gated", "bias"});
template <>
constexpr std::array kAlways<BlockSpec> = std::to_array<std::string_view>(
    {"mixer", "feed_forward", "norm", "attention_norm", "mlp_norm", "attention_post_norm",
     "mlp_post_norm", "parallel", "residual_scale"});
template <>
constexpr std::array kAlways<DecoderSpec> = std::to_array<std::string_view>(
    {"blocks", "block_of_layer", "final_norm", "embedding_scale", "logit_scale", "logit_soft_cap"});

class SpecDigest {
 public:
  explicit SpecDigest(Digest* digest) : digest_(digest) {}

  void add_numbers(const auto&... numbers) { (digest_->add_number(numbers), ...); }

  // What tells it from `neutral`.
  template <typename Value>
  void add(const Value& value, const Value& neutral) {
    if constexpr (HasFields<Value>) {
      Value::for_each_field([&](const char* name, auto member, const auto&) {
        if (std::ranges::find(kAlways<Value>, name) == kAlways<Value>.end()) {
          if (value.*member == neutral.*member) return;
          digest_->add(name);
        }
        add(value.*member, neutral.*member);
      });
    } else {
      digest_->add_number(value);
    }
  }
  template <typename Number>
  void add(const std::vector<Number>& numbers, const std::vector<Number>&) {
    digest_->add_number(numbers.size());
    for (const Number number : numbers) digest_->add_number(number);
  }
  // Of layers, whose number has been added.
  void add(const std::vector<int32_t>& blocks, const std::vector<int32_t>&) {
    for (const int32_t block : blocks) digest_->add_number(block);
  }
  void add(const std::vector<BlockSpec>& blocks, const std::vector<BlockSpec>& neutral) {
    for (size_t i = 0; i < blocks.size(); ++i) add(blocks[i], neutral[i]);
  }
  // The first kind of a variant is older than the others, and has no name.
  template <typename First, typename... Others>
  void add(const std::variant<First, Others...>& value,
           const std::variant<First, Others...>& neutral) {
    if (value.index() > 0) digest_->add(std::visit([](auto& spec) { return spec.kKind; }, value));
    std::visit(
        [&]<typename Kind>(const Kind& spec) {
          const Kind* const same = std::get_if<Kind>(&neutral);
          add(spec, same == nullptr ? Kind{} : *same);
        },
        value);
  }

 private:
  Digest* digest_;
};

// What a field is compared with: its default, or the value itself where add_spec adds it for all
// models. Sizes of heads are neutral where they are the first block's.
DecoderSpec neutral_of(const DecoderSpec& spec) {
  const AttentionSpec& first = spec.first_attention();
  DecoderSpec neutral;
  neutral.vocab_size = spec.vocab_size;
  neutral.hidden_size = spec.hidden_size;
  neutral.tie_embeddings = spec.tie_embeddings;
  for (const BlockSpec& block : spec.blocks) {
    AttentionSpec& attention = neutral.blocks.emplace_back().attention();
    if (block.recurrent() != nullptr) continue;
    attention.heads = first.heads;
    attention.kv_heads = first.kv_heads;
    attention.head_dim = first.head_dim;
    attention.window = block.attention().window;
  }
  return neutral;
}

// Whether this is llama's decoder or qwen's: layers that differ in nothing but their windows, with
// RMS norms before attention and MLP, SwiGLU, and nothing scaled or capped.
bool is_plain(const DecoderSpec& spec) {
  for (BlockSpec block : spec.blocks) {
    const auto* given = std::get_if<AttentionSpec>(&block.mixer);
    const auto* mlp = std::get_if<DenseSpec>(&block.feed_forward);
    if (given == nullptr || mlp == nullptr) return false;
    if (given->qk_norm == QkNorm::kFull || given->qk_norm == QkNorm::kRotatedHead) return false;
    BlockSpec plain;
    AttentionSpec& attention = plain.attention();
    attention.heads = given->heads;
    attention.kv_heads = given->kv_heads;
    attention.head_dim = given->head_dim;
    attention.rope = given->rope;
    attention.scale = usual_scale(given->head_dim);
    attention.window = given->window;
    attention.qk_norm = given->qk_norm;
    attention.qkv_bias = given->qkv_bias;
    attention.output_bias = given->output_bias;
    plain.dense().intermediate_size = mlp->intermediate_size;
    plain.dense().bias = mlp->bias;
    plain.norm.eps = spec.final_norm.eps;
    if (block != plain) return false;
    block.attention().window = spec.blocks.front().attention().window;
    if (block != spec.blocks.front()) return false;
  }
  DecoderSpec plain;
  plain.vocab_size = spec.vocab_size;
  plain.hidden_size = spec.hidden_size;
  plain.blocks = spec.blocks;
  plain.block_of_layer = spec.block_of_layer;
  plain.final_norm.eps = spec.final_norm.eps;
  plain.tie_embeddings = spec.tie_embeddings;
  return spec == plain;
}

// Note: [What the digest has of a spec]
void add_spec(const DecoderSpec& spec, SpecDigest digest) {
  const AttentionSpec& attention = spec.first_attention();
  const ExpertsSpec* const experts = spec.blocks.front().experts();
  const DenseSpec& mlp = experts == nullptr ? spec.blocks.front().dense() : experts->expert;
  digest.add_numbers(spec.vocab_size, spec.hidden_size, mlp.intermediate_size, spec.layers(),
                     attention.heads, attention.kv_heads, attention.head_dim, spec.final_norm.eps);
  digest.add(attention.rope, RopeSpec{});
  digest.add_numbers(attention.qkv_bias, attention.output_bias, mlp.bias,
                     attention.qk_norm != QkNorm::kNone, spec.tie_embeddings);
  const CacheLayers layers = spec.cache_layers();
  const bool has_windows = layers.group_count() > 1 || layers.groups().front().own_window > 0;
  for (int64_t layer = 0; has_windows && layer < spec.layers(); ++layer) {
    const BlockSpec& block = spec.block(layer);
    digest.add_numbers(block.recurrent() != nullptr ? 0 : block.attention().window);
  }
  if (!is_plain(spec)) digest.add(spec, neutral_of(spec));
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
  SINKSTREAM_CHECK((row_of(format.storage).is_split || format.storage == Storage::kMXFP4) &&
                       cols > 1 && format.group >= 1 && format.scale_rows >= 1 &&
                       can_pack_split(format, cols),
                   "weight ", name, " has groups of ", format.group, " in ", cols, " columns");
  Entry entry = {
      .file = {.storage = format.storage}, .storage = format.storage, .rows = rows, .cols = cols};
  entry.split = format;
  if (!order.empty()) {
    SINKSTREAM_CHECK(static_cast<int64_t>(order.size()) == cols &&
                         std::all_of(order.begin(), order.end(),
                                     [cols](int32_t col) { return col >= 0 && col < cols; }),
                     "weight ", name, " has a bad order of columns");
    auto shared = std::make_shared<std::vector<int32_t>>(std::move(order));
    const std::string_view numbers(reinterpret_cast<const char*>(shared->data()),
                                   shared->size() * sizeof(int32_t));
    // Those of one input are usually the same.
    entry.order = orders_.emplace(numbers, std::move(shared)).first->second;
  }
  add(name, entry);
}

void WeightStore::declare(const std::string& name, const WeightFile& file, Storage storage,
                          int64_t rows, int64_t cols) {
  const StorageRow& row = row_of(storage);
  if (cols % row.block != 0) {
    throw CheckpointError(cat("load: weight \"", name, "\" must have a multiple of ", row.block,
                              " columns to be stored as ", row.name, ", but has ", cols, "."));
  }
  SINKSTREAM_CHECK(file.storage == storage ||
                       (cols > 1 && row_of(file.storage).block == 1 && can_quantize_to(storage)),
                   "weight ", name, " cannot be rounded from ", row_of(file.storage).name, " to ",
                   row.name);
  SINKSTREAM_CHECK(file.added == 0 || cols == 1, "weight ", name, " is a matrix to which ",
                   file.added, " is added");
  SINKSTREAM_CHECK(!file.is_transposed || (cols > 1 && row_of(file.storage).block == 1), "weight ",
                   name, " has no columns that can follow each other");
  add(name, {.file = file, .storage = storage, .rows = rows, .cols = cols});
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
  if (entry.file.is_transposed) {
    const int64_t column = entry.rows * row_of(entry.file.storage).bytes;
    const int64_t block = std::max(kUnit, row_of(entry.storage).block);
    const int64_t step = std::max<int64_t>(1, bytes / (block * column)) * block;
    for (int64_t col = 0; col < entry.cols; col += step) {
      const int64_t count = std::min(step, entry.cols - col);
      pieces.push_back({.row = 0,
                        .rows = entry.rows,
                        .col = col,
                        .cols = count,
                        .spans = {{col * column, count * column}}});
    }
    return pieces;
  }
  const int64_t row_bytes = row_bytes_of(entry.file.storage, entry.cols);
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
  if (entry.file.is_transposed) {
    const MatrixPart part = {
        .row = piece.row, .count = piece.rows, .col = piece.col, .width = piece.cols};
    write_columns(name, entry, part, source, memory_.data() + entry.offset);
    std::atomic_ref(entry.written).fetch_add(part.count * part.width, std::memory_order_relaxed);
    return;
  }
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
  SINKSTREAM_CHECK(!entry.file.is_transposed, "weight ", name, " is written by columns");
  const int64_t expected = count * row_bytes_of(entry.file.storage, entry.cols);
  if (count < 1 || count > entry.rows - row || bytes != expected) {
    throw CheckpointError(cat("load: weight \"", name, "\" must get ", expected,
                              " bytes for rows [", row, ", ", row + count, ") of ", entry.rows,
                              ", but gets ", bytes, "."));
  }
  std::byte* target = memory_.data() + entry.offset;
  if (entry.is_vector()) {
    float* numbers = reinterpret_cast<float*>(target) + row;
    unpack_vector(entry.file.storage, source, count, numbers);
    if (entry.file.added != 0) {  // so that a zero keeps its sign otherwise
      for (int64_t i = 0; i < count; ++i) numbers[i] += entry.file.added;
    }
  } else {
    const MatrixPart part = {.row = row, .count = count, .col = 0, .width = entry.cols};
    write_part(name, entry, part, source, target);
  }
  std::atomic_ref(entry.written).fetch_add(count * entry.cols, std::memory_order_relaxed);
}

void WeightStore::write_part(const std::string& name, const Entry& entry, const MatrixPart& part,
                             const std::byte* source, std::byte* target) {
  if (entry.file.storage != entry.storage) return write_rounded(name, entry, part, source, target);
  if (pack_part(entry.storage, source, part, entry.cols, target)) return;
  throw CheckpointError(cat("load: weight \"", name, "\" must have finite scales, but rows [",
                            part.row, ", ", part.row + part.count,
                            ") have a value that is NaN or infinite."));
}

void WeightStore::write_rounded(const std::string& name, const Entry& entry, const MatrixPart& part,
                                const std::byte* source, std::byte* target) {
  std::vector<std::byte> blocks(row_bytes_of(entry.storage, part.width));
  MatrixPart row = {.row = part.row, .count = 1, .col = part.col, .width = part.width};
  for (; row.row < part.row + part.count; ++row.row) {
    if (!quantize_row(entry.file.storage, source, part.width, entry.storage, blocks.data()) ||
        !pack_part(entry.storage, blocks.data(), row, entry.cols, target)) {
      throw CheckpointError(cat("load: weight \"", name, "\" must hold finite numbers within the ",
                                "range of ", row_of(entry.storage).name, " to be rounded to it, ",
                                "but row ", row.row, " does not."));
    }
    source += row_bytes_of(entry.file.storage, part.width);
  }
}

// A panel's rows at a time, so that the transposed numbers stay in the L1 cache.
void WeightStore::write_columns(const std::string& name, const Entry& entry, const MatrixPart& part,
                                const std::byte* source, std::byte* target) {
  const int64_t size = row_of(entry.file.storage).bytes;
  std::vector<std::byte> rows(kPanelRows * part.width * size);
  for (int64_t row = 0; row < part.count; row += kPanelRows) {
    const int64_t count = std::min(kPanelRows, part.count - row);
    if (size == 2) {
      transpose<uint16_t>(source + row * size, part.count, count, part.width, rows.data());
    } else {
      transpose<uint32_t>(source + row * size, part.count, count, part.width, rows.data());
    }
    const MatrixPart panel = {
        .row = part.row + row, .count = count, .col = part.col, .width = part.width};
    write_part(name, entry, panel, rows.data(), target);
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
  const int64_t unread = spec_.tie_embeddings ? 0 : aligned(entries_.at("embedding").bytes());
  return bytes() - unread - expert_bytes(false) + expert_bytes(true);
}

int64_t WeightStore::expert_bytes(bool chosen_only) const {
  int64_t found = 0;
  DecoderWeights layers;
  weight_slots(spec_, &layers);
  for (int64_t layer = 0; layer < spec_.layers(); ++layer) {
    const ExpertsSpec* const experts = spec_.block(layer).experts();
    if (experts == nullptr) continue;
    // All experts of a layer take the same memory, unless a file mixes formats.
    int64_t all = 0;
    ExpertsWeights& members = layers.layers[static_cast<size_t>(layer)].experts;
    for_each_expert_weight(*experts, spec_.hidden_size, members,
                           [&](const std::string& name, int64_t, int64_t, const auto&) {
                             if (!name.starts_with("experts.")) return;
                             all += aligned(declared(cat("layers.", layer, ".", name)).bytes());
                           });
    found += chosen_only ? all * experts->chosen / experts->experts : all;
  }
  return found;
}

std::string WeightStore::digest() const {
  Digest digest;
  add_spec(spec_, SpecDigest(&digest));
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
