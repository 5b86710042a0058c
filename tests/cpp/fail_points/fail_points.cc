#include "fail_points/fail_points.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/fail_point.h"

namespace sinkstream {

struct FailPoint::Armed {
  const std::string name;
  const FailAction action;
  std::atomic<int64_t> visits{0};
};

namespace {

// An unarmed point must not synchronize threads, and an armed one as little as possible, or it
// would hide from ThreadSanitizer the races that it exists to provoke. So no lock is taken while
// nothing is armed, and readers of a shared lock are not ordered among themselves.
std::atomic<int> armed_count{0};
std::shared_mutex armed_mutex;  // guards `armed`
std::vector<std::shared_ptr<FailPoint::Armed>> armed;

std::shared_ptr<FailPoint::Armed> find(std::string_view name) {
  const std::shared_lock lock(armed_mutex);
  const auto found = std::find_if(armed.begin(), armed.end(),
                                  [name](const auto& entry) { return entry->name == name; });
  return found == armed.end() ? nullptr : *found;
}

}  // namespace

void reach_fail_point(const char* name) {
  if (armed_count.load(std::memory_order_relaxed) == 0) return;
  const std::shared_ptr<FailPoint::Armed> entry = find(name);
  if (!entry) return;
  entry->visits.fetch_add(1, std::memory_order_relaxed);
  entry->action();
}

FailAction delay(std::chrono::microseconds duration) {
  return [duration] { std::this_thread::sleep_for(duration); };
}

FailAction once(FailAction action, int64_t after) {
  const auto visits = std::make_shared<std::atomic<int64_t>>(0);
  return [action = std::move(action), after, visits] {
    if (visits->fetch_add(1, std::memory_order_relaxed) == after) action();
  };
}

FailPoint::FailPoint(std::string name, FailAction action)
    : armed_(std::make_shared<Armed>(std::move(name), std::move(action))) {
  const std::lock_guard lock(armed_mutex);
  for (const auto& other : armed) {
    if (other->name == armed_->name) throw std::logic_error(other->name + " is armed already");
  }
  armed.push_back(armed_);
  ++armed_count;
}

FailPoint::~FailPoint() {
  const std::lock_guard lock(armed_mutex);
  std::erase(armed, armed_);
  --armed_count;
}

int64_t FailPoint::visits() const { return armed_->visits; }

struct Halt::Gate {
  std::mutex mutex;
  std::condition_variable has_changed;
  bool is_reached = false;
  bool is_open = false;

  void pass() {
    std::unique_lock lock(mutex);
    is_reached = true;
    has_changed.notify_all();
    has_changed.wait(lock, [this] { return is_open; });
  }
};

Halt::Halt(std::string name, int64_t after)
    : gate_(std::make_shared<Gate>()),
      point_(std::move(name), once([gate = gate_] { gate->pass(); }, after)) {}

Halt::~Halt() { release(); }

bool Halt::await() const {
  std::unique_lock lock(gate_->mutex);
  return gate_->has_changed.wait_for(lock, std::chrono::seconds(10),
                                     [this] { return gate_->is_reached; });
}

void Halt::release() {
  const std::lock_guard lock(gate_->mutex);
  gate_->is_open = true;
  gate_->has_changed.notify_all();
}

}  // namespace sinkstream
