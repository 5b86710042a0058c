#include "model/weight_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "common/errors.h"
#include "common/quiet_thread.h"

namespace sinkstream {

namespace {

// A piece fits into the L2 cache while it is read and packed. Smaller ones cost more calls, larger
// ones leave the cache.
constexpr int64_t kPieceBytes = int64_t{256} << 10;

// More threads read no faster than memory does.
constexpr int kMostThreads = 16;

// Returns whether all bytes could be read.
bool read_fully(int descriptor, std::byte* to, int64_t bytes, int64_t offset) {
  while (bytes > 0) {
    const ssize_t got = pread(descriptor, to, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    bytes -= got;
    offset += got;
  }
  return true;
}

// Shorter runs are read with what lies between them, which shares their pages: a call for each row
// of a few bytes would take longer than copying them.
constexpr int64_t kShortRun = 4096;

// Copies numbers of kBytes bytes, which are `stride` bytes apart, and returns the end of `to`. A
// column whose rows take turns with those of another weight has runs of one number.
template <int64_t kBytes>
std::byte* copy_numbers(const std::byte* from, int64_t count, int64_t stride, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * kBytes, from + i * stride, kBytes);
  return to + count * kBytes;
}

// Reads a part of a tensor with short runs: first with what lies between them, into `between`.
bool read_short_runs(const TensorExtent& tensor, const SplitSpan& span, std::byte* to,
                     std::vector<std::byte>* between) {
  const int64_t run = tensor.run_bytes, end = span.offset + span.bytes;
  const int64_t runs = std::max<int64_t>(1, kPieceBytes / tensor.stride_bytes);  // of one call
  for (int64_t at = span.offset; at < end;) {
    const int64_t next = std::min((at / run + runs) * run, end);
    const int64_t first = tensor.position(at), bytes = tensor.position(next - 1) + 1 - first;
    if (std::ssize(*between) < bytes) between->resize(bytes);
    if (!read_fully(tensor.descriptor, between->data(), bytes, first)) return false;
    const std::byte* from = between->data();
    if (run == 2) {
      to = copy_numbers<2>(from, (next - at) / run, tensor.stride_bytes, to);
      at = next;
    } else if (run == 4) {
      to = copy_numbers<4>(from, (next - at) / run, tensor.stride_bytes, to);
      at = next;
    }
    while (at < next) {
      const int64_t count = std::min(run - at % run, next - at);
      std::memcpy(to, from + tensor.position(at) - first, count);
      to += count;
      at += count;
    }
  }
  return true;
}

// Reads a part of a tensor. Returns whether all bytes could be read.
bool read_span(const TensorExtent& tensor, const SplitSpan& span, std::byte* to,
               std::vector<std::byte>* between) {
  const int64_t run = tensor.run_bytes, end = span.offset + span.bytes;
  if (run > 0 && run < kShortRun) return read_short_runs(tensor, span, to, between);
  for (int64_t at = span.offset; at < end;) {
    const int64_t count = run == 0 ? end - at : std::min(run - at % run, end - at);
    if (!read_fully(tensor.descriptor, to, count, tensor.position(at))) return false;
    to += count;
    at += count;
  }
  return true;
}

}  // namespace

WeightReader::WeightReader(WeightStore* store, std::vector<WeightExtent> extents, int threads)
    : store_(store),
      extents_(std::move(extents)),
      pool_(std::clamp(threads, 1, kMostThreads)),
      buffers_(pool_.threads()),
      between_(pool_.threads()) {
  plan();
  try {
    thread_ = start_quiet_thread("sinkstream read", [this] { read_all(); });
  } catch (const std::system_error& error) {
    throw CapacityError(
        cat("load: the system cannot start a thread for reading weights: ", error.what(), "."));
  }
}

WeightReader::~WeightReader() {
  stopping_.store(true, std::memory_order_relaxed);
  thread_.join();
}

bool WeightReader::wait(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  const bool ended = ended_changed_.wait_for(lock, at_most, [this] { return ended_; });
  if (failure_) std::rethrow_exception(failure_);
  return ended;
}

// In the files' order, so that disks can read ahead.
void WeightReader::plan() {
  for (const WeightExtent& extent : extents_) {
    for (const SplitPiece& piece : store_->pieces(extent.weight, kPieceBytes)) {
      pieces_.push_back({&extent, piece});
    }
  }
  std::stable_sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return std::pair(a.first_tensor().descriptor, a.position()) <
           std::pair(b.first_tensor().descriptor, b.position());
  });
}

void WeightReader::read_all() {
  std::exception_ptr failure;
  try {
    pool_.run(static_cast<int64_t>(pieces_.size()),
              [this](int64_t task, int thread) { read_piece(pieces_[task], thread); });
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  failure_ = failure;
  ended_ = true;
  ended_changed_.notify_all();
}

void WeightReader::read_piece(const Piece& piece, int thread) {
  if (stopping_.load(std::memory_order_relaxed)) return;
  const int64_t total = piece.bytes();
  std::vector<std::byte>& bytes = buffers_[thread];
  if (std::ssize(bytes) < total) bytes.resize(total);
  const WeightExtent& extent = *piece.extent;
  std::byte* to = bytes.data();
  for (int i = 0; i < kSplitTensors; ++i) {
    const TensorExtent& tensor = extent.tensors[i];
    const SplitSpan& span = piece.at.spans[i];
    if (!read_span(tensor, span, to, &between_[thread])) {
      stopping_.store(true, std::memory_order_relaxed);
      const std::lock_guard lock(mutex_);
      if (!unread_) unread_ = {extent.weight, piece.at.row, piece.at.row + piece.at.rows};
      return;
    }
    to += span.bytes;
  }
  store_->write(extent.weight, piece.at, bytes.data());
  bytes_read_.fetch_add(total, std::memory_order_relaxed);
}

}  // namespace sinkstream
