// What the two sampling ops, logits.h and sample.h, share: each row's parameters, its result, and
// the scratch memory between them.
//
// Note: [Sampling on a GPU]
// The first launch computes the logits to sample from and records each group's maximum. The second
// weighs them against the row's maximum, so it cannot start before all blocks of the first have
// finished. A row has one block per 8,192 logits. In the second launch they share the first pass
// over the row, and the last one to finish samples the token.
//
// Note: [Weights are integers]
// A token's weight is e^(logit − largest) as an integer, in units of 2^-44 of the largest weight.
// Sums are exact in any order, so atomic additions give the same bits on every run and a row
// depends only on itself. Compared with the reference, which adds doubles:
//   - a weight is off by the float exponential's rounding, about 2^-23 of itself, and by the unit;
//   - tokens whose logits are 30.5 below the largest weigh nothing. All 2^19 of them together would
//     have less than 3e-8 of the probability;
//   - so top-p keeps what the reference keeps unless the probability from some token up is within
//     about 1e-6 of p, and a draw within 1e-6 of the border between two kept tokens may pick the
//     other one. top-k, min-p and greedy are identical.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/divide_up.h"
#include "kernels/cuda/sampling/penalties.h"
#include "kernels/logits.h"

namespace sinkstream::cuda {

constexpr int64_t kMostVocab = int64_t{1} << 19;  // sums of weights stay below 2^64

// From the sum of the output map's splits to a logit of the model:
//   x = scale · sum, then soft_cap · tanh(x / soft_cap) if there is one.
struct LogitBend {
  float scale = 1;
  float soft_cap = 0;  // above 0; 0: none
};

// Note: [Waves]
// A sequence may have several rows in a step: after its last token, and after each of a few guesses
// of what follows (drafts). They are sampled in waves, one launch after the other: row 0 of every
// sequence, then row 1, and so on. So penalties count exactly the tokens before a row, and a row
// whose guess was not sampled by the row before it is skipped, as are those after it.

// Sampling parameters of one row. The defaults change nothing.
struct SamplingRow {
  uint64_t seed = 0;             // key of common/philox.h
  double top_p = 1;              // in (0, 1]; 1 keeps all
  double log_min_p = -HUGE_VAL;  // of min_p; −infinity keeps all
  int64_t top_k = 0;             // at least 0; 0 keeps all
  float repetition_penalty = 1;  // above 0
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float temperature = 1;  // above 0
  int32_t greedy = 0;     // 1: the largest logit, the lowest id among equals; temperature is then 1
                          // and filters are ignored
  int32_t penalties = -1;  // its table; −1: no penalties
  int32_t bias_begin = 0;  // its entries in LogitsArgs::bias
  int32_t bias_count = 0;
  int32_t seat = 0;    // at least 0: entry of SampleArgs::ids for its token
  int32_t wave = 0;    // in which it is sampled: Note [Waves]
  int32_t draft = -1;  // the guess that it follows, which the previous row must have sampled; −1:
                       // it follows a token that stays
};

// SampledRow::token of a row that was skipped; all else is then invalid.
constexpr int32_t kSkipped = -2;

// A row's result, for the host.
struct SampledRow {
  double log_sum_exp;  // log Σ exp of the model's own logits
  float logprob;       // of the token, among the model's own logits
  int32_t token;       // −1: bias forbids every token, or a logit is not finite
  int32_t is_finite;   // whether every logit is; if not, all else is invalid
  int32_t unused;
};

// Layout of one row of the scratch memory between the launches.
struct SamplingLayout {
  static constexpr int64_t kGroup = 64;      // tokens that share one recorded maximum
  static constexpr int64_t kSlice = 8192;    // tokens of one block
  static constexpr int64_t kBuckets = 2048;  // of the first histogram

  int64_t vocab;

  constexpr int64_t groups() const { return divide_up(vocab, kGroup); }
  constexpr int64_t slices() const { return divide_up(vocab, kSlice); }
  constexpr int64_t group_mass_offset() const { return 0; }         // uint64 [groups]
  constexpr int64_t masses_offset() const { return groups() * 8; }  // uint64 [kBuckets]
  constexpr int64_t slices_offset() const { return masses_offset() + kBuckets * 8; }
  constexpr int64_t counts_offset() const { return slices_offset() + slices() * 24; }
  constexpr int64_t ticket_offset() const { return counts_offset() + kBuckets * 4; }
  constexpr int64_t group_keys_offset() const { return ticket_offset() + 8; }  // uint32 [groups]
  constexpr int64_t values_offset() const { return group_keys_offset() + groups() * 4; }
  constexpr int64_t bytes() const {  // values: float [groups][kGroup]
    return divide_up(values_offset() + groups() * kGroup * 4, 16) * 16;
  }
};

constexpr int64_t sampling_scratch_bytes(int64_t vocab, int64_t rows) {
  return rows * SamplingLayout{vocab}.bytes();
}

}  // namespace sinkstream::cuda
