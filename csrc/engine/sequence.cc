#include "engine/sequence.h"

#include <utility>

namespace sinkstream {

namespace {

int64_t length_of(const Request& request) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const std::optional<int64_t>& max_tokens = request.params.max_tokens;
  return max_tokens ? prompt + *max_tokens : kEndlessLength;
}

Clock::time_point deadline_of(const Request& request) {
  const std::optional<double>& timeout_s = request.params.timeout_s;
  if (!timeout_s) return kNoDeadline;
  const std::chrono::duration<double> timeout(*timeout_s);
  return request.called + std::chrono::duration_cast<Clock::duration>(timeout);
}

}  // namespace

Sequence::Sequence(Request request, const Window& request_window, int64_t layers,
                   const TokenTable* table, std::shared_ptr<TokenStream> out)
    : prompt_tokens(static_cast<int64_t>(request.prompt.size())),
      window(request_window),
      max_length(length_of(request)),
      pages(SequenceCache::pages_needed(window, layers, max_length)),
      stop_tokens(request.params.stop_token_ids),
      stream(std::move(out)),
      sampler(request.params, window.sinks, window.window, max_length),
      text(table, request.params.stop, request.continues_text),
      submitted(Clock::now()),
      deadline(deadline_of(request)) {
  prompt = std::move(request.prompt);
  stats.prompt_tokens = prompt_tokens;
}

std::optional<FinishReason> Sequence::maybe_early_end(Clock::time_point now) const {
  if (stream->is_cancelled()) return FinishReason::kCancelled;
  if (now >= deadline) return FinishReason::kTimeout;
  return std::nullopt;
}

}  // namespace sinkstream
