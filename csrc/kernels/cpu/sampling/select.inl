// Finds a threshold among unsorted values by the weight of the values above it.
#pragma once

constexpr int kBuckets = 512;

struct Candidates {
  float* values;    // [count], finite; reordered
  float* weights;   // [count], at least 0; null: every value weighs 1
  int64_t count;    // at least 1
  double* buckets;  // [kBuckets], scratch
};

SINKSTREAM_INLINE int bucket_of(float value, double highest, double scale) {
  const int bucket =
      static_cast<int>((highest - value) * scale);  // increases as the value decreases
  return bucket < kBuckets ? bucket : kBuckets - 1;
}

// The largest value such that it and the values above it weigh at least `target` together; the
// smallest value if all weigh less. Equal values count together.
//
// The range of the values is divided into equal buckets. The bucket in which the target is reached
// is divided again, until it holds one value: the highest and the lowest value never share a
// bucket.
float select_by_weight(Candidates candidates, double target) {
  float* values = candidates.values;
  float* weights = candidates.weights;
  int64_t count = candidates.count;
  double above = 0;  // the weight of all higher buckets
  for (;;) {
    float highest = values[0], lowest = values[0];
    for (int64_t i = 1; i < count; ++i) {
      highest = values[i] > highest ? values[i] : highest;
      lowest = values[i] < lowest ? values[i] : lowest;
    }
    if (!(lowest < highest)) return lowest;
    const double scale = kBuckets / (double{highest} - lowest);

    for (int b = 0; b < kBuckets; ++b) candidates.buckets[b] = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float weight = weights == nullptr ? 1 : weights[i];
      candidates.buckets[bucket_of(values[i], highest, scale)] += weight;
    }
    int chosen = 0;
    while (chosen < kBuckets - 1 && above + candidates.buckets[chosen] < target) {
      above += candidates.buckets[chosen++];
    }

    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (bucket_of(values[i], highest, scale) != chosen) continue;
      values[kept] = values[i];
      if (weights != nullptr) weights[kept] = weights[i];
      ++kept;
    }
    count = kept;
  }
}
