// In place of the header that CMake writes: no plugin is loaded here.
#pragma once

#include <cstdint>

namespace sinkstream::cuda {

constexpr uint64_t kPluginVersion = 1;

}  // namespace sinkstream::cuda
