// A row of logits as blocks of 64, the last one padded with −infinity, so that loops need no
// remainder. Sums are formed by block, not by vector, so their order depends only on the row.
#pragma once

constexpr int64_t kVocabBlock = 64;

class VocabBlocks {
 public:
  VocabBlocks(const float* logits, int64_t vocab)
      : logits_(logits), whole_(vocab / kVocabBlock), rest_(vocab % kVocabBlock) {
    for (int64_t i = 0; i < kVocabBlock; ++i) {
      tail_[i] = i < rest_ ? logits[whole_ * kVocabBlock + i] : -__builtin_inff();
    }
  }

  int64_t count() const { return whole_ + (rest_ > 0); }
  const float* operator[](int64_t b) const {
    return b < whole_ ? logits_ + b * kVocabBlock : tail_;
  }

 private:
  const float* logits_;
  int64_t whole_;
  int64_t rest_;
  float tail_[kVocabBlock];
};

SINKSTREAM_INLINE Vec block_max_lanes(const float* block) {
  Vec largest = load(block);
  for (int64_t i = kLanes; i < kVocabBlock; i += kLanes) largest = max(largest, load(block + i));
  return largest;
}
