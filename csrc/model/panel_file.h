// Files that hold the packed weights of a store, which a later load maps instead of packing them
// again. Knows nothing about where such files are kept, or which are too many.
//
// Note: [Panel files]
// A file is a header, and from a multiple of SharedBuffer::kAlignment on the store's block of
// memory as it is. The header has a magic word, the version of this layout, sizes, the key, a label
// for people, and offset, size and digest of each piece of the block: a weight, or 8 MiB of one.
// The header's own digest ends it. A file belongs to a store if its key is the expected one and its
// pieces are the store's. The key must name everything that the block's bytes depend on; it ends
// with kPanelVersion, which a change of any panel's layout, or of rounding, must raise.
//
// An expert's weights are contiguous, and each has pieces of its own, so that they can be read and
// checked alone.
//
// No file is changed once it has its name. Another program may change it, or a disk may: so before
// a weight is used, the pieces are compared with their digests, unless a mark says that it was
// done. A mark is a small file next to it with the file's inode, size and times of change (mtime
// and ctime), which the system moves on with each write. The process that wrote the file marks it,
// as its digests are of the bytes that it wrote; so does one that has compared them. What changes
// while it is mapped is not noticed; our files are read-only, and removed by name only, which
// leaves mappings as they are.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/background_loop.h"
#include "model/weights.h"

namespace sinkstream {

constexpr int kPanelVersion = 1;
constexpr int64_t kPanelKeyBytes = 32;

// Where a file is written, and what it is called once it is complete.
struct PanelTarget {
  int descriptor = -1;  // of `part`, open for writing; the owner of this struct closes it
  std::string part;     // a temporary name in the same folder
  std::string path;
  std::string mark;   // the path of its mark
  std::string key;    // kPanelKeyBytes characters
  std::string label;  // what lists of files show
};

// Reserves the disk's space for the file of a store. Returns 0, or the system's error. A file
// system that cannot reserve space is no error.
int reserve_panel_file(const WeightStore& store, const PanelTarget& target);

// Writes, flushes, renames and marks the file of a store that has all weights. Adds the bytes to
// `written` as they are written. Returns 0, or the system's error: ECANCELED once `is_stopped` is
// true. The file then has no name, neither the temporary one.
int write_panel_file(const WeightStore& store, const PanelTarget& target,
                     const std::atomic<bool>& is_stopped, std::atomic<int64_t>* written);

// Takes a store's weights from a file, in the background: reads what every token needs, and
// compares all of it with the digests if there is no mark. One thread owns it and calls its
// functions.
class PanelReader {
 public:
  // Maps the file, which the caller may close afterwards; `refusal` then is empty. The store must
  // outlive the reader, and must not be used until `wait` has returned true. `mark`: the path.
  PanelReader(WeightStore* store, int descriptor, const std::string& key, std::string mark,
              int threads);
  ~PanelReader();
  PanelReader(const PanelReader&) = delete;
  PanelReader& operator=(const PanelReader&) = delete;

  // Why the file does not belong to the store, as the end of a sentence. The store is unchanged.
  const std::string& refusal() const { return refusal_; }
  // As BackgroundLoop::wait. A damaged piece also ends it.
  bool wait(std::chrono::milliseconds at_most);
  // The name of a weight that is damaged, once `wait` has returned true. If there is one, the store
  // has been unmapped.
  const std::optional<std::string>& damaged() const { return damaged_; }
  // How many bytes of bytes_to_read() have been read so far.
  int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }
  int64_t bytes_to_read() const { return bytes_to_read_; }

 private:
  struct Piece {
    PanelPiece at;
    std::string digest;  // empty: it is not compared
  };

  // Returns `refusal`, and fills the members below.
  std::string read_header(int descriptor, const std::string& key, int64_t* block_offset);
  void read_piece(const Piece& piece);

  WeightStore* store_;
  int descriptor_ = -1;
  std::string mark_;
  std::string identity_;  // of the file, for its mark; empty: it has one
  std::string refusal_;
  std::vector<Piece> pieces_;
  int64_t bytes_to_read_ = 0;
  std::atomic<int64_t> bytes_read_{0};
  std::mutex mutex_;  // guards damaged_
  std::optional<std::string> damaged_;
  bool has_ended_ = false;
  BackgroundLoop loop_;  // last: its threads use everything above
};

// Writes the file of a model in use, in the background with the lowest priority, and then puts the
// file in the place of the memory, so that it is shared with processes that map it.
class PanelWriter {
 public:
  // Takes over the descriptor. `in_use`: held while the memory is exchanged; the store must outlive
  // the writer. Throws CapacityError if the system refuses a thread.
  PanelWriter(WeightStore* store, std::mutex* in_use, PanelTarget target);
  ~PanelWriter() { finish(); }
  PanelWriter(const PanelWriter&) = delete;
  PanelWriter& operator=(const PanelWriter&) = delete;

  // Ends it soon: an incomplete file is removed, unless a disk would write the rest in a second.
  // May be called more than once, by one thread at a time.
  void finish();
  // The system's error that ended it; 0: none so far.
  int error() const { return error_.load(std::memory_order_relaxed); }

 private:
  void write();
  void exchange();

  WeightStore* store_;
  std::mutex* in_use_;
  PanelTarget target_;
  std::atomic<bool> is_stopped_{false};
  std::atomic<int64_t> written_{0};
  std::atomic<int> error_{0};
  std::mutex mutex_;  // guards has_ended_
  std::condition_variable ended_changed_;
  bool has_ended_ = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace sinkstream
