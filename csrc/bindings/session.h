// What the model's binding needs of sessions.
#pragma once

#include <memory>

#include "engine/session.h"

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

}  // namespace sinkstream
