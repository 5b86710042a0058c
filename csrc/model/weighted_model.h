// A language model with weights and pages: what a LoadedModel needs from a decoder on the CPU or a
// GPU.
#pragma once

#include "kernels/page.h"
#include "model/language_model.h"

namespace sinkstream {

class WeightedModel : public LanguageModel {
 public:
  // The shape of a layer's pages.
  virtual PageShape page_shape(int64_t layer) const = 0;
  virtual int64_t scratch_bytes() const = 0;

  // Removes the tokens with ranks [begin, end) from `cache`, as the next token's query would count
  // them: 0 is the first sink. Older window tokens move up to close the gap. One caller at a time.
  // Throws InvalidArgument unless S <= begin < end <= the next token's rank.
  virtual void evict_range(SequenceCache* cache, int64_t begin, int64_t end) = 0;

  // Frees the scratch memory. The model must not be used afterwards.
  virtual void release() = 0;
};

}  // namespace sinkstream
