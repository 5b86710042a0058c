#pragma once

#include "kernels/cpu/math.inl"
#include "kernels/cpu/sampling/select.inl"
#include "kernels/cpu/sampling/vocab_blocks.inl"

// The largest logit of each block serves as an index: few blocks hold a token that survives the
// filters, and the others are not read again.
struct Sampling {
  const VocabBlocks& logits;
  double* buckets = nullptr;       // [kBuckets]
  double* block_mass = nullptr;    // [blocks], Σ of the weights that remain
  float* block_max = nullptr;      // [blocks]
  float* weights = nullptr;        // [blocks][64], e^(logit − largest), where the block has mass
  float* values = nullptr;         // [blocks][64], candidates
  float* value_weights = nullptr;  // [blocks][64], of the candidates
  float largest = 0;
};

Sampling sampling_in_scratch(const VocabBlocks& logits, std::byte* scratch) {
  Sampling s{logits};
  const int64_t blocks = logits.count();
  const auto take = [&](int64_t bytes) { return (scratch += bytes) - bytes; };
  s.buckets = reinterpret_cast<double*>(take(kBuckets * 8));
  s.block_mass = reinterpret_cast<double*>(take(blocks * 8));
  s.block_max = reinterpret_cast<float*>(take(blocks * 4));
  s.weights = reinterpret_cast<float*>(take(blocks * kVocabBlock * 4));
  s.values = reinterpret_cast<float*>(take(blocks * kVocabBlock * 4));
  s.value_weights = reinterpret_cast<float*>(take(blocks * kVocabBlock * 4));
  return s;
}

void find_block_maxima(Sampling& s) {
  Vec largest = broadcast(-__builtin_inff());
  for (int64_t b = 0; b < s.logits.count(); ++b) {
    const Vec lanes = block_max_lanes(s.logits[b]);
    s.block_max[b] = reduce_max(lanes);
    largest = max(largest, lanes);
  }
  s.largest = reduce_max(largest);
}

int32_t first_largest(const Sampling& s) {
  int64_t b = 0;
  while (s.block_max[b] != s.largest) ++b;
  int64_t i = 0;
  while (s.logits[b][i] != s.largest) ++i;
  return static_cast<int32_t>(b * kVocabBlock + i);
}

// Copies the logits at or above `cut`, and their weights if wanted, to the candidates.
Candidates gather(const Sampling& s, float cut, bool with_weights) {
  int64_t count = 0;
  for (int64_t b = 0; b < s.logits.count(); ++b) {
    if (s.block_max[b] < cut) continue;
    for (int64_t i = 0; i < kVocabBlock; ++i) {
      s.values[count] = s.logits[b][i];
      if (with_weights) s.value_weights[count] = s.weights[b * kVocabBlock + i];
      count += s.logits[b][i] >= cut;  // otherwise the next one overwrites it
    }
  }
  return {s.values, with_weights ? s.value_weights : nullptr, count, s.buckets};
}

// The k-th largest logit, or the smallest allowed one if there are fewer.
float top_k_threshold(const Sampling& s, int64_t k) {
  // At least k logits reach the k-th largest block maximum.
  float cut = -kLargestFloat;
  int64_t blocks = 0;
  for (int64_t b = 0; b < s.logits.count(); ++b) {
    s.values[blocks] = s.block_max[b];
    blocks += s.block_max[b] >= cut;
  }
  if (k <= blocks) cut = select_by_weight({s.values, nullptr, blocks, s.buckets}, k);
  return select_by_weight(gather(s, cut, false), k);
}

float min_p_threshold(float largest, double min_p) {
  const double least = largest + __builtin_log(min_p);
  const float rounded = static_cast<float>(least);
  return rounded < least ? __builtin_nextafterf(rounded, __builtin_inff()) : rounded;
}

// Sets the weight of every logit at or above `floor`; the others weigh nothing.
void set_weights(const Sampling& s, float floor) {
  const Vec lowest = broadcast(floor);
  for (int64_t b = 0; b < s.logits.count(); ++b) {
    s.block_mass[b] = 0;
    if (s.block_max[b] < floor) continue;
    Vec sum{};
    for (int64_t i = 0; i < kVocabBlock; i += kLanes) {
      const Vec x = load(s.logits[b] + i);
      const Vec weight = select(x >= lowest, exp_nonpositive(x - s.largest), Vec{});
      store(s.weights + b * kVocabBlock + i, weight);
      sum = sum + weight;
    }
    s.block_mass[b] = reduce_add(sum);
  }
}

// Clears the weight of every logit below `floor`.
void drop_below(const Sampling& s, float floor) {
  const Vec lowest = broadcast(floor);
  for (int64_t b = 0; b < s.logits.count(); ++b) {
    s.block_mass[b] = 0;
    if (s.block_max[b] < floor) continue;
    Vec sum{};
    for (int64_t i = 0; i < kVocabBlock; i += kLanes) {
      float* weights = s.weights + b * kVocabBlock + i;
      const Vec weight = select(load(s.logits[b] + i) >= lowest, load(weights), Vec{});
      store(weights, weight);
      sum = sum + weight;
    }
    s.block_mass[b] = reduce_add(sum);
  }
}

double total_mass(const Sampling& s) {
  double total = 0;
  for (int64_t b = 0; b < s.logits.count(); ++b) total += s.block_mass[b];
  return total;
}

// The threshold of top-p among the logits that have weight, or `floor` if that is higher.
float top_p_threshold(const Sampling& s, double top_p, float floor, int64_t vocab) {
  const double total = total_mass(s);
  // All logits below this together weigh less than half of what top-p drops.
  const double dropped = (1 - top_p) * total / (2 * static_cast<double>(vocab));
  const float cut = static_cast<float>(s.largest + __builtin_log(dropped));
  const Candidates candidates = gather(s, cut > floor ? cut : floor, true);
  return select_by_weight(candidates, top_p * total);
}

int32_t draw(const Sampling& s, double uniform) {
  const double target = uniform * total_mass(s);
  double reached = 0;
  int64_t block = -1;
  for (int64_t b = 0; b < s.logits.count(); ++b) {
    if (s.block_mass[b] == 0) continue;
    block = b;
    if (reached + s.block_mass[b] > target) break;
    reached += s.block_mass[b];
  }
  // Rounding may leave the target slightly beyond the last weight; that token is then chosen.
  int64_t token = -1;
  for (int64_t i = block * kVocabBlock; i < (block + 1) * kVocabBlock; ++i) {
    if (s.weights[i] == 0) continue;
    token = i;
    reached += s.weights[i];
    if (reached > target) break;
  }
  return static_cast<int32_t>(token);
}

// See [Filters are thresholds].
void sample(const SampleArgs& args, const Launch& launch) {
  launch.pool->run(1, [&](int64_t, int) {
    const VocabBlocks blocks(args.logits, args.vocab);
    Sampling s = sampling_in_scratch(blocks, args.scratch);
    find_block_maxima(s);
    float threshold = s.largest;
    if (s.largest < -kLargestFloat) {
      *args.token = -1;
      threshold = __builtin_inff();
    } else if (args.greedy) {
      *args.token = first_largest(s);
    } else {
      const bool has_top_k = args.top_k > 0 && args.top_k < args.vocab;
      const float top_k = has_top_k ? top_k_threshold(s, args.top_k) : -kLargestFloat;
      const float min_p = args.min_p > 0 ? min_p_threshold(s.largest, args.min_p) : -kLargestFloat;
      threshold = top_k > min_p ? top_k : min_p;
      if (args.top_p < 1) {
        set_weights(s, top_k);
        threshold = top_p_threshold(s, args.top_p, threshold, args.vocab);
        drop_below(s, threshold);
      } else {
        set_weights(s, threshold);
      }
      *args.token = draw(s, args.uniform);
    }
    if (args.threshold != nullptr) *args.threshold = threshold;
  });
}
