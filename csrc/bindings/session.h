// What the model's binding needs of sessions.
#pragma once

#include <memory>

#include <pybind11/pybind11.h>

#include "engine/engine.h"

namespace sinkstream {

// A caller's hold on a session: when Python lets go of it, the session ends.
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

// What a session consists of, as a dictionary that python/sinkstream/sessions/saved.py reads.
pybind11::dict contents_of(Engine& engine, const SessionHandle& session);
// A session with such contents. Throws InternalError where sizes do not agree.
std::unique_ptr<SessionHandle> restore_session(Engine& engine, int64_t sinks,
                                               const pybind11::dict& contents);

}  // namespace sinkstream
