// One request inside the engine: its parameters, its resources and its progress. Owned by the
// engine's thread once submitted.
#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/sequence_cache.h"
#include "engine/drafts.h"
#include "engine/reply_text.h"
#include "engine/session.h"
#include "engine/shares.h"
#include "engine/token_stream.h"
#include "sampling/compile_grammar.h"
#include "sampling/token_set.h"

namespace sinkstream {

using Clock = std::chrono::steady_clock;

// Length of a sequence without a token limit: above any index, and small enough that sums of
// lengths do not overflow.
constexpr int64_t kEndlessLength = int64_t{1} << 60;
constexpr Clock::time_point kNoDeadline = Clock::time_point::max();

struct Request {
  std::vector<int32_t> prompt;   // token ids, at least one
  SamplingParams params;         // with its seed already chosen
  std::optional<int64_t> sinks;  // overrides the engine's at the same capacity: the window shrinks
  bool continues_text = false;   // the reply's text continues the prompt's text
  std::string cache_salt;        // shares a prefix, and learns guesses, only with the same salt
  std::shared_ptr<const CompiledGrammar> grammar;  // which the reply follows; null: none
  std::optional<CallTags> calls;                   // if the reply may call tools: they do not stop
  std::optional<Clock::time_point> called_at;      // start of `params.timeout_s`; none: `now`
  std::string share;                               // whose work it is: Note [Fair shares]
  double weight = 1;                               // of that share; above 0
};

// A reply with a grammar and no limit of its own gets the matcher's.
inline void limit_length(Request* request) {
  std::optional<int64_t>& tokens = request->params.max_tokens;
  if (request->grammar && !tokens) tokens = kMaxGrammarTokens;
}

struct Sequence {
  Sequence(Request request, const Window& window, const CacheLayers& layers,
           const TokenTable* table, std::shared_ptr<TokenStream> out, Clock::time_point now);
  // A turn of a session that the caller has acquired.
  Sequence(Request request, std::shared_ptr<Session> session, const TokenTable* table,
           std::shared_ptr<TokenStream> out, Clock::time_point now);

  bool is_prefilling() const { return prefilled < prompt_tokens; }
  bool wants_reply() const { return sampler.params().max_tokens != 0; }
  int64_t priority() const { return sampler.params().priority; }
  bool scores_prompt() const { return sampler.params().prompt_logprobs.has_value(); }
  // Prompt tokens of its own in the cache; below 0 while it reads its session's text again.
  int64_t own_prefilled() const { return prefilled - replayed; }
  // Tokens that it has evicted from its text.
  int64_t evicted() const { return std::max<int64_t>(cache->evicted() - evicted_before, 0); }
  // The tokens that steps in flight append to its cache.
  int64_t in_flight() const { return cache == nullptr ? 0 : cache->in_flight(); }
  // Prompt tokens that are not yet in a launched step.
  int64_t prompt_left() const {
    return std::max<int64_t>(prompt_tokens - prefilled - in_flight(), 0);
  }
  // Of those, the ones whose logits score the next prompt token: all but the last.
  int64_t to_score() const { return scores_prompt() ? std::max<int64_t>(prompt_left() - 1, 0) : 0; }
  // Its next tokens, from `offset` after those in the cache: the prompt's, or the last sampled one.
  const int32_t* next_tokens(int64_t offset) const {
    return prefilled + offset < prompt_tokens ? prompt.data() + prefilled + offset : &last_token;
  }
  // Whether it has prompt left, or wants more tokens than are sampled or in flight.
  bool has_more_to_launch() const {
    const std::optional<int64_t>& most = sampler.params().max_tokens;
    return prompt_left() > 0 || !most || stats.generated_tokens + samples_in_flight < *most;
  }
  // Whether it is sampled on the host even if the runner samples.
  bool needs_host() const { return grammar != nullptr || sampler.params().logprobs > 0; }
  bool samples_on_host() const { return seat < 0 || needs_host(); }
  // Whether its next step depends on a result in flight: on the token that the host samples from
  // it, or on how many of its drafts stay.
  bool awaits_result() const {
    return drafts_in_flight > 0 || (samples_in_flight > 0 && needs_host());
  }
  // Of the tokens that a runner drafts in a step, those that it may still want.
  int64_t wanted_drafts(int64_t drafts) const {
    return samples_on_host() ? 0 : std::clamp<int64_t>(tokens_left() - 1, 0, drafts);
  }
  // Tokens that may follow what is sampled or in flight.
  int64_t tokens_left() const {
    const std::optional<int64_t>& most = sampler.params().max_tokens;
    return most ? *most - stats.generated_tokens - samples_in_flight : kEndlessLength;
  }

  std::vector<int32_t> prompt;      // released once prefilled
  std::vector<int32_t> prediction;  // released once it is learned, after the prompt
  const int64_t prompt_tokens;
  const Window window;
  const int64_t max_length;   // prompt + max_tokens; kEndlessLength
  const MemoryAmount memory;  // all that it will ever allocate; none for a turn: its session has it
  const std::string cache_salt;  // empty for a turn: its session has one
  const std::string share_key;
  const double weight;  // of its share
  const TokenSet stop_tokens;
  const std::shared_ptr<TokenStream> stream;

  Sampler sampler;
  ReplyText text;
  const std::unique_ptr<Grammar> grammar;  // null: any token may be sampled
  const std::shared_ptr<Session> session;  // null: the cache ends with the sequence
  const SessionPosition before;            // of the session, before this turn
  std::optional<SequenceCache> own_cache;  // from admission to the end, if it has no session
  SequenceCache* cache = nullptr;          // its session's or its own; null unless admitted
  Shares::Share* share = nullptr;          // from its arrival to its end

  Phase phase = Phase::kWaiting;
  int64_t prefilled = 0;          // prompt tokens in the cache
  int32_t last_token = -1;        // sampled, and not in the cache yet; below 0: none
  int64_t last_step = -1;         // the last step it was part of
  int64_t seat = -1;              // in the StepRunner while it runs; below 0: none
  int64_t samples_in_flight = 0;  // rows in flight after which tokens are sampled
  int64_t drafts_in_flight = 0;   // of in_flight(), tokens that may not stay
  std::exception_ptr failure;     // it ends with this once no token is in flight
  int64_t length_before = 0;      // tokens in its session's cache before this turn
  int64_t replayed = 0;           // prompt tokens at its start that are in the session's text
  int64_t evicted_before = 0;     // tokens evicted from its text before this turn

  // Note [Drafts] of drafts.h.
  TextTail tail;                 // of the tokens in its cache
  std::vector<Guess> guesses;    // what may follow its last token
  std::vector<int32_t> drafted;  // its last token, and the guesses that a step verifies
  Acceptance acceptance;         // from its admission on, with that of all before it

  const Clock::time_point submitted;
  const Clock::time_point deadline;                // kNoDeadline: none
  std::optional<Clock::time_point> last_token_at;  // none before the first token and after a pause
  int64_t timed_step = -1;                         // the step whose first token arrived then
  int64_t timed_tokens = 0;                        // of that step
  StreamStats stats;
};

}  // namespace sinkstream
