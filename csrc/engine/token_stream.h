// Hands one sequence's output from the engine's thread to one consumer. One producer, one consumer.
// The producer never blocks: past a high-water mark `publish` says so, and the engine parks the
// sequence until the consumer has taken what is pending. Either side may release the stream at any
// time.
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
// All of them, in order.
inline constexpr FinishReason kFinishReasons[] = {
    FinishReason::kStop,    FinishReason::kStopString, FinishReason::kLength,
    FinishReason::kTimeout, FinishReason::kCancelled,  FinishReason::kError};
enum class Phase : uint8_t { kWaiting, kPrefill, kDecode, kParked, kFinished };

const char* name_of(FinishReason reason);
const char* name_of(Phase phase);

// Counted and timed in the engine's thread, independently of the consumer.
struct StreamStats {
  Phase phase = Phase::kWaiting;
  int64_t prompt_tokens = 0;
  int64_t replayed_tokens = 0;  // read before them: Note [Tokens to read again] of session.h
  int64_t generated_tokens = 0;
  int64_t draft_tokens = 0;     // guesses that steps verified: Note [Drafts] of drafts.h
  int64_t accepted_tokens = 0;  // of those, guesses that were right
  int64_t cached_tokens = 0;    // prompt tokens already in the cache when the request started
  int64_t live_tokens = 0;      // in the cache; keeps its last value after the end
  int64_t evicted_tokens = 0;   // evicted from the cache by this request
  int64_t cache_bytes = 0;      // of the sequence's pages; keeps its last value after the end
  double first_token_s = -1;    // from the request to the first token; below 0: none yet
  double decode_s = 0;          // sum of `decode_gaps` times between tokens, excluding time parked
  int64_t decode_gaps = 0;
};

class TokenStream {
 public:
  using Gauge = std::atomic<int64_t>;

  // Rings `engine_bell` when the engine has something to do for this stream, and adds the bell of
  // an event loop that waits for it to `wake_list`. `request_id`: its number in the engine. `lag`
  // counts the pending tokens of all streams that share it.
  TokenStream(std::shared_ptr<Doorbell> engine_bell, std::shared_ptr<WakeList> wake_list,
              int64_t request_id = 0, std::shared_ptr<Gauge> lag = std::make_shared<Gauge>(0));
  ~TokenStream();
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;

  // High-water marks past which the sequence is parked, or its prompt is read no further: about
  // 2,000 tokens, less than 64 KB with their text. Tokens of the prompt have the same.
  static constexpr size_t kMaxPendingTokens = 2048;
  static constexpr size_t kMaxPendingText = 16 << 10;  // bytes
  static constexpr size_t kMaxPendingTop = 1024;
  // A piece that reaches one of these is published before its `stream_interval` is complete.
  static constexpr size_t kMaxStagedTokens = 512;
  static constexpr size_t kMaxStagedText = 4 << 10;  // bytes
  static constexpr size_t kMaxStagedTop = 256;

  // ---- the producer's side: the engine's thread ----

  // Staged output is invisible to the consumer until `publish`.
  StreamBatch& staged() { return staged_; }
  // Adds a token. The text it completes must already be appended to `staged().text`.
  void stage_token(const Sampled& sampled);
  // Adds a token of the prompt. The first has the log-probability NaN.
  void stage_prompt_token(const ScoredToken& scored);
  // Assigns leftover text to the last staged token, else to the end of the stream.
  void stage_rest_of_text();
  // Whether `interval` tokens are staged, or a kMaxStaged limit is reached.
  bool is_piece_complete(int64_t interval) const;
  // Hands the staged output to the consumer. Returns whether there is room for more.
  bool publish(const StreamStats& stats);
  // Whether the consumer must take what is pending first.
  bool is_full() const { return full_.load(std::memory_order_acquire); }
  bool is_cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  void record_gap(int64_t nanoseconds) { gaps_.record(nanoseconds); }
  // Counts what is staged as pending before `finish` hands it over: counters that are read in
  // between include it.
  void count_staged();
  // Publishes what is staged and ends the stream; `error` goes with FinishReason::kError. Call
  // once.
  void finish(FinishReason reason, std::exception_ptr error, const StreamStats& stats);

  // ---- the consumer's side ----

  enum class Taken : uint8_t { kBatch, kNothing, kEnd };

  // Swaps all pending output into `out`, waiting for it up to `timeout`; 0 does not wait. kEnd: the
  // stream has finished and everything has been taken, or it was closed. Blocks; call without the
  // GIL. Throws SessionBusy if another thread is in `take`, ForkError in a child of the engine's
  // process.
  Taken take(std::chrono::nanoseconds timeout, StreamBatch* out);
  // Whether `take` would return kBatch or kEnd without waiting.
  bool is_ready() const;
  // Rings `bell` once when is_ready() becomes true. Returns false, and will not ring it, if it is
  // true already. A later call replaces an earlier one. Throws ForkError as `take` does.
  bool ring_when_ready(std::shared_ptr<LoopBell> bell);
  // Ends the sequence after the steps in flight: one, or two where a device samples. Output that it
  // has already produced can still be taken. Never blocks.
  void cancel();
  // Cancels, and discards pending output.
  void close();
  // How the stream ended, if it has; the consumer may still have tokens to take.
  std::optional<FinishReason> finish_reason() const;
  // Throws the error that ended the stream, if any.
  void rethrow() const;

  int64_t request_id() const { return request_id_; }
  StreamStats stats() const;
  int64_t pending_tokens() const;  // produced and not yet taken: the consumer's lag
  double gap_quantile_s(double q) const { return gaps_.quantile_s(q); }

 private:
  bool publish_locked(const StreamStats& stats);
  // Requires mutex_, held since before the change, unless it is of staged output.
  void count_pending(int64_t more);
  bool is_ready_locked() const { return !pending_.empty() || finish_reason_ || closed_; }

  const std::shared_ptr<Doorbell> engine_bell_;
  const std::shared_ptr<WakeList> wake_list_;  // used by the producer only
  const int64_t request_id_;
  const std::shared_ptr<Gauge> lag_;
  const OwnerProcess owner_;

  StreamBatch staged_;        // owned by the engine's thread
  size_t assigned_text_ = 0;  // bytes of staged text that belong to staged tokens
  int64_t counted_ = 0;       // staged tokens that count as pending

  std::atomic<bool> cancelled_{false};
  std::atomic<bool> full_{false};
  Histogram gaps_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable readable_;
  std::shared_ptr<LoopBell> loop_bell_;  // of an event loop waiting for is_ready()
  StreamBatch pending_;
  StreamStats stats_;
  std::optional<FinishReason> finish_reason_;
  std::exception_ptr error_;
  bool has_reader_ = false;
  bool closed_ = false;
};

}  // namespace sinkstream
