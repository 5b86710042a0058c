// Assembles UTF-8 characters from bytes that arrive in pieces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sinkstream {

// Emits only valid UTF-8. Invalid bytes become U+FFFD, one for each longest part that could have
// begun a character, as with Python's errors="replace" and Rust's from_utf8_lossy.
// The result does not depend on how the bytes are cut into pieces.
class Utf8Assembler {
 public:
  // Appends to `out` the text that is complete so far.
  void push(std::string_view bytes, std::string* out);
  // Ends the text: appends U+FFFD if a character is incomplete. Then ready for another text.
  void flush(std::string* out);
  // What is held belongs to a text that was shown before: if it stays incomplete, nothing is
  // appended for it.
  void disown_held() { is_held_shown_ = held_ > 0; }

  int held() const { return held_; }  // bytes waiting for the rest of their character, 0 to 3

 private:
  void start(uint8_t byte, std::string* out);
  void give_up(std::string* out);

  char bytes_[3];  // [held_]
  int held_ = 0;
  int missing_ = 0;     // bytes still missing, 0 if nothing is held
  uint8_t low_ = 0x80;  // the range of the next byte
  uint8_t high_ = 0xBF;
  bool is_held_shown_ = false;  // as U+FFFD, at the end of an earlier text
};

// The offset of the first byte that is not valid UTF-8, or npos.
size_t find_invalid_utf8(std::string_view text);

}  // namespace sinkstream
