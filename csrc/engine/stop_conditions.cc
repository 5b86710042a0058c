#include "engine/stop_conditions.h"

namespace sinkstream {

std::optional<FinishReason> early_finish(const Sequence& sequence, Clock::time_point now) {
  if (sequence.failure) return FinishReason::kError;
  if (sequence.stream->is_cancelled()) return FinishReason::kCancelled;
  if (now >= sequence.deadline) return FinishReason::kTimeout;
  return std::nullopt;
}

std::optional<FinishReason> finish_at_token(Sequence& sequence, int32_t token,
                                            const TokenSet& end_tokens) {
  const SamplingParams& params = sequence.sampler.params();
  const bool is_end_token = end_tokens.contains(token);
  if (sequence.stop_tokens.contains(token) || (is_end_token && !params.ignore_eos)) {
    return FinishReason::kStop;
  }
  // The text of an ignored end token is not shown.
  if (!is_end_token && sequence.text.push(token, &sequence.stream->staged().text)) {
    return FinishReason::kStopString;
  }
  if (sequence.grammar && sequence.grammar->is_complete()) return FinishReason::kStop;
  if (sequence.stats.generated_tokens == params.max_tokens) return FinishReason::kLength;
  return std::nullopt;
}

}  // namespace sinkstream
