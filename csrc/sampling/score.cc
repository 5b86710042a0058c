#include "sampling/score.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "sampling/sample_errors.h"

namespace sinkstream {

// Each logit is compared with the lowest one kept so far, which few exceed.
std::vector<TokenLogprob> most_probable(const float* logits, int64_t vocab, int64_t count,
                                        double log_sum_exp) {
  count = std::min(count, vocab);
  std::vector<std::pair<float, int32_t>> best;  // logit, id
  best.reserve(count + 1);
  float lowest = -std::numeric_limits<float>::infinity();
  for (int64_t id = 0; id < vocab && count > 0; ++id) {
    if (!(logits[id] > lowest)) continue;
    const auto next = std::find_if(best.begin(), best.end(),
                                   [&](const auto& entry) { return entry.first < logits[id]; });
    best.insert(next, {logits[id], static_cast<int32_t>(id)});
    if (static_cast<int64_t>(best.size()) > count) best.pop_back();
    if (static_cast<int64_t>(best.size()) == count) lowest = best.back().first;
  }
  std::vector<TokenLogprob> top;
  top.reserve(best.size());
  for (const auto& [logit, id] : best) top.push_back({id, static_cast<float>(logit - log_sum_exp)});
  return top;
}

void refuse_non_finite(const float* logits, int64_t vocab, int64_t index) {
  const float* bad =
      std::find_if(logits, logits + vocab, [](float logit) { return !std::isfinite(logit); });
  throw non_finite_logits(index, cat("the logit of token ", bad - logits, " is ", *bad));
}

ScoredToken score_token(const float* logits, int64_t vocab, int32_t token, int64_t index,
                        int64_t top_count, const Kernels& kernels, const Launch& launch) {
  bool is_finite = false;
  double log_sum_exp = 0;
  kernels.logits(
      {.input = logits, .vocab = vocab, .is_finite = &is_finite, .log_sum_exp = &log_sum_exp},
      launch);
  if (!is_finite) refuse_non_finite(logits, vocab, index);
  ScoredToken scored{
      .token = token, .logprob = static_cast<float>(logits[token] - log_sum_exp), .top = {}};
  if (top_count > 0) scored.top = most_probable(logits, vocab, top_count, log_sum_exp);
  return scored;
}

}  // namespace sinkstream
