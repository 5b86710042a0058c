// Reads weights from open files into a store while its owner does something else. Reads by position
// into memory of its own and maps nothing: a file that shrinks meanwhile is a failure with a name,
// not a signal. Knows no file formats and no file names.
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

// Where a weight lies.
struct WeightExtent {
  std::string weight;  // its name, declared in the store
  int descriptor;      // of a file that is open for reading, and stays so while it is read
  int64_t offset = 0;  // of the first row
};

// Rows [begin, end) of a weight, which its file does not give.
struct UnreadRows {
  std::string weight;  // its name
  int64_t begin, end;
};

// One thread owns it and calls its functions.
class WeightReader {
 public:
  // Begins to read, with `threads` threads of its own at most. The store has been allocated; it
  // outlives the reader, and nobody else touches it before `wait` has returned true.
  // Throws CapacityError if the system does not give the threads.
  WeightReader(WeightStore* store, std::vector<WeightExtent> extents, int threads);
  // Stops after the pieces in progress.
  ~WeightReader();
  WeightReader(const WeightReader&) = delete;
  WeightReader& operator=(const WeightReader&) = delete;

  // Returns whether reading has ended, and waits at most so long for that. Rethrows what ended it
  // early; a file that does not give its rows ends it, too (`unread`).
  bool wait(std::chrono::milliseconds at_most);
  // What the first file that did not give its bytes should have given; once `wait` is true.
  const std::optional<UnreadRows>& unread() const { return unread_; }
  // Bytes of the files that are in the store so far.
  int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

 private:
  struct Piece {
    const WeightExtent* extent;
    int64_t row, count;
    int64_t offset, bytes;  // in the file
  };

  void plan();
  void read_all();
  void read_piece(const Piece& piece, std::vector<std::byte>* bytes);

  WeightStore* store_;
  std::vector<WeightExtent> extents_;
  std::vector<Piece> pieces_;
  ThreadPool pool_;
  std::vector<std::vector<std::byte>> buffers_;  // [threads], a piece each
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> bytes_read_{0};

  std::mutex mutex_;  // of what follows
  std::condition_variable ended_changed_;
  bool ended_ = false;
  std::exception_ptr failure_;
  std::optional<UnreadRows> unread_;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace sinkstream
