#include "sampling/detokenizer.h"

#include "common/check.h"

namespace sinkstream {

TokenTable::TokenTable(std::span<const std::string> tokens, std::span<const uint8_t> special,
                       bool strip_leading_space)
    : special_(special.begin(), special.end()), strip_leading_space_(strip_leading_space) {
  SINKSTREAM_CHECK(tokens.size() == special.size(), tokens.size(), " tokens, ", special.size(),
                   " special flags");
  size_t total = 0;
  for (const std::string& token : tokens) total += token.size();
  bytes_.reserve(total);
  begins_.reserve(tokens.size() + 1);
  begins_.push_back(0);
  for (const std::string& token : tokens) {
    bytes_ += token;
    begins_.push_back(bytes_.size());
  }
}

std::string_view TokenTable::bytes(int32_t id) const {
  if (!has(id)) return {};
  return std::string_view(bytes_).substr(begins_[id], begins_[id + 1] - begins_[id]);
}

void Detokenizer::follow(std::span<const int32_t> ids) {
  size_t begin = ids.size();
  for (size_t bytes = 0; begin > 0 && bytes < 3;) bytes += table_->text(ids[--begin]).size();
  std::string shown;
  for (const int32_t id : ids.subspan(begin)) assembler_.push(table_->text(id), &shown);
  assembler_.disown_held();
}

void Detokenizer::push(int32_t id, std::string* out) {
  std::string_view text = table_->text(id);
  if (strip_ && !text.empty()) {
    if (text.front() == ' ') text.remove_prefix(1);
    strip_ = false;
  }
  assembler_.push(text, out);
}

void Detokenizer::flush(std::string* out) { assembler_.flush(out); }

}  // namespace sinkstream
