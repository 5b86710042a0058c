// Streams between Python and the engine: reads a request, returns a stream.
#pragma once

#include <memory>

#include <pybind11/pybind11.h>

#include "engine/engine.h"

namespace sinkstream {

// A consumer's handle to a stream: its destruction by Python ends the generation.
class StreamHandle {
 public:
  explicit StreamHandle(std::shared_ptr<TokenStream> stream) : stream_(std::move(stream)) {}
  ~StreamHandle() { stream_->cancel(); }
  StreamHandle(const StreamHandle&) = delete;
  StreamHandle& operator=(const StreamHandle&) = delete;

  TokenStream& stream() const { return *stream_; }
  const std::shared_ptr<TokenStream>& shared() const { return stream_; }
  // The next batch as a Python Batch, None at the end. Waits without the GIL, and checks for
  // signals every 50 ms; an exception of a signal handler is raised here.
  pybind11::object take();

 private:
  std::shared_ptr<TokenStream> stream_;
  StreamBatch batch_;
};

// `request`: a StreamRequest of python/sinkstream/request/stream_request.py; a turn of `session`
// unless that is null.
std::unique_ptr<StreamHandle> submit_from_python(Engine& engine, const pybind11::object& request,
                                                 const std::shared_ptr<Session>& session);

// Counters, gauges and histograms of one moment, as a dictionary.
pybind11::dict stats_for_python(const Engine& engine);

// The latest steps from number `from` on, as far as they are kept: tuples of (step, begin,
// forward_end, end, decoding, prompt_tokens, free_pages), times in seconds of the clock of
// time.monotonic().
pybind11::list steps_for_python(const Engine& engine, int64_t from);

// The latest phase changes of requests: (number of the first one, tuples of (request, time,
// phase, finish reason or None, prompt_tokens, generated_tokens)).
pybind11::tuple phase_changes_for_python(const Engine& engine, int64_t from);

}  // namespace sinkstream
