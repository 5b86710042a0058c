// A model whose weights and pages somebody keeps: what loading and the Python side need of a
// decoder, on a processor or on a GPU.
#pragma once

#include "kernels/page.h"
#include "model/language_model.h"

namespace sinkstream {

class WeightedModel : public LanguageModel {
 public:
  // Of the pages that its caches must have.
  virtual PageShape page_shape() const = 0;
  virtual int64_t scratch_bytes() const = 0;

  // Takes the tokens of ranks [begin, end) out of `cache`, as the next token's query would count
  // them: 0 is the first sink. Older window tokens move up behind them. One caller at a time.
  // Throws InvalidArgument unless S <= begin < end <= the next token's rank.
  virtual void evict_range(SequenceCache* cache, int64_t begin, int64_t end) = 0;

  // The scratch is needed no more.
  virtual void release() = 0;
};

}  // namespace sinkstream
