// Turns token ids into text one by one. The joined pieces equal the text of all ids together.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sampling/utf8.h"

namespace sinkstream {

// The bytes of every token of a vocabulary. Built at load; any number of threads may read it.
class TokenTable {
 public:
  // `tokens` [n]: the bytes of each id, any bytes. `special` [n]: nonzero for control tokens, which
  // have no text. `strip_leading_space`: the tokenizer adds a space at the start of every text,
  // which is removed again.
  TokenTable(std::span<const std::string> tokens, std::span<const uint8_t> special,
             bool strip_leading_space);

  int64_t size() const { return static_cast<int64_t>(special_.size()); }
  bool strip_leading_space() const { return strip_leading_space_; }
  bool is_special(int32_t id) const { return has(id) && special_[id] != 0; }
  // The token's own bytes, special or not; none for an id beyond the table, which a model with a
  // padded vocabulary may sample.
  std::string_view bytes(int32_t id) const;
  // The bytes that the token adds to a text: none if it is special.
  std::string_view text(int32_t id) const { return is_special(id) ? "" : bytes(id); }

 private:
  bool has(int32_t id) const { return id >= 0 && id < size(); }

  std::string bytes_;             // of all tokens, end to end
  std::vector<uint64_t> begins_;  // [n + 1]
  std::vector<uint8_t> special_;  // [n]
  bool strip_leading_space_;
};

class Detokenizer {
 public:
  // `table` must outlive this. `continues_text`: the text continues another one, so a leading space
  // is part of it.
  explicit Detokenizer(const TokenTable* table, bool continues_text = false)
      : table_(table), strip_(table->strip_leading_space() && !continues_text) {}

  // The text follows that of `ids`, which was shown before: if they end inside a character, this
  // text may complete it. Before `push`; may be called several times.
  void follow(std::span<const int32_t> ids);
  // Appends the characters that this token completes.
  void push(int32_t id, std::string* out);
  // Ends the text: appends U+FFFD if a character is incomplete.
  void flush(std::string* out);

 private:
  const TokenTable* table_;
  bool strip_;  // the next byte is the text's first
  Utf8Assembler assembler_;
};

}  // namespace sinkstream
