#include "engine/session.h"

#include <utility>

#include "engine/token_stream.h"

namespace sinkstream {

Session::Session(std::shared_ptr<Doorbell> engine_bell, const Window& window, int64_t kept_tokens,
                 std::string cache_salt)
    : tokens(window, kept_tokens),
      engine_bell_(std::move(engine_bell)),
      window_(window),
      cache_salt_(std::move(cache_salt)) {}

void Session::close() {
  if (!owner_.is_here()) return;
  if (closed_.exchange(true, std::memory_order_acq_rel)) return;
  if (const std::shared_ptr<TokenStream> running = turn()) running->cancel();
  engine_bell_->ring();
}

std::shared_ptr<TokenStream> Session::turn() const {
  const std::lock_guard lock(mutex_);
  return turn_.lock();
}

SessionStats Session::stats() const {
  owner_.check("session");
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Session::release() {
  in_use_.store(false, std::memory_order_release);
  if (is_closed()) engine_bell_->ring();  // the engine waits for this to release the pages
}

void Session::set_turn(const std::shared_ptr<TokenStream>& stream) {
  const std::lock_guard lock(mutex_);
  turn_ = stream;
}

void Session::release_pages() {
  cache.reset();
  const std::lock_guard lock(mutex_);
  stats_.live_tokens = stats_.cache_bytes = 0;
}

void Session::begin_turn(bool replies) {
  cache->keep_states();
  pending.reset();
  if (replies) ++turns;
}

SessionState Session::state() const {
  return {state_of(*cache), tokens.length(), tokens.kept(), pending, turns};
}

void Session::publish_stats() {
  SessionStats now;
  now.turns = turns;
  now.tokens = tokens.length();
  now.live_tokens = window_.live(tokens.length());
  now.evicted_tokens = window_.evicted(tokens.length());
  now.cache_bytes = cache->bytes();
  now.unread_tokens = unread();
  const std::lock_guard lock(mutex_);
  stats_ = now;
}

}  // namespace sinkstream
