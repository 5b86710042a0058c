#include "sampling/utf8.h"

namespace sinkstream {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// What the first byte of a character requires of the rest: how many bytes, and the range of the
// next one (Unicode, table 3-7). None if no character begins with it.
struct Lead {
  int missing;
  uint8_t low, high;
};

constexpr Lead kNoLead = {0, 0, 0};

constexpr Lead lead_of(uint8_t byte) {
  if (byte < 0xC2) return kNoLead;  // a continuation, or an overlong form
  if (byte < 0xE0) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};  // no surrogates
  if (byte < 0xF0) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte < 0xF4) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};  // up to U+10FFFF
  return kNoLead;
}

}  // namespace

void Utf8Assembler::push(std::string_view bytes, std::string* out) {
  for (const char c : bytes) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (missing_ > 0 && (byte < low_ || byte > high_)) {  // the held part cannot be completed
      give_up(out);
    }
    if (missing_ == 0) {
      start(byte, out);
    } else if (--missing_ == 0) {
      out->append(bytes_, held_);
      out->push_back(c);
      held_ = 0;
      is_held_shown_ = false;
    } else {
      bytes_[held_++] = c;
      low_ = 0x80;
      high_ = 0xBF;
    }
  }
}

void Utf8Assembler::start(uint8_t byte, std::string* out) {
  if (byte < 0x80) {
    out->push_back(static_cast<char>(byte));
    return;
  }
  const Lead lead = lead_of(byte);
  if (lead.missing == 0) {
    out->append(kReplacement);
    return;
  }
  bytes_[held_++] = static_cast<char>(byte);
  missing_ = lead.missing;
  low_ = lead.low;
  high_ = lead.high;
}

void Utf8Assembler::give_up(std::string* out) {
  if (!is_held_shown_) out->append(kReplacement);
  held_ = missing_ = 0;
  is_held_shown_ = false;
}

void Utf8Assembler::flush(std::string* out) {
  if (missing_ > 0) give_up(out);
}

size_t find_invalid_utf8(std::string_view text) {
  size_t begin = 0;
  while (begin < text.size()) {
    const uint8_t byte = static_cast<uint8_t>(text[begin]);
    Lead lead = lead_of(byte);
    if (byte >= 0x80 && lead.missing == 0) return begin;
    if (text.size() - begin <= static_cast<size_t>(lead.missing)) return begin;
    for (int i = 1; i <= lead.missing; ++i) {
      const uint8_t next = static_cast<uint8_t>(text[begin + i]);
      if (next < lead.low || next > lead.high) return begin;
      lead.low = 0x80;
      lead.high = 0xBF;
    }
    begin += 1 + lead.missing;
  }
  return std::string_view::npos;
}

}  // namespace sinkstream
