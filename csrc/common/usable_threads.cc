#include "common/usable_threads.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <thread>

#include "common/thread_pool.h"

namespace sinkstream {

namespace {

// The quota of one cgroup's folder, in cores.
double quota_of(const std::filesystem::path& folder) {
  std::string quota;  // "max" in version 2, −1 in version 1: none
  double period = 0;
  if (std::ifstream both(folder / "cpu.max"); !(both >> quota >> period)) {
    std::ifstream(folder / "cpu.cfs_quota_us") >> quota;
    std::ifstream(folder / "cpu.cfs_period_us") >> period;
  }
  const double time = std::strtod(quota.c_str(), nullptr);
  return time > 0 && period > 0 ? time / period : INFINITY;
}

// A line of /proc/self/cgroup is id:controllers:path. Returns the root folder of its hierarchy;
// empty if that does not control the CPU.
std::filesystem::path hierarchy_of(const std::string& controllers,
                                   const std::filesystem::path& root) {
  if (controllers.empty()) return root;  // version 2
  std::stringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "cpu") return root / "cpu";
  }
  return {};
}

}  // namespace

double quota_cores(const std::string& groups, const std::filesystem::path& root) {
  double least = INFINITY;
  std::stringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto hierarchy = hierarchy_of(line.substr(first + 1, second - first - 1), root);
    if (hierarchy.empty()) continue;
    // Inside a container the path may be the host's: missing folders are ignored.
    std::filesystem::path group = std::filesystem::path(line.substr(second + 1)).relative_path();
    for (;; group = group.parent_path()) {
      least = std::min(least, quota_of(hierarchy / group));
      if (group.empty()) break;
    }
  }
  return least;
}

int threads_within(int cores, double quota) {
  const double least = std::min(static_cast<double>(cores), std::ceil(quota));
  return static_cast<int>(std::clamp(least, 1.0, double{ThreadPool::kMaxThreads}));
}

int usable_threads() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  int cores = static_cast<int>(std::thread::hardware_concurrency());  // 0 if unknown
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) cores = CPU_COUNT(&allowed);
  std::stringstream groups;
  groups << std::ifstream("/proc/self/cgroup").rdbuf();
  return threads_within(cores, quota_cores(groups.str(), "/sys/fs/cgroup"));
}

}  // namespace sinkstream
