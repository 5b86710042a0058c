// All weights of a decoder in one block of memory, packed for the kernels.
// Filled tensor by tensor from a checkpoint's own bytes, each of which is read once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "device/buffer.h"
#include "kernels/pack.h"
#include "kernels/pack_split.h"
#include "model/decoder_spec.h"
#include "model/weight_slots.h"

namespace sinkstream {

// How the tensor of a weight has its numbers.
struct WeightFile {
  Storage storage = Storage::kF32;
  bool is_transposed = false;  // its columns follow each other, each with all rows
  float added = 0;             // to each number of a vector, in float32
};

// Stores the weights: `declare` or `declare_split` each, `allocate` once, `write` all rows of each
// once, then `finish`. Errors name the weight; a weight with missing rows is an error.
class WeightStore {
 public:
  explicit WeightStore(const DecoderSpec& spec) : spec_(spec) {}

  // `name`: one of weight_slots. A vector has one column.
  // `file`: how `write` gets the numbers. `storage`: how they are kept; if it differs, they are
  // rounded to it as they are written.
  void declare(const std::string& name, const WeightFile& file, Storage storage, int64_t rows,
               int64_t cols);
  void declare(const std::string& name, Storage storage, int64_t rows, int64_t cols) {
    declare(name, {.storage = storage}, storage, rows, cols);
  }
  // A matrix whose codes, scales and zero points are tensors of their own. `order`: [cols], or
  // empty; PackedMatrix::order, which the store owns.
  void declare_split(const std::string& name, const SplitFormat& format, int64_t rows, int64_t cols,
                     std::vector<int32_t> order);
  // The memory becomes resident as it is written.
  void allocate();

  // Cuts a weight into pieces of about `bytes` bytes of its files, or less: complete panels, or
  // columns, as those of a transposed tensor. Of a weight in one tensor, this is spans[0].
  std::vector<SplitPiece> pieces(const std::string& name, int64_t bytes) const;
  // `source`: the spans of the piece, one after the other. Several threads may write different
  // pieces at the same time.
  void write(const std::string& name, const SplitPiece& piece, const std::byte* source);
  // `source` holds rows [row, row + count) in the file's layout; `row` is a multiple of kPanelRows.
  // Several threads may write different panels at the same time.
  void write(const std::string& name, const std::byte* source, int64_t bytes, int64_t row,
             int64_t count);
  // The store owns the memory that the result points into.
  DecoderWeights finish() const;

  // A matrix by its name, once all its rows are written.
  PackedMatrix matrix(const std::string& name) const;

  // Frees the memory. The weights must not be used afterwards.
  void release() { memory_.release(); }

  int64_t bytes() const { return memory_.bytes(); }
  // The bytes that a forward pass of one token reads: all but the embedding, unless that is also
  // the output matrix, and but the experts that it does not choose.
  int64_t bytes_per_token() const;
  // Of these, the experts'.
  int64_t expert_bytes_per_token() const { return expert_bytes(true); }

  // A digest of the spec and of every packed weight with its name and shape: 32 hexadecimal digits
  // (Note: [Digest]). Reads all the memory.
  std::string digest() const;

 private:
  struct Entry {
    WeightFile file;
    Storage storage;  // of the rows that are kept
    int64_t rows, cols;
    std::optional<SplitFormat> split{};
    std::shared_ptr<const std::vector<int32_t>> order{};  // null: none
    int64_t offset = 0;                                   // in memory_
    int64_t written = 0;                                  // numbers
    bool is_vector() const { return cols == 1; }
    int64_t block() const { return split ? split_block(*split, cols) : kUnit; }
    int64_t bytes() const;
  };

  void add(const std::string& name, const Entry& entry);
  const Entry& declared(const std::string& name) const;
  Entry& allocated(const std::string& name);
  // `source` holds the rows of the part. `target`: the weight's panels.
  static void write_part(const std::string& name, const Entry& entry, const MatrixPart& part,
                         const std::byte* source, std::byte* target);
  static void write_rounded(const std::string& name, const Entry& entry, const MatrixPart& part,
                            const std::byte* source, std::byte* target);
  // `source` holds all rows of each of the part's columns.
  static void write_columns(const std::string& name, const Entry& entry, const MatrixPart& part,
                            const std::byte* source, std::byte* target);
  const Entry& complete(const std::string& name, int64_t rows, int64_t cols) const;
  // Of all experts, or of as many as a token chooses.
  int64_t expert_bytes(bool chosen_only) const;
  PackedMatrix matrix(const std::string& name, int64_t rows, int64_t cols) const;
  const float* vector(const std::string& name, int64_t count) const;

  DecoderSpec spec_;
  std::vector<std::string> order_;
  std::unordered_map<std::string, Entry> entries_;
  // The orders of columns, each once, by their own bytes.
  std::unordered_map<std::string_view, std::shared_ptr<std::vector<int32_t>>> orders_;
  Buffer memory_;
};

}  // namespace sinkstream
