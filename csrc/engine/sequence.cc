#include "engine/sequence.h"

#include <utility>

namespace sinkstream {

namespace {

int64_t length_of(const Request& request) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const std::optional<int64_t>& max_tokens = request.params.max_tokens;
  return max_tokens ? prompt + *max_tokens : kEndlessLength;
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
      submitted(Clock::now()) {
  prompt = std::move(request.prompt);
  stats.prompt_tokens = prompt_tokens;
}

}  // namespace sinkstream
