#include "common/usable_threads.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string_view>
#include <thread>

#include "common/thread_pool.h"

namespace sinkstream {

namespace {

// A small file's text; empty if it cannot be read. Without streams: see append_to.
std::string text_of(const std::filesystem::path& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), std::fclose);
  std::string text;
  char part[512];
  while (file != nullptr) {
    const size_t read = std::fread(part, 1, sizeof(part), file.get());
    text.append(part, read);
    if (read < sizeof(part)) break;
  }
  return text;
}

// Takes the text up to a separator off the front.
std::string_view take_until(char separator, std::string_view& text) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return taken;
}

// The quota of one cgroup's folder, in cores.
double quota_of(const std::filesystem::path& folder) {
  // Version 2 has both numbers in a file, and "max" for none; version 1 has −1 for none.
  std::string text = text_of(folder / "cpu.max");
  if (text.empty()) {
    text = text_of(folder / "cpu.cfs_quota_us") + ' ' + text_of(folder / "cpu.cfs_period_us");
  }
  double quota = 0, period = 0;
  if (std::sscanf(text.c_str(), "%lf %lf", &quota, &period) != 2) return INFINITY;
  return quota > 0 && period > 0 ? quota / period : INFINITY;
}

// A line of /proc/self/cgroup is id:controllers:path. Returns the root folder of its hierarchy;
// empty if that does not control the CPU.
std::filesystem::path hierarchy_of(std::string_view controllers,
                                   const std::filesystem::path& root) {
  if (controllers.empty()) return root;  // version 2
  while (!controllers.empty()) {
    if (take_until(',', controllers) == "cpu") return root / "cpu";
  }
  return {};
}

}  // namespace

double quota_cores(const std::string& groups, const std::filesystem::path& root) {
  double least = INFINITY;
  for (std::string_view lines = groups; !lines.empty();) {
    const std::string_view line = take_until('\n', lines);
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
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
  return threads_within(cores, quota_cores(text_of("/proc/self/cgroup"), "/sys/fs/cgroup"));
}

}  // namespace sinkstream
