// One request inside the engine: what it asked for, what it holds, and how far it has come.
// Belongs to the engine thread once it has been submitted.
#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "cache/sequence_cache.h"
#include "engine/reply_text.h"
#include "engine/session.h"
#include "engine/token_stream.h"
#include "sampling/token_set.h"

namespace sinkstream {

using Clock = std::chrono::steady_clock;

// The length of a sequence that never ends by itself: far above any index, far below where sums of
// lengths overflow.
constexpr int64_t kEndlessLength = int64_t{1} << 60;
constexpr Clock::time_point kNoDeadline = Clock::time_point::max();

struct Request {
  std::vector<int32_t> prompt;   // token ids, at least one
  SamplingParams params;         // its seed drawn already
  std::optional<int64_t> sinks;  // in place of the engine's; the capacity stays, the window shrinks
  bool continues_text = false;   // the reply's text is to be read behind the prompt's
  std::optional<Clock::time_point>
      called_at;  // `params.timeout_s` counts from here; else from `now`
};

struct Sequence {
  Sequence(Request request, const Window& window, int64_t layers, const TokenTable* table,
           std::shared_ptr<TokenStream> out, Clock::time_point now);
  // A turn of a session, which the caller holds.
  Sequence(Request request, std::shared_ptr<Session> session, const TokenTable* table,
           std::shared_ptr<TokenStream> out, Clock::time_point now);

  bool is_prefilling() const { return prefilled < prompt_tokens; }
  bool wants_reply() const { return sampler.params().max_tokens != 0; }
  // How it ends in whatever phase it is, if it has to.
  std::optional<FinishReason> maybe_early_finish(Clock::time_point now) const;
  // Of its tokens, those that steps under way append to its cache.
  int64_t in_flight() const { return cache == nullptr ? 0 : cache->in_flight(); }
  // Prompt tokens that no step has taken yet.
  int64_t prompt_left() const {
    return std::max<int64_t>(prompt_tokens - prefilled - in_flight(), 0);
  }
  // Its tokens behind those in the cache and so many more: of the prompt, or the last one sampled.
  const int32_t* next_tokens(int64_t offset) const {
    return prefilled + offset < prompt_tokens ? prompt.data() + prefilled + offset : &last_token;
  }
  // Whether it has prompt left, or wants more tokens than have been drawn or are being drawn.
  bool has_more_to_launch() const {
    const std::optional<int64_t>& most = sampler.params().max_tokens;
    return prompt_left() > 0 || !most || stats.generated_tokens + samples_in_flight < *most;
  }
  // Who wants the likeliest tokens, too, is drawn for by the host, whoever draws for the others.
  bool samples_on_host() const { return seat < 0 || sampler.params().logprobs > 0; }

  std::vector<int32_t> prompt;  // given back once it has been read
  const int64_t prompt_tokens;
  const Window window;
  const int64_t max_length;  // prompt + max_tokens; kEndlessLength
  const int64_t pages;       // all that it will ever take; a session has its own already
  const TokenSet stop_tokens;
  const std::shared_ptr<TokenStream> stream;

  Sampler sampler;
  ReplyText text;
  const std::shared_ptr<Session> session;  // null: it keeps nothing
  const std::optional<int32_t> pending;    // by the session, before this turn
  std::optional<SequenceCache> own_cache;  // from its admission to its end, where it has no session
  SequenceCache* cache = nullptr;          // its session's or its own one; null before and after

  Phase phase = Phase::kWaiting;
  int64_t prefilled = 0;    // prompt tokens in the cache
  int32_t last_token = -1;  // sampled, and not in the cache yet; below 0: there is none
  int64_t last_step = -1;   // the step that it last took part in
  int64_t seat = -1;        // of the model's DeviceSampler, while it runs; below 0: it has none
  int64_t samples_in_flight = 0;  // tokens of it that steps under way draw, or the host for them
  std::exception_ptr failure;     // it ends with this as soon as nothing of it is under way
  int64_t length_before = 0;      // tokens in its session's cache
  int64_t evicted_before = 0;     // tokens that had left it

  const Clock::time_point submitted;
  const Clock::time_point deadline;                // kNoDeadline: none
  std::optional<Clock::time_point> last_token_at;  // none before the first, and after a pause
  StreamStats stats;
};

}  // namespace sinkstream
