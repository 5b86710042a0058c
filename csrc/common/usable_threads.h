// How many threads serve best: what the affinity mask and the cgroups' CPU quotas allow.
#pragma once

#include <filesystem>
#include <string>

namespace sinkstream {

// The cores in this process's affinity mask, no more than its CPU quota, at least 1.
int usable_threads();

// The same for known numbers; a part of a core counts as one.
int threads_within(int cores, double quota);

// The smallest CPU quota, in cores, of the cgroups that a process is in and of those above them;
// infinity where there is none or it cannot be read. `groups` is what /proc/self/cgroup says of the
// process, `root` is where cgroups are mounted. Reads versions 1 and 2.
double quota_cores(const std::string& groups, const std::filesystem::path& root);

}  // namespace sinkstream
