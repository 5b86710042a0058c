#include "model/cuda/upload.h"

#include <cstring>

#include "common/check.h"

namespace sinkstream {

Upload::Upload(std::byte* begin, int64_t buffer_bytes, const cuda::Runtime& runtime,
               cuda::Stream stream)
    : runtime_(runtime),
      stream_(stream),
      buffer_bytes_(buffer_bytes),
      buffers_{cuda::allocate_pinned(runtime, buffer_bytes_, "weights"),
               cuda::allocate_pinned(runtime, buffer_bytes_, "weights")},
      copied_{cuda::UniqueEvent(runtime), cuda::UniqueEvent(runtime)},
      begin_(begin),
      end_(begin) {}

Upload::~Upload() { runtime_.synchronize(stream_); }  // even if it failed

int64_t Upload::room(const std::byte* to, int64_t least) {
  if (begin_ + buffer_bytes_ - to < least) send();
  return begin_ + buffer_bytes_ - to;
}

std::byte* Upload::write(std::byte* to, int64_t bytes) {
  const int64_t free = room(to, bytes);
  SINKSTREAM_CHECK(to >= end_ && bytes <= free, "a piece of ", bytes, " bytes has room for ", free);
  std::byte* const buffer = buffers_[sent_ % 2].get();
  std::memset(buffer + (end_ - begin_), 0, to - end_);
  end_ = to + bytes;
  return buffer + (to - begin_);
}

void Upload::send() {
  const int64_t buffer = sent_ % 2;
  cuda::check(runtime_, runtime_.copy(begin_, buffers_[buffer].get(), end_ - begin_, stream_),
              "copying weights");
  cuda::check(runtime_, runtime_.record(copied_[buffer].get(), stream_), "copying weights");
  ++sent_;
  begin_ = end_;
  if (sent_ < 2) return;  // the other buffer has not been sent yet
  cuda::check(runtime_, runtime_.await(copied_[sent_ % 2].get()), "copying weights");
}

void Upload::finish() {
  if (end_ > begin_) send();
  cuda::check(runtime_, runtime_.synchronize(stream_), "copying weights");
}

}  // namespace sinkstream
