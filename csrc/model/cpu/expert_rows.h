// Which tokens each expert multiplies. Scratch of a decoder, reserved once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sinkstream {

class ExpertRows {
 public:
  // The rows of one expert in the order of `token_of`; at least one.
  struct Run {
    int32_t expert = 0;
    int64_t first = 0;
    int64_t count = 0;
  };

  // For at most `choices` choices among `experts` experts.
  void reserve(int64_t choices, int64_t experts);
  // Groups what `rows` tokens have chosen by expert; within an expert, tokens keep their order.
  // `ids`: [rows, chosen], all of a token different.
  void make(std::span<const int32_t> ids, int64_t chosen, int64_t experts);

  std::span<const Run> runs() const { return {runs_.data(), runs_.size()}; }  // ascending experts
  const int32_t* token_of() const { return token_of_.data(); }                // [rows · chosen]
  // Where the choice of a token is: [rows, chosen].
  const int32_t* positions() const { return positions_.data(); }

 private:
  std::vector<int64_t> next_;  // [experts]: where its next row goes
  std::vector<Run> runs_;
  std::vector<int32_t> token_of_, positions_;
};

}  // namespace sinkstream
