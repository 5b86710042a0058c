#include "engine/sequence.h"

#include <utility>

namespace sinkstream {

namespace {

int64_t length_of(const std::vector<int32_t>& prompt, const SamplingParams& params) {
  if (!params.max_tokens) return kEndlessLength;
  return static_cast<int64_t>(prompt.size()) + *params.max_tokens;
}

// What a turn of a session reads: what the cache does not have of the session's text, then the
// prompt. An empty one leaves the pending token alone.
std::vector<int32_t> ids_to_read(const Session& session, std::vector<int32_t> prompt) {
  if (session.pending && !prompt.empty()) prompt.insert(prompt.begin(), *session.pending);
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(session.unread()) + prompt.size());
  for (int64_t t = session.cache->length(); t < session.tokens.length(); ++t) {
    ids.push_back(session.tokens.at(t));
  }
  ids.insert(ids.end(), prompt.begin(), prompt.end());
  return ids;
}

uint64_t salt_of(const std::string& cache_salt) { return std::hash<std::string>()(cache_salt); }

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
      prediction(std::exchange(request.params.prediction, {})),
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
      text(table, request.params.stop, keeps_first_space(request), std::move(request.calls)),
      grammar(request.grammar ? request.grammar->begin() : nullptr),
      tail(salt_of(cache_salt)),
      submitted(now),
      deadline(deadline_of(request, now)) {
  text.follow(prompt);
  stats.prompt_tokens = prompt_tokens;
}

Sequence::Sequence(Request request, std::shared_ptr<Session> of, const TokenTable* table,
                   std::shared_ptr<TokenStream> out, Clock::time_point now)
    : prompt(ids_to_read(*of, std::move(request.prompt))),
      prediction(std::exchange(request.params.prediction, {})),
      prompt_tokens(static_cast<int64_t>(prompt.size())),
      window(of->window()),
      max_length(kEndlessLength),
      share_key(std::move(request.share)),
      weight(request.weight),
      stop_tokens(request.params.stop_token_ids),
      stream(std::move(out)),
      sampler(request.params, window.sinks, window.window, max_length),
      text(table, request.params.stop, keeps_first_space(request), std::move(request.calls)),
      grammar(request.grammar ? request.grammar->begin() : nullptr),
      session(std::move(of)),
      before(session->position()),
      cache(&*session->cache),
      length_before(cache->length()),
      replayed(session->unread()),
      evicted_before(window.evicted(session->tokens.length())),
      tail(salt_of(session->cache_salt())),
      submitted(now),
      deadline(deadline_of(request, now)) {
  const std::vector<int32_t> earlier = session->cached_ids();
  sampler.append(earlier);
  for (const int32_t token : earlier) tail.append(token);
  text.follow(earlier);
  text.follow(prompt);
  stats.prompt_tokens = prompt_tokens - replayed;
  stats.replayed_tokens = replayed;
  stats.cached_tokens = stats.live_tokens = cache->live();
}

}  // namespace sinkstream
