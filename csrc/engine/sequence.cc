#include "engine/sequence.h"

#include <utility>

namespace sinkstream {

namespace {

int64_t length_of(const std::vector<int32_t>& prompt, const SamplingParams& params) {
  if (!params.max_tokens) return kEndlessLength;
  return static_cast<int64_t>(prompt.size()) + *params.max_tokens;
}

std::vector<int32_t> with_pending(std::optional<int32_t> pending, std::vector<int32_t> prompt) {
  if (pending) prompt.insert(prompt.begin(), *pending);
  return prompt;
}

// A grammar describes the reply's own bytes, so none is removed.
bool keeps_first_space(const Request& request) {
  return request.continues_text || request.grammar != nullptr;
}

Clock::time_point deadline_of(const Request& request, Clock::time_point now) {
  const std::optional<double>& timeout_s = request.params.timeout_s;
  if (!timeout_s) return kNoDeadline;
  const std::chrono::duration<double> timeout(*timeout_s);
  return request.called_at.value_or(now) + std::chrono::duration_cast<Clock::duration>(timeout);
}

}  // namespace

Sequence::Sequence(Request request, const Window& request_window, const CacheLayers& layers,
                   const TokenTable* table, std::shared_ptr<TokenStream> out, Clock::time_point now)
    : prompt(std::move(request.prompt)),
      prompt_tokens(static_cast<int64_t>(prompt.size())),
      window(request_window),
      max_length(length_of(prompt, request.params)),
      memory(SequenceCache::memory_needed(window, layers, max_length)),
      cache_salt(std::move(request.cache_salt)),
      share_key(std::move(request.share)),
      weight(request.weight),
      stop_tokens(request.params.stop_token_ids),
      stream(std::move(out)),
      sampler(request.params, window.sinks, window.window, max_length),
      text(table, request.params.stop, keeps_first_space(request)),
      grammar(request.grammar ? request.grammar->begin() : nullptr),
      submitted(now),
      deadline(deadline_of(request, now)) {
  text.follow(prompt);
  stats.prompt_tokens = prompt_tokens;
}

Sequence::Sequence(Request request, std::shared_ptr<Session> of, const TokenTable* table,
                   std::shared_ptr<TokenStream> out, Clock::time_point now)
    : prompt(with_pending(of->pending, std::move(request.prompt))),
      prompt_tokens(static_cast<int64_t>(prompt.size())),
      window(of->window()),
      max_length(kEndlessLength),
      share_key(std::move(request.share)),
      weight(request.weight),
      stop_tokens(request.params.stop_token_ids),
      stream(std::move(out)),
      sampler(request.params, window.sinks, window.window, max_length),
      text(table, request.params.stop, keeps_first_space(request)),
      grammar(request.grammar ? request.grammar->begin() : nullptr),
      session(std::move(of)),
      pending(session->pending),
      cache(&*session->cache),
      length_before(cache->length()),
      evicted_before(cache->evicted()),
      submitted(now),
      deadline(deadline_of(request, now)) {
  const std::vector<int32_t> earlier = session->tokens.ids();
  sampler.append(earlier);
  text.follow(earlier);
  text.follow(prompt);
  stats.prompt_tokens = prompt_tokens;
  stats.cached_tokens = stats.live_tokens = cache->live();
}

}  // namespace sinkstream
