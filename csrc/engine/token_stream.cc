#include "engine/token_stream.h"

#include <utility>

#include "common/check.h"
#include "common/fail_point.h"

namespace sinkstream {

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kStopString: return "stop_string";
    case FinishReason::kLength: return "length";
    case FinishReason::kTimeout: return "timeout";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kError: return "error";
  }
  return "";
}

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::kWaiting: return "waiting";
    case Phase::kPrefill: return "prefill";
    case Phase::kDecode: return "decode";
    case Phase::kParked: return "parked";
    case Phase::kFinished: return "finished";
  }
  return "";
}

TokenStream::TokenStream(std::shared_ptr<Doorbell> engine_bell, std::shared_ptr<WakeList> wake_list,
                         int64_t request_id, std::shared_ptr<Gauge> lag)
    : engine_bell_(std::move(engine_bell)),
      wake_list_(std::move(wake_list)),
      request_id_(request_id),
      lag_(std::move(lag)) {}

TokenStream::~TokenStream() { count_pending(-static_cast<int64_t>(pending_.tokens.size())); }

void TokenStream::count_pending(int64_t more) { lag_->fetch_add(more, std::memory_order_relaxed); }

// ---- producer --------------------------------------------------------------------------------

void TokenStream::stage_token(const Sampled& sampled) {
  const size_t text_bytes = staged_.text.size() - assigned_text_;
  assigned_text_ = staged_.text.size();
  staged_.top.insert(staged_.top.end(), sampled.top.begin(), sampled.top.end());
  staged_.tokens.push_back({sampled.token, sampled.logprob, static_cast<uint32_t>(text_bytes),
                            static_cast<uint8_t>(sampled.top.size())});
}

void TokenStream::stage_prompt_token(const ScoredToken& scored) {
  staged_.prompt_top.insert(staged_.prompt_top.end(), scored.top.begin(), scored.top.end());
  staged_.prompt.push_back({scored.token, scored.logprob, static_cast<uint8_t>(scored.top.size())});
}

void TokenStream::stage_rest_of_text() {
  if (staged_.tokens.empty()) return;
  staged_.tokens.back().text_bytes += static_cast<uint32_t>(staged_.text.size() - assigned_text_);
  assigned_text_ = staged_.text.size();
}

bool TokenStream::is_piece_complete(int64_t interval) const {
  return static_cast<int64_t>(staged_.tokens.size()) >= interval ||
         staged_.tokens.size() >= kMaxStagedTokens || staged_.text.size() >= kMaxStagedText ||
         staged_.top.size() >= kMaxStagedTop;
}

// Returns whether there is pending output now and was none before.
bool TokenStream::publish_locked(const StreamStats& stats) {
  stats_ = stats;
  const bool was_empty = pending_.empty();
  if (!closed_) pending_.append(staged_);
  const int64_t added = closed_ ? 0 : static_cast<int64_t>(staged_.tokens.size());
  count_pending(added - std::exchange(counted_, 0));
  return was_empty && !pending_.empty();
}

bool TokenStream::publish(const StreamStats& stats) {
  bool has_news, has_room;
  std::shared_ptr<LoopBell> loop_bell;
  {
    const std::lock_guard lock(mutex_);
    has_news = publish_locked(stats);
    if (has_news) loop_bell = std::move(loop_bell_);
    has_room = pending_.tokens.size() < kMaxPendingTokens &&
               pending_.text.size() < kMaxPendingText && pending_.top.size() < kMaxPendingTop &&
               pending_.prompt.size() < kMaxPendingTokens &&
               pending_.prompt_top.size() < kMaxPendingTop;
    full_.store(!has_room, std::memory_order_release);
  }
  SINKSTREAM_FAIL_POINT("stream.published");
  // After unlocking: a consumer that wakes earlier would take this core and then wait for the lock.
  if (has_news) readable_.notify_one();
  if (loop_bell) wake_list_->add(std::move(loop_bell));
  staged_.clear();
  assigned_text_ = 0;
  return has_room;
}

void TokenStream::count_staged() {
  const auto staged = static_cast<int64_t>(staged_.tokens.size());
  count_pending(staged - std::exchange(counted_, staged));
}

void TokenStream::finish(FinishReason reason, std::exception_ptr error, const StreamStats& stats) {
  const std::lock_guard lock(mutex_);
  SINKSTREAM_CHECK(!finish_reason_, "the stream has already finished");
  try {
    publish_locked(stats);
  } catch (...) {  // no memory for the last piece; the end must still arrive
    if (!error) error = std::current_exception();
    reason = FinishReason::kError;
    count_pending(-std::exchange(counted_, 0));
  }
  finish_reason_ = reason;
  error_ = std::move(error);
  full_.store(false, std::memory_order_release);
  readable_.notify_all();
  if (loop_bell_) wake_list_->add(std::move(loop_bell_));
  staged_ = {};  // free its memory
}

// ---- consumer --------------------------------------------------------------------------------

TokenStream::Taken TokenStream::take(std::chrono::nanoseconds timeout, StreamBatch* out) {
  owner_.check("stream");
  // After a lag the buffers are larger than the next batches need.
  if (out->tokens.capacity() > kMaxStagedTokens) *out = {};
  out->clear();
  SINKSTREAM_FAIL_POINT("stream.take");
  std::unique_lock lock(mutex_);
  if (has_reader_) {
    throw SessionBusy(
        "stream: only one thread can read a stream at a time, but another is reading it.");
  }
  if (timeout.count() > 0) {  // the kernel turns a zero wait into one of about 50 µs
    has_reader_ = true;
    readable_.wait_for(lock, timeout, [this] { return is_ready_locked(); });
    has_reader_ = false;
  }
  if (closed_ || (pending_.empty() && finish_reason_)) return Taken::kEnd;
  if (pending_.empty()) return Taken::kNothing;
  std::swap(*out, pending_);
  count_pending(-static_cast<int64_t>(out->tokens.size()));
  const bool was_full = full_.exchange(false, std::memory_order_acq_rel);
  lock.unlock();
  SINKSTREAM_FAIL_POINT("stream.taken");
  if (was_full) engine_bell_->ring();
  return Taken::kBatch;
}

bool TokenStream::is_ready() const {
  owner_.check("stream");
  const std::lock_guard lock(mutex_);
  return is_ready_locked();
}

bool TokenStream::ring_when_ready(std::shared_ptr<LoopBell> bell) {
  owner_.check("stream");
  const std::lock_guard lock(mutex_);
  if (is_ready_locked()) return false;
  std::swap(loop_bell_, bell);
  return true;
}

void TokenStream::cancel() {
  if (!owner_.is_here()) return;
  if (!cancelled_.exchange(true, std::memory_order_relaxed)) engine_bell_->ring();
}

void TokenStream::close() {
  if (!owner_.is_here()) return;
  std::shared_ptr<LoopBell> loop_bell;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    count_pending(-static_cast<int64_t>(pending_.tokens.size()));
    pending_ = {};
    readable_.notify_all();
    loop_bell = std::move(loop_bell_);
  }
  SINKSTREAM_FAIL_POINT("stream.closed");
  if (loop_bell) loop_bell->ring();
  cancel();
}

std::optional<FinishReason> TokenStream::finish_reason() const {
  owner_.check("stream");
  const std::lock_guard lock(mutex_);
  return finish_reason_;
}

void TokenStream::rethrow() const {
  owner_.check("stream");
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    error = error_;
  }
  if (error) std::rethrow_exception(error);
}

StreamStats TokenStream::stats() const {
  owner_.check("stream");
  const std::lock_guard lock(mutex_);
  StreamStats stats = stats_;
  if (is_full() && stats.phase == Phase::kDecode) stats.phase = Phase::kParked;
  return stats;
}

int64_t TokenStream::pending_tokens() const {
  owner_.check("stream");
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(pending_.tokens.size());
}

}  // namespace sinkstream
