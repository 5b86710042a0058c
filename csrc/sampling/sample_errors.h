// Why there is no token at an index of the stream: what a draw ends its sequence with, wherever the
// drawing is done.
#pragma once

#include <cstdint>
#include <string>

#include "common/errors.h"

namespace sinkstream {

// `which`: the logits that are not finite, and that they are not.
inline NonFiniteLogits non_finite_logits(int64_t index, const std::string& which) {
  return NonFiniteLogits(cat("stream: logits must be finite, but at index ", index, " ", which,
                             ". Other streams go on; a finer dtype may help."),
                         index);
}

inline InvalidArgument no_token_left(int64_t index, int64_t vocab) {
  return InvalidArgument(cat("stream: `logit_bias` must leave a token to draw, but forbids all ",
                             vocab, " at index ", index, "."),
                         "logit_bias");
}

}  // namespace sinkstream
