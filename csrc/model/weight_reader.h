// Reads weights from open files into a store in the background. Reads by position into its own
// memory and maps nothing, so that a file that shrinks in the meantime causes a named error, not a
// signal. Knows nothing about file formats or names.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/thread_pool.h"
#include "model/weights.h"

namespace sinkstream {

// Where a tensor is. The rows of a weight may lie in runs among those of others.
struct TensorExtent {
  int descriptor = -1;       // of a file that stays open until reading has ended
  int64_t offset = 0;        // of the first byte
  int64_t run_bytes = 0;     // of each run; 0: all bytes are one run
  int64_t stride_bytes = 0;  // from the start of a run to the start of the next

  // Where byte `at` of the tensor is in the file.
  int64_t position(int64_t at) const {
    return run_bytes == 0 ? offset + at : offset + at / run_bytes * stride_bytes + at % run_bytes;
  }
};

// Where a weight is in its files.
struct WeightExtent {
  std::string weight;                   // its name, declared in the store
  TensorExtent tensors[kSplitTensors];  // as SplitPiece::spans
};

// Rows [begin, end) of a weight that could not be read from its file.
struct UnreadRows {
  std::string weight;  // its name
  int64_t begin, end;
};

// One thread owns it and calls its functions.
class WeightReader {
 public:
  // Starts reading, with up to `threads` threads of its own. The store must already be allocated,
  // must outlive the reader, and must not be used until `wait` has returned true. Throws
  // CapacityError if the system refuses a thread.
  WeightReader(WeightStore* store, std::vector<WeightExtent> extents, int threads);
  // Stops after the pieces in progress.
  ~WeightReader();
  WeightReader(const WeightReader&) = delete;
  WeightReader& operator=(const WeightReader&) = delete;

  // Waits up to `at_most` for reading to end, and returns whether it has. Rethrows the exception
  // that ended it, if any. Rows that could not be read also end it: see `unread`.
  bool wait(std::chrono::milliseconds at_most);
  // The first rows that could not be read, once `wait` has returned true.
  const std::optional<UnreadRows>& unread() const { return unread_; }
  // How many bytes of the files have been stored so far.
  int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

 private:
  struct Piece {
    const WeightExtent* extent;
    SplitPiece at;
    const TensorExtent& first_tensor() const { return extent->tensors[0]; }
    int64_t position() const { return first_tensor().position(at.spans[0].offset); }
    int64_t bytes() const {
      int64_t bytes = 0;
      for (const SplitSpan& span : at.spans) bytes += span.bytes;
      return bytes;
    }
  };

  void plan();
  void read_all();
  void read_piece(const Piece& piece, int thread);

  WeightStore* store_;
  std::vector<WeightExtent> extents_;
  std::vector<Piece> pieces_;
  ThreadPool pool_;
  std::vector<std::vector<std::byte>> buffers_;  // [threads], a piece each
  std::vector<std::vector<std::byte>> between_;  // [threads]: short runs, and what is between them
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> bytes_read_{0};

  std::mutex mutex_;  // guards the members below
  std::condition_variable ended_changed_;
  bool ended_ = false;
  std::exception_ptr failure_;
  std::optional<UnreadRows> unread_;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace sinkstream
