// Hands what one sequence produces from the engine thread to one consumer.
// One producer, one consumer. The producer never waits: past a high-water mark it is told so, and
// parks the sequence until the consumer has taken what there is. Both sides may let go at any time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>

#include "common/owner_process.h"
#include "engine/doorbell.h"
#include "engine/histogram.h"
#include "engine/stream_batch.h"
#include "engine/wake_list.h"

namespace sinkstream {

enum class FinishReason : uint8_t { kStop, kStopString, kLength, kTimeout, kCancelled, kError };
// All of them, in their order.
inline constexpr FinishReason kFinishReasons[] = {
    FinishReason::kStop,    FinishReason::kStopString, FinishReason::kLength,
    FinishReason::kTimeout, FinishReason::kCancelled,  FinishReason::kError};
enum class Phase : uint8_t { kWaiting, kPrefill, kDecode, kParked, kFinished };

const char* name_of(FinishReason reason);
const char* name_of(Phase phase);

// Counted and timed in the engine thread, whatever the consumer does.
struct StreamStats {
  Phase phase = Phase::kWaiting;
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t cached_tokens = 0;   // prompt tokens that were in the cache before the request came
  int64_t live_tokens = 0;     // in the cache now; at the end: when it ended
  int64_t evicted_tokens = 0;  // that have left the cache
  int64_t cache_bytes = 0;     // of the pages that the sequence holds; at the end: that it held
  double first_token_s = -1;   // from the request to the first token; below 0: there is none yet
  double decode_s = 0;  // the sum of `decode_gaps` times between tokens, parked ones left out
  int64_t decode_gaps = 0;
};

class TokenStream {
 public:
  using Gauge = std::atomic<int64_t>;

  // `engine_bell` is rung when the engine has something to do for this stream; to `wake_list` goes
  // the bell of an event loop that this stream has news for. `request_id`: its number in the
  // engine. `lag` counts the pending tokens of all streams that share it.
  TokenStream(std::shared_ptr<Doorbell> engine_bell, std::shared_ptr<WakeList> wake_list,
              int64_t request_id = 0, std::shared_ptr<Gauge> lag = std::make_shared<Gauge>(0));
  ~TokenStream();
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;

  // About 2,000 tokens, and with their text less than 64 KB: then the sequence is parked.
  static constexpr size_t kMaxPendingTokens = 2048;
  static constexpr size_t kMaxPendingText = 16 << 10;  // bytes
  static constexpr size_t kMaxPendingTop = 1024;
  // A longer piece than this is published before its `stream_interval` is full.
  static constexpr size_t kMaxStagedTokens = 512;
  static constexpr size_t kMaxStagedText = 4 << 10;  // bytes
  static constexpr size_t kMaxStagedTop = 256;

  // ---- the producer's side: the engine thread ----

  // What is staged is seen by nobody until `publish`.
  StreamBatch& staged() { return staged_; }
  // Adds a token; the text it completes has been appended to `staged().text` before.
  void stage_token(const Sampled& sampled);
  // Adds text that belongs to no new token: to the last staged one, else to the stream's end.
  void stage_rest_of_text();
  // Whether `interval` tokens are staged, or as many as may wait.
  bool is_piece_complete(int64_t interval) const;
  // Gives the consumer what is staged. Returns whether there is room for more.
  bool publish(const StreamStats& stats);
  // Whether the consumer still has to make room.
  bool is_full() const { return full_.load(std::memory_order_acquire); }
  bool is_cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  void record_gap(int64_t nanoseconds) { gaps_.record(nanoseconds); }
  // Publishes what is staged and ends the stream; `error` goes with FinishReason::kError. Once.
  void finish(FinishReason reason, std::exception_ptr error, const StreamStats& stats);

  // ---- the consumer's side ----

  enum class Taken : uint8_t { kBatch, kNothing, kEnd };

  // Swaps `out` for all that is pending, waiting up to `timeout` for it; 0 does not wait. kEnd: all
  // has been taken and the stream has finished, or was closed. Blocks; call it without the GIL.
  // Throws SessionBusy if another thread is inside, ForkError in a child of the engine's process.
  Taken take(std::chrono::nanoseconds timeout, StreamBatch* out);
  // Whether `take` would give something, or the end, without waiting.
  bool is_ready() const;
  // Has `bell` rung, once, when that becomes so. Returns false, and will not ring it, where it is
  // so already. A later call takes the earlier one's place. Throws ForkError as `take` does.
  bool ring_when_ready(std::shared_ptr<LoopBell> bell);
  // Ends the sequence behind the steps under way: one, or two where the model draws. What it has
  // produced can still be taken. Never blocks.
  void cancel();
  // Cancels and drops what is pending.
  void close();
  // How the stream ended, once it has; while text is pending, the consumer is ahead of itself.
  std::optional<FinishReason> finish_reason() const;
  // Throws the error that ended the stream, if one did.
  void rethrow() const;

  int64_t request_id() const { return request_id_; }
  StreamStats stats() const;
  int64_t pending_tokens() const;  // produced and not yet taken: the consumer's lag
  double gap_quantile_s(double q) const { return gaps_.quantile_s(q); }

 private:
  bool publish_locked(const StreamStats& stats);
  void count_pending(int64_t more);  // under mutex_, together with the change
  bool is_ready_locked() const { return !pending_.empty() || finish_reason_ || closed_; }

  const std::shared_ptr<Doorbell> engine_bell_;
  const std::shared_ptr<WakeList> wake_list_;  // the producer's
  const int64_t request_id_;
  const std::shared_ptr<Gauge> lag_;
  const OwnerProcess owner_;

  StreamBatch staged_;        // the engine thread's own
  size_t assigned_text_ = 0;  // bytes of the staged text that belong to staged tokens

  std::atomic<bool> cancelled_{false};
  std::atomic<bool> full_{false};
  Histogram gaps_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable readable_;
  std::shared_ptr<LoopBell> loop_bell_;  // of a loop that waits for something pending
  StreamBatch pending_;
  StreamStats stats_;
  std::optional<FinishReason> finish_reason_;
  std::exception_ptr error_;
  bool has_reader_ = false;
  bool closed_ = false;
};

}  // namespace sinkstream
