// Why no token can be sampled at an index of the stream: the errors that end its sequence, whether
// the host samples or the device.
#pragma once

#include <cstdint>
#include <string>

#include "common/errors.h"

namespace sinkstream {

// `which`: says which logits are not finite.
inline NonFiniteLogits non_finite_logits(int64_t index, const std::string& which) {
  return NonFiniteLogits(cat("stream: logits must be finite, but at index ", index, " ", which,
                             ". Other streams continue; a more precise dtype may help."),
                         index);
}

inline InvalidArgument no_token_left(int64_t index, int64_t vocab) {
  return InvalidArgument(cat("stream: `logit_bias` must leave a token to sample, but forbids all ",
                             vocab, " at index ", index, "."),
                         "logit_bias");
}

inline InvalidArgument no_allowed_token_left(int64_t index) {
  return InvalidArgument(
      cat("stream: `logit_bias` must leave a token that the grammar allows, but at index ", index,
          " there is none."),
      "logit_bias");
}

}  // namespace sinkstream
