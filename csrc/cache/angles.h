// Cosines and sines of rotary positions, accurate to the last bit of a float at any index of an
// endless stream. Knows the frequencies of one model; window.h decides which token has which
// position.
//
// Note: [Angles]
// In float32, index · frequency is off by 0.1 rad at 4 million tokens. So angles are computed here
// in float64, modulo a revolution, and only cos and sin are rounded to float32. A frequency is
// stored in revolutions per position, as two parts. The upper one has 24 bits, so that its product
// with an index below 2^29 is exact and full revolutions can be dropped without error.
#pragma once

#include <cstdint>
#include <vector>

namespace sinkstream {

class Angles {
 public:
  // `inverse_frequencies`: radians per position, [0, 2^20], one for each rotated pair.
  // `attention_factor` multiplies cos and sin.
  explicit Angles(const std::vector<double>& inverse_frequencies, double attention_factor = 1);

  int64_t pairs() const { return static_cast<int64_t>(frequencies_.size()); }

  // Fills `cos` and `sin`, [rows, pairs()], with the angles of `positions`, [rows], each >= 0.
  void fill(const int64_t* positions, int64_t rows, float* cos, float* sin) const;

 private:
  struct Frequency {  // revolutions per position: upper + lower
    double upper;
    double lower;
  };

  std::vector<Frequency> frequencies_;
  double attention_factor_;
};

}  // namespace sinkstream
