// Sessions between Python and the engine.
#pragma once

#include <memory>

#include <pybind11/pybind11.h>

#include "engine/engine.h"

namespace sinkstream {

// A caller's handle to a session: when Python destroys it, the session ends.
class SessionHandle {
 public:
  explicit SessionHandle(std::shared_ptr<Session> session) : session_(std::move(session)) {}
  ~SessionHandle() { session_->close(); }
  SessionHandle(const SessionHandle&) = delete;
  SessionHandle& operator=(const SessionHandle&) = delete;

  const std::shared_ptr<Session>& session() const { return session_; }

 private:
  std::shared_ptr<Session> session_;
};

// The contents of a session, as a dictionary that python/sinkstream/sessions/saved.py reads.
pybind11::dict contents_of(Engine& engine, const SessionHandle& session);
// A session with these contents. Throws InternalError if sizes do not match.
std::unique_ptr<SessionHandle> restore_session(Engine& engine, int64_t sinks,
                                               const pybind11::dict& contents,
                                               std::string cache_salt);

}  // namespace sinkstream
