#include "model/panel_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <system_error>
#include <utility>

#include "common/check.h"
#include "common/digest.h"
#include "common/divide_up.h"
#include "common/errors.h"
#include "common/quiet_thread.h"

namespace sinkstream {

namespace {

using std::chrono::milliseconds;

constexpr int64_t kPieceBytes = int64_t{8} << 20;
constexpr int64_t kAlignment = SharedBuffer::kAlignment;
// What is written at a time: whole huge pages, so that the page cache has them.
constexpr int64_t kChunk = 4 * kAlignment;
// The disk is asked to write this much before more is added to its queue.
constexpr int64_t kQueued = int64_t{64} << 20;
// What most disks write in kGrace.
constexpr int64_t kSoon = int64_t{512} << 20;
constexpr milliseconds kGrace{1000};
constexpr int kLowestPriority = 19;

constexpr char kMagic[] = "sinkstream panel";  // 16 characters

struct Head {
  char magic[16];
  uint32_t version;
  uint32_t label_bytes;
  int64_t pieces;
  int64_t block_offset;
  int64_t block_bytes;
  char key[kPanelKeyBytes];
};
static_assert(sizeof(Head) == 80);

// After the label.
struct PieceEntry {
  int64_t offset;  // in the block
  int64_t bytes;
  char digest[32];
};
static_assert(sizeof(PieceEntry) == 48);
constexpr int64_t kEndBytes = sizeof(PieceEntry::digest);

// The header of a store's file; `digests`: of the pieces, or empty for placeholders.
std::string header_of(const WeightStore& store, const std::vector<PanelPiece>& pieces,
                      const std::vector<std::string>& digests, const PanelTarget& target) {
  const int64_t bytes = static_cast<int64_t>(sizeof(Head) + target.label.size() +
                                             pieces.size() * sizeof(PieceEntry)) +
                        kEndBytes;
  Head head{};
  std::memcpy(head.magic, kMagic, sizeof head.magic);
  head.version = kPanelVersion;
  head.label_bytes = static_cast<uint32_t>(target.label.size());
  head.pieces = std::ssize(pieces);
  head.block_offset = divide_up(bytes, kAlignment) * kAlignment;
  head.block_bytes = store.bytes_needed();
  SINKSTREAM_CHECK(target.key.size() == sizeof head.key, "the key is ", target.key);
  std::memcpy(head.key, target.key.data(), sizeof head.key);
  std::string header(reinterpret_cast<const char*>(&head), sizeof head);
  header += target.label;
  for (size_t i = 0; i < pieces.size(); ++i) {
    PieceEntry entry{pieces[i].offset, pieces[i].bytes, {}};
    if (!digests.empty()) std::memcpy(entry.digest, digests[i].data(), sizeof entry.digest);
    header.append(reinterpret_cast<const char*>(&entry), sizeof entry);
  }
  Digest digest;
  digest.add(header);
  return header + digest.hex();
}

int64_t block_offset_of(const std::string& header) {
  return divide_up(std::ssize(header), kAlignment) * kAlignment;
}

std::string digest_of(const std::byte* bytes, int64_t count) {
  Digest digest;
  digest.add(bytes, count);
  return digest.hex();
}

// Returns 0, or the system's error.
int write_fully(int descriptor, const std::byte* from, int64_t bytes, int64_t offset) {
  while (bytes > 0) {
    const ssize_t put = pwrite(descriptor, from, bytes, offset);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return put < 0 ? errno : ENOSPC;
    from += put;
    bytes -= put;
    offset += put;
  }
  return 0;
}

std::optional<std::string> read_fully(int descriptor, int64_t bytes, int64_t offset) {
  std::string found(bytes, '\0');
  for (int64_t at = 0; at < bytes;) {
    const ssize_t got = pread(descriptor, found.data() + at, bytes - at, offset + at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    at += got;
  }
  return found;
}

int64_t nanoseconds(const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; }

// By the clock of a file system's times.
int64_t file_clock() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return nanoseconds(now);
}

struct Identity {
  int64_t inode, size, written, changed;  // the last two in nanoseconds: mtime and ctime

  std::string text() const {
    return cat("inode ", inode, " size ", size, " mtime ", written, " ctime ", changed, "\n");
  }
};

std::optional<Identity> identity_of(int descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return Identity{static_cast<int64_t>(status.st_ino), static_cast<int64_t>(status.st_size),
                  nanoseconds(status.st_mtim), nanoseconds(status.st_ctim)};
}

class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  ~Descriptor() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// Without a mark, the file is compared again: no error matters.
void write_mark(const std::string& path, const std::string& identity) {
  const Descriptor file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0) return;
  write_fully(file.get(), reinterpret_cast<const std::byte*>(identity.data()), std::ssize(identity),
              0);
}

bool has_mark(const std::string& path, const std::string& identity) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return false;
  const auto found = identity_of(file.get());
  return found && found->size == std::ssize(identity) &&
         read_fully(file.get(), found->size, 0) == identity;
}

void flush_folder_of(const std::string& path) {
  const Descriptor folder(
      open(path.substr(0, path.rfind('/') + 1).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) fsync(folder.get());
}

// Flushes a complete file, gives it its name, and marks it.
int publish(const PanelTarget& target) {
  if (fchmod(target.descriptor, 0400) != 0 || fsync(target.descriptor) != 0) return errno;
  const auto before = identity_of(target.descriptor);
  if (!before) return EIO;
  // What another program writes from here on shows in the time of the last write.
  while (file_clock() <= before->written && before->written - file_clock() < 1'000'000'000) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  if (rename(target.part.c_str(), target.path.c_str()) != 0) return errno;
  const auto after = identity_of(target.descriptor);
  if (after && after->written == before->written && after->size == before->size) {
    write_mark(target.mark, after->text());
  }
  flush_folder_of(target.path);
  return 0;
}

}  // namespace

int reserve_panel_file(const WeightStore& store, const PanelTarget& target) {
  const std::string header = header_of(store, store.panel_pieces(kPieceBytes), {}, target);
  const int64_t offset = block_offset_of(header);
  if (fallocate(target.descriptor, 0, offset, store.bytes_needed()) == 0) return 0;
  return errno == EOPNOTSUPP || errno == ENOSYS ? 0 : errno;
}

int write_panel_file(const WeightStore& store, const PanelTarget& target,
                     const std::atomic<bool>& is_stopped, std::atomic<int64_t>* written) {
  const std::vector<PanelPiece> pieces = store.panel_pieces(kPieceBytes);
  const int64_t offset = block_offset_of(header_of(store, pieces, {}, target));
  const std::byte* const block = store.memory().data();
  std::vector<std::string> digests;
  const auto write_all = [&] {
    const int64_t total = store.bytes_needed();
    for (int64_t at = 0; at < total; at += kChunk) {
      if (is_stopped.load(std::memory_order_relaxed)) return ECANCELED;
      const int64_t end = std::min(at + kChunk, total);
      for (size_t i = digests.size(); i < pieces.size() && pieces[i].offset < end; ++i) {
        digests.push_back(digest_of(block + pieces[i].offset, pieces[i].bytes));
      }
      if (const int error = write_fully(target.descriptor, block + at, end - at, offset + at)) {
        return error;
      }
      // Starts to write this chunk to the disk, and waits for an earlier one: otherwise, the last
      // flush would take long, and other programs' writes meanwhile.
      sync_file_range(target.descriptor, offset + at, end - at, SYNC_FILE_RANGE_WRITE);
      if (at >= kQueued) {
        sync_file_range(target.descriptor, offset + at - kQueued, kChunk,
                        SYNC_FILE_RANGE_WAIT_BEFORE);
      }
      written->fetch_add(end - at, std::memory_order_relaxed);
    }
    const std::string header = header_of(store, pieces, digests, target);
    if (const int error =
            write_fully(target.descriptor, reinterpret_cast<const std::byte*>(header.data()),
                        std::ssize(header), 0)) {
      return error;
    }
    return publish(target);
  };
  const int error = write_all();
  if (error != 0) unlink(target.part.c_str());
  return error;
}

PanelReader::PanelReader(WeightStore* store, int descriptor, const std::string& key,
                         std::string mark, int threads)
    : store_(store), mark_(std::move(mark)), loop_(threads) {
  int64_t block_offset = 0;
  refusal_ = read_header(descriptor, key, &block_offset);
  if (!refusal_.empty()) return;
  try {
    store->map(descriptor, block_offset);
  } catch (const CapacityError&) {
    refusal_ = "cannot be mapped";
    return;
  }
  descriptor_ = dup(descriptor);
  loop_.start("sinkstream map", std::ssize(pieces_),
              [this](int64_t task, int) { read_piece(pieces_[task]); });
}

std::string PanelReader::read_header(int descriptor, const std::string& key,
                                     int64_t* block_offset) {
  const int64_t now = file_clock();
  const auto identity = identity_of(descriptor);
  if (!identity) return "is not a regular file";
  const auto first = read_fully(descriptor, sizeof(Head), 0);
  if (!first) return "is too short";
  Head head;
  std::memcpy(&head, first->data(), sizeof head);
  if (std::memcmp(head.magic, kMagic, sizeof head.magic) != 0) return "is not a panel file";
  if (head.version != kPanelVersion) return "is of another version";
  if (std::string_view(head.key, sizeof head.key) != key) return "is of another model";
  const std::vector<PanelPiece> pieces = store_->panel_pieces(kPieceBytes);
  const int64_t header_bytes =
      static_cast<int64_t>(sizeof(Head) + pieces.size() * sizeof(PieceEntry)) + kEndBytes +
      head.label_bytes;
  *block_offset = divide_up(header_bytes, kAlignment) * kAlignment;
  if (head.pieces != std::ssize(pieces) || head.block_bytes != store_->bytes_needed() ||
      head.block_offset != *block_offset) {
    return "has other weights";
  }
  if (identity->size != head.block_offset + head.block_bytes) return "has another size";
  const auto header = read_fully(descriptor, header_bytes, 0);
  if (!header) return "is too short";
  Digest digest;
  digest.add(std::string_view(*header).substr(0, header_bytes - kEndBytes));
  if (!header->ends_with(digest.hex())) return "has a damaged header";
  const bool is_marked = has_mark(mark_, identity->text());
  // Only if a later write would show.
  if (!is_marked && now > identity->changed) identity_ = identity->text();
  const char* at = header->data() + sizeof(Head) + head.label_bytes;
  for (const PanelPiece& piece : pieces) {
    PieceEntry entry;
    std::memcpy(&entry, at, sizeof entry);
    at += sizeof entry;
    if (entry.offset != piece.offset || entry.bytes != piece.bytes) return "has other weights";
    if (is_marked && piece.is_expert) continue;  // read when a token chooses it
    pieces_.push_back(
        {piece, is_marked ? std::string() : std::string(entry.digest, sizeof entry.digest)});
    bytes_to_read_ += piece.bytes;
  }
  return {};
}

PanelReader::~PanelReader() {
  if (descriptor_ >= 0) close(descriptor_);
}

void PanelReader::read_piece(const Piece& piece) {
  const SharedBuffer& memory = *store_->memory();
  const PanelPiece& at = piece.at;
  if (!memory.make_resident(at.offset, at.offset + at.bytes) ||
      (!piece.digest.empty() && digest_of(memory.data() + at.offset, at.bytes) != piece.digest)) {
    loop_.stop();
    const std::lock_guard lock(mutex_);
    if (!damaged_) damaged_ = at.weight;
    return;
  }
  bytes_read_.fetch_add(at.bytes, std::memory_order_relaxed);
}

bool PanelReader::wait(milliseconds at_most) {
  if (!has_ended_ && loop_.wait(at_most)) {
    has_ended_ = true;
    const auto now = identity_of(descriptor_);
    if (damaged_) {
      store_->unmap();
    } else if (!identity_.empty() && now && now->text() == identity_) {
      write_mark(mark_, identity_);
    }
  }
  return has_ended_;
}

PanelWriter::PanelWriter(WeightStore* store, std::mutex* in_use, PanelTarget target)
    : store_(store), in_use_(in_use), target_(std::move(target)) {
  try {
    thread_ = start_quiet_thread("sinkstream keep", [this] {
      try {
        write();
      } catch (const std::system_error& error) {  // no thread
        error_.store(error.code().value(), std::memory_order_relaxed);
        unlink(target_.part.c_str());
      }
      const std::lock_guard lock(mutex_);
      has_ended_ = true;
      ended_changed_.notify_all();
    });
  } catch (const std::system_error& error) {
    unlink(target_.part.c_str());
    close(target_.descriptor);
    throw CapacityError(cat("load: the system cannot start a thread: ", error.what(), "."));
  }
}

void PanelWriter::finish() {
  if (!thread_.joinable()) return;
  if (store_->bytes_needed() - written_.load(std::memory_order_relaxed) <= kSoon) {
    std::unique_lock lock(mutex_);
    ended_changed_.wait_for(lock, kGrace, [this] { return has_ended_; });
  }
  is_stopped_.store(true, std::memory_order_relaxed);
  thread_.join();
  close(target_.descriptor);
}

void PanelWriter::write() {
  int error = 0;
  // The exchange has a thread of normal priority: others wait for it, if only for a moment.
  std::thread writing = start_quiet_thread("sinkstream keep", [&] {
    setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kLowestPriority);
    error = write_panel_file(*store_, target_, is_stopped_, &written_);
  });
  writing.join();
  if (error == 0) {
    exchange();
  } else if (error != ECANCELED) {
    error_.store(error, std::memory_order_relaxed);
  }
}

// Read-only, as other processes have it.
void PanelWriter::exchange() {
  const Descriptor file(open(target_.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  const auto opened = identity_of(file.get()), written = identity_of(target_.descriptor);
  if (!opened || !written || opened->text() != written->text() ||
      !has_mark(target_.mark, opened->text())) {
    return;  // another process has put its own in place, or removed it
  }
  const int64_t offset = opened->size - store_->bytes_needed();
  SharedBuffer& memory = *store_->memory();
  while (!is_stopped_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(*in_use_);
    const int64_t begin = memory.bytes_from_file();
    if (begin == memory.bytes() || !memory.map_piece(file.get(), offset)) return;
    memory.make_resident(begin, memory.bytes_from_file());
  }
}

}  // namespace sinkstream
