// A conversation that keeps its cache between requests: its pages, the ids of what they hold, and
// who is using it. Knows no text and no roles.
//
// Note: [Who may touch a session]
// A session is free, or held: by a turn from its submission to its end, or by a call that forks it,
// saves it or takes a turn back. Whoever holds it is the only one, so nothing needs a lock but what
// anybody may look at. Pages are the engine thread's: it alone takes and shares them, and when a
// closed session is free it holds it for ever and gives them back.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cache/live_tokens.h"
#include "cache/sequence_cache.h"
#include "cache/snapshot.h"
#include "common/owner_process.h"
#include "engine/doorbell.h"

namespace sinkstream {

class TokenStream;

struct SessionStats {
  int64_t turns = 0;           // that were replied to
  int64_t tokens = 0;          // that it has seen
  int64_t live_tokens = 0;     // in the cache
  int64_t evicted_tokens = 0;  // that have left it
  int64_t cache_bytes = 0;     // of the pages that it holds; some may be shared with others
};

// Where a saved session stood; its keys and values are a snapshot (cache/snapshot.h).
struct SessionState {
  SequenceState sequence;
  std::vector<int32_t> ids;  // of the live tokens, in order
  std::optional<int32_t> pending;
  int64_t turns = 0;
};

class Session {
 public:
  Session(std::shared_ptr<Doorbell> engine_bell, const Window& window);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // ---- any thread ----

  // Cancels the turn that is running. The pages go back as soon as nobody holds the session. Never
  // blocks.
  void close();
  bool is_closed() const { return closed_.load(std::memory_order_acquire); }
  const Window& window() const { return window_; }
  // Throws ForkError in a child of the engine's process.
  SessionStats stats() const;
  // Returns whether the caller holds it from now on: nobody did.
  bool try_acquire() { return !in_use_.exchange(true, std::memory_order_acq_rel); }
  // The stream of the turn that runs, or of the last one while somebody keeps it.
  std::shared_ptr<TokenStream> turn() const;

  // ---- whoever holds it ----

  void release();
  void set_turn(const std::shared_ptr<TokenStream>& stream);

  // ---- the engine thread; whoever holds it may read ----

  // How it stood before the last turn, which can be taken back until something else happens.
  struct TurnCheckpoint {
    int64_t length = 0;
    int64_t turns = 0;
    std::optional<int32_t> pending;
  };

  // `replies`: the turn is not only read.
  void begin_turn(bool replies);
  // Gives the pages back.
  void release_pages();

  std::optional<SequenceCache> cache;  // none before the engine has given it one, and after its end
  LiveTokens tokens;                   // in the cache
  // The reply's last token: sampled, and not in the cache until the next turn begins with it.
  std::optional<int32_t> pending;
  std::optional<TurnCheckpoint> checkpoint;
  int64_t turns = 0;
  bool is_ready = false;  // false: it is being restored, and the rest is not for the engine yet
  SessionState state() const;
  // What `stats()` shows is brought up to date.
  void publish_stats();

 private:
  const std::shared_ptr<Doorbell> engine_bell_;
  const Window window_;
  const OwnerProcess owner_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> in_use_{false};

  mutable std::mutex mutex_;  // guards what follows
  SessionStats stats_;
  std::weak_ptr<TokenStream> turn_;
};

}  // namespace sinkstream
