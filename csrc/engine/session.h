// A conversation that keeps its cache between requests: its pages, the token ids they hold, and
// whether it is in use. Knows nothing about text or roles.
//
// Note: [Who may touch a session]
// A session is free, or acquired: by a turn from its submission to its end, or by a call that forks
// it, saves it or undoes a turn. Acquiring is exclusive, so only what any thread may read needs a
// lock. Only the engine's thread allocates, shares and frees pages. When a closed session is free,
// the engine acquires it permanently and releases its pages.
//
// Note: [Tokens to read again]
// A session's text is its log; its cache follows. After the session has gone back to where its
// cache cannot be rewound, the cache is shorter than the log. The next turn reads the difference
// first. The bits are then those of a session that never went further: all counts are of the log,
// and a cancelled turn leaves the rest to the one after it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cache/sequence_cache.h"
#include "cache/snapshot.h"
#include "cache/token_log.h"
#include "common/owner_process.h"
#include "engine/doorbell.h"

namespace sinkstream {

class TokenStream;

// How many tokens back every turn can be undone. Their ids take 4 MiB, and those before them that
// have to be read again a little more.
inline constexpr int64_t kUndoneTokens = 1 << 20;

struct SessionStats {
  int64_t turns = 0;           // turns that had a reply
  int64_t tokens = 0;          // seen so far
  int64_t live_tokens = 0;     // in the cache
  int64_t evicted_tokens = 0;  // evicted so far
  int64_t cache_bytes = 0;     // of its pages, shared ones included
  int64_t unread_tokens = 0;   // Note [Tokens to read again]
};

// Where a session is between two turns, and to where it can go back.
struct SessionPosition {
  int64_t length = 0;              // tokens of its text, without the pending one
  std::optional<int32_t> pending;  // as Session::pending
  int64_t turns = 0;
};

// The saved state of a session, without its keys and values (cache/snapshot.h).
struct SessionState {
  SequenceState sequence;
  int64_t length = 0;        // of the text
  std::vector<int32_t> ids;  // of the sinks and the last tokens, in order: all that are kept
  std::optional<int32_t> pending;
  int64_t turns = 0;
};

class Session {
 public:
  // `kept_tokens`: see TokenLog.
  Session(std::shared_ptr<Doorbell> engine_bell, const Window& window, int64_t kept_tokens,
          std::string cache_salt = {});
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // ---- any thread ----

  // Cancels the running turn. The pages are released once the session is free. Never blocks.
  void close();
  bool is_closed() const { return closed_.load(std::memory_order_acquire); }
  const Window& window() const { return window_; }
  // See Request::cache_salt.
  const std::string& cache_salt() const { return cache_salt_; }
  // Throws ForkError in a child of the engine's process.
  SessionStats stats() const;
  // Acquires the session if it is free. Returns whether it did.
  bool try_acquire() { return !in_use_.exchange(true, std::memory_order_acq_rel); }
  // The stream of the running turn, or of the last one if that still exists.
  std::shared_ptr<TokenStream> turn() const;

  // ---- the thread that has acquired it ----

  void release();
  void set_turn(const std::shared_ptr<TokenStream>& stream);

  // ---- the engine's thread; a thread that has acquired it may read ----

  // `replies`: the turn is more than a prefill.
  void begin_turn(bool replies);
  void release_pages();

  std::optional<SequenceCache> cache;  // none before the engine adds it and after release_pages
  TokenLog tokens;                     // the text: Note [Tokens to read again]
  // The reply's last token: sampled, but not in the cache until the next turn starts with it.
  std::optional<int32_t> pending;
  int64_t turns = 0;
  bool is_ready = false;  // false: being restored, must not be shared
  // Tokens of the text that the cache does not have.
  int64_t unread() const { return tokens.length() - cache->length(); }
  // The ids of the tokens in the cache, in order.
  std::vector<int32_t> cached_ids() const { return tokens.live(cache->window(), cache->length()); }
  SessionPosition position() const { return {tokens.length(), pending, turns}; }
  SessionState state() const;
  // Updates what stats() returns.
  void publish_stats();

 private:
  const std::shared_ptr<Doorbell> engine_bell_;
  const Window window_;
  const std::string cache_salt_;
  const OwnerProcess owner_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> in_use_{false};

  mutable std::mutex mutex_;  // guards the members below
  SessionStats stats_;
  std::weak_ptr<TokenStream> turn_;
};

}  // namespace sinkstream
