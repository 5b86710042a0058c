// How many threads to use: what the affinity mask and the cgroups' CPU quotas allow.
#pragma once

#include <filesystem>
#include <string>

namespace sinkstream {

// The number of cores in this process's affinity mask, at most its CPU quota, at least 1.
int usable_threads();

// The same from given numbers; a fraction of a core counts as one.
int threads_within(int cores, double quota);

// The smallest CPU quota, in cores, among a process's cgroups and their ancestors; infinity if
// there is none or it cannot be read. `groups` is the content of /proc/self/cgroup, `root` is where
// cgroups are mounted. Supports versions 1 and 2.
double quota_cores(const std::string& groups, const std::filesystem::path& root);

}  // namespace sinkstream
