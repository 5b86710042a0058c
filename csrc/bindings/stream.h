// Streams between Python and the engine: reads a request, returns a stream.
#pragma once

#include <memory>

#include <pybind11/pybind11.h>

#include "engine/engine.h"

namespace sinkstream {

// A consumer's handle to a stream: when Python destroys it, generation ends.
class StreamHandle {
 public:
  explicit StreamHandle(std::shared_ptr<TokenStream> stream) : stream_(std::move(stream)) {}
  ~StreamHandle() { stream_->cancel(); }
  StreamHandle(const StreamHandle&) = delete;
  StreamHandle& operator=(const StreamHandle&) = delete;

  TokenStream& stream() const { return *stream_; }
  const std::shared_ptr<TokenStream>& shared() const { return stream_; }
  // The next batch as a Python Batch, None at the end. Waits without the GIL, and checks for
  // signals every 50 ms; an exception from a signal handler is raised here.
  pybind11::object take();

 private:
  std::shared_ptr<TokenStream> stream_;
  StreamBatch batch_;
};

// `request`: a StreamRequest of python/sinkstream/request/stream_request.py; a turn of `session`
// unless that is null.
std::unique_ptr<StreamHandle> submit_from_python(Engine& engine, const pybind11::object& request,
                                                 const std::shared_ptr<Session>& session);

}  // namespace sinkstream
