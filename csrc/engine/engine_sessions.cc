// Sessions: the functions for callers, and those of the engine's thread.
#include <chrono>
#include <thread>
#include <utility>

#include "common/errors.h"
#include "common/fail_point.h"
#include "common/human_bytes.h"
#include "engine/engine.h"

namespace sinkstream {

namespace {

// Releases an acquired session at the end of a call.
class SessionLease {
 public:
  explicit SessionLease(Session& session) : session_(&session) {}
  ~SessionLease() {
    if (session_ != nullptr) session_->release();
  }
  SessionLease(const SessionLease&) = delete;
  SessionLease& operator=(const SessionLease&) = delete;
  // Hands the session over to a turn, which releases it.
  void dismiss() { session_ = nullptr; }

 private:
  Session* session_;
};

int64_t common_prefix(const TokenLog& tokens, std::span<const int32_t> prompt, int64_t most) {
  most = std::min(most, static_cast<int64_t>(prompt.size()));
  int64_t count = 0;
  while (count < most && tokens.at(count) == prompt[static_cast<size_t>(count)]) ++count;
  return count;
}

void check_scores_no_prompt(const SamplingParams& params) {
  if (!params.prompt_logprobs) return;
  throw InvalidArgument(
      cat("stream: `prompt_logprobs` must be None in a session, but is ", *params.prompt_logprobs,
          ". A session does not process its earlier tokens again. Use "
          "`Model.stream`."),
      "prompt_logprobs");
}

}  // namespace

// ---- the callers' side -----------------------------------------------------------------------

// If a cancelled turn holds the session, waits for it to end.
void Engine::acquire_session(Session& session) {
  owner_.check("session");
  const auto check_not_closed = [&] {
    if (!session.is_closed()) return;
    const std::lock_guard lock(mutex_);
    check_open("session");  // closing the engine also closes its sessions
    throw InvalidArgument("session: the session must be open, but is closed.");
  };
  check_not_closed();
  while (true) {
    // Read before the attempt. A turn releases its session before it ends its stream, so a turn
    // whose stream has ended no longer holds the session; a turn that is about to end is waited
    // for.
    const std::shared_ptr<TokenStream> turn = session.turn();
    const bool is_ending = turn && turn->is_cancelled() && !turn->finish_reason();
    if (session.try_acquire()) return;
    SINKSTREAM_FAIL_POINT("session.in_use");
    check_not_closed();
    if (!is_ending) {
      throw SessionBusy(
          "session: only one turn can run at a time, but another is running, or the session is "
          "being forked or saved. Read the reply to its end, or call `session.cancel()`.");
    }
    between_steps([] {}, "session");
  }
}

std::shared_ptr<Session> Engine::make_session(const Window& window, std::string cache_salt) const {
  const int64_t reach = std::max<int64_t>(options_.layers.reach(window), 0);
  return std::make_shared<Session>(bell_, window, kUndoneTokens + reach, std::move(cache_salt));
}

std::shared_ptr<Session> Engine::open_session(std::optional<int64_t> sinks,
                                              const std::vector<int32_t>& prompt,
                                              std::string cache_salt) {
  const Window window = window_of("session", sinks);
  if (!prompt.empty()) check_prompt(prompt);
  const auto session = make_session(window, std::move(cache_salt));
  const auto work = [&] {
    const SharedPrefix shared = longest_shared_prefix(window, session->cache_salt(), prompt);
    add_session(session, shared);
    session->tokens.append(std::span(prompt).first(static_cast<size_t>(shared.count)));
    session->is_ready = true;
    session->publish_stats();
  };
  between_steps(work, "session");
  return session;
}

std::shared_ptr<TokenStream> Engine::submit(Request request,
                                            const std::shared_ptr<Session>& session) {
  check(request);
  check_scores_no_prompt(request.params);
  limit_length(&request);
  acquire_session(*session);
  SessionLease lease(*session);
  const bool only_reads_again = request.prompt.empty() && request.params.max_tokens == 0;
  if (!only_reads_again || session->unread() == 0) check_prompt(request.prompt);
  auto stream = make_stream();
  auto sequence = std::make_unique<Sequence>(std::move(request), session, options_.tokens.get(),
                                             stream, options_.now());
  session->set_turn(stream);
  if (session->is_closed()) stream->cancel();  // `close` may have missed this turn
  enqueue(std::move(sequence));
  lease.dismiss();
  return stream;
}

std::shared_ptr<Session> Engine::fork_session(Session& session) {
  acquire_session(session);
  const SessionLease lease(session);
  const auto fork = make_session(session.window(), session.cache_salt());
  fork->tokens.copy_from(session.tokens);
  const auto work = [&] {
    fork->pending = session.pending;
    fork->turns = session.turns;
    add_session(fork, shared_prefix_with(&session, session.cache->length()));
    fork->is_ready = true;
    fork->publish_stats();
  };
  between_steps(work, "session");
  return fork;
}

SessionPosition Engine::position_of(Session& session) {
  acquire_session(session);
  const SessionLease lease(session);
  return session.position();
}

// A cancelled turn leaves the session where it was, or further.
bool Engine::go_back(Session& session, const SessionPosition& to, bool reads_again) {
  acquire_session(session);
  const SessionLease lease(session);
  SINKSTREAM_CHECK(to.length >= 0 && to.length <= session.tokens.length(), "a session of ",
                   session.tokens.length(), " tokens cannot go back to ", to.length);
  bool is_there = false;
  const auto work = [&] {
    is_there = rewind(session, to.length) || (reads_again && restart(session, to.length));
    if (!is_there) return;
    session.tokens.rewind(to.length);
    session.pending = to.pending;
    session.turns = to.turns;
    session.publish_stats();
    publish_stats();
  };
  between_steps(work, "undo");
  return is_there;
}

void Engine::read_session(Session& session, const std::function<void(const Session&)>& read) {
  acquire_session(session);
  const SessionLease lease(session);
  read(session);
}

std::shared_ptr<Session> Engine::restore_session(int64_t sinks, const SessionState& state,
                                                 const std::function<void(SequenceCache*)>& write,
                                                 std::string cache_salt) {
  const Window window = window_of("load_session", sinks);
  const auto session = make_session(window, std::move(cache_salt));
  session->try_acquire();  // no other thread has it yet
  const SessionLease lease(*session);
  const auto add_pages = [&] { add_session(session, {}); };
  const auto fill_in = [&] {
    session->tokens.restore(state.ids, state.length);
    session->pending = state.pending;
    session->turns = state.turns;
    session->is_ready = true;
    session->publish_stats();
  };
  try {
    between_steps(add_pages, "load_session");
    write(&*session->cache);
    between_steps(fill_in, "load_session");
  } catch (...) {
    session->close();
    throw;
  }
  return session;
}

std::vector<int32_t> Engine::ids_of(Session& session, bool kept) {
  std::vector<int32_t> ids;
  const auto work = [&] {
    if (!session.cache) throw InvalidArgument("session: the session must be open, but is closed.");
    ids = kept ? session.tokens.kept() : session.tokens.live();
    if (session.pending) ids.push_back(*session.pending);
  };
  between_steps(work, "session");
  return ids;
}

std::optional<int32_t> Engine::last_token(Session& session) {
  acquire_session(session);
  const SessionLease lease(session);
  if (session.pending || session.tokens.length() == 0) return session.pending;
  return session.tokens.at(session.tokens.length() - 1);
}

// ---- the thread ------------------------------------------------------------------------------

// The first `count` tokens of a session, as a prefix to share.
Engine::SharedPrefix Engine::shared_prefix_with(const Session* session, int64_t count) const {
  return {session, count, SequenceCache::memory_saved(session->window(), options_.layers, count)};
}

// The longest prefix of the prompt that a session with the same sinks, window and salt can share.
Engine::SharedPrefix Engine::longest_shared_prefix(const Window& window,
                                                   const std::string& cache_salt,
                                                   std::span<const int32_t> prompt) const {
  const Session* best = nullptr;
  int64_t most = 0;
  for (const std::shared_ptr<Session>& session : sessions_) {
    const Window& other = session->window();
    const bool fits = other.sinks == window.sinks && other.window == window.window;
    if (!fits || !session->is_ready || session->cache_salt() != cache_salt) continue;
    const SequenceCache& cache = *session->cache;
    const int64_t count =
        cache.shareable(common_prefix(session->tokens, prompt, cache.shareable()));
    if (count <= most) continue;
    best = session.get();
    most = count;
  }
  return best == nullptr ? SharedPrefix() : shared_prefix_with(best, most);
}

// The prefix that a waiting sequence does not have to prefill. Its last prompt token is always
// computed, because its logits are needed; so are all tokens of a prompt that is scored.
Engine::SharedPrefix Engine::shared_prefix_of(const Sequence& sequence) const {
  if (sequence.session || sequence.scores_prompt()) return {};
  return longest_shared_prefix(
      sequence.window, sequence.cache_salt,
      std::span(sequence.prompt).first(static_cast<size_t>(sequence.prompt_tokens - 1)));
}

// Allocates all memory that a sequence of this length will ever need, except shared pages.
void Engine::make_cache(std::optional<SequenceCache>* cache, const Window& window,
                        int64_t max_length, const SharedPrefix& shared) {
  if (shared.session != nullptr) {
    cache->emplace(*shared.session->cache, max_length, shared.count);
  } else {
    cache->emplace(options_.pools, window, options_.layers, max_length);
  }
}

// Allocates a session's memory, or throws CapacityError.
void Engine::add_session(const std::shared_ptr<Session>& session, const SharedPrefix& shared) {
  const Window& window = session->window();
  const MemoryPools& pools = options_.pools;
  const MemoryAmount needed =
      SequenceCache::memory_needed(window, options_.layers, kEndlessLength) - shared.saved;
  if (!needed.fits_in(pools.free())) {
    throw CapacityError(cat("session: a new session needs ", human_bytes(pools.bytes_of(needed)),
                            " of cache, but only ", human_bytes(pools.bytes_of(pools.free())),
                            " is free. The cache has room for ", options_.max_sequences,
                            options_.max_sequences == 1 ? " sequence" : " sequences",
                            " (open sessions: ", sessions_.size(),
                            ", running requests: ", running_.size(),
                            "). Close a session or a stream, or load the model with a larger "
                            "`max_sequences`."));
  }
  sessions_.reserve(sessions_.size() + 1);  // nothing may fail once the session has pages
  make_cache(&session->cache, window, kEndlessLength, shared);
  sessions_.push_back(session);
  publish_stats();
}

// Drops the cached tokens from index `length` on, if nothing that came before has been evicted.
bool Engine::rewind(Session& session, int64_t length) {
  if (length == session.tokens.length()) return true;  // whatever the cache still has to read
  return session.unread() == 0 && session.cache->can_rewind(length) &&
         session.cache->rewind(length);
}

// Makes the next turn read what has to be read again to have `length` tokens.
bool Engine::restart(Session& session, int64_t length) {
  const int64_t first = options_.layers.first_to_read(session.window(), length);
  if (first < session.tokens.first_kept()) return false;
  if (!session.cache->restart_at(first)) {
    throw CapacityError(
        "undo: the session shares its sinks with another one, and no page is free for a copy. "
        "Close a session or a stream, or load the model with a larger `max_sequences`.");
  }
  return true;
}

void Engine::finish_turn(Sequence& sequence) {
  Session& session = *sequence.session;
  if (sequence.own_prefilled() <= 0) {  // the turn leaves nothing
    session.pending = sequence.before.pending;
    session.turns = sequence.before.turns;
  } else if (sequence.last_token >= 0) {
    session.pending = sequence.last_token;
  }
  session.publish_stats();
  session.release();
}

void Engine::remove_closed_sessions() {
  std::erase_if(sessions_, [](const std::shared_ptr<Session>& session) {
    if (!session->is_closed() || !session->try_acquire()) return false;
    session->release_pages();
    return true;
  });
}

// The engine is shutting down and all turns have ended, so a session still in use belongs to a call
// that is about to return.
void Engine::remove_all_sessions() {
  for (const std::shared_ptr<Session>& session : sessions_) {
    session->close();
    while (!session->try_acquire()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    session->release_pages();
  }
  sessions_.clear();
  publish_stats();
}

}  // namespace sinkstream
