#include "kernels/cuda/gpu.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "common/errors.h"
#include "device/shared_library.h"

namespace sinkstream::cuda {

namespace {

constexpr int kLeastMajor = 8;  // Ampere: bf16 in the tensor cores, and asynchronous copies
constexpr Status kInsufficientDriver = 35, kNoDevice = 100;

std::string version(int32_t number) { return cat(number / 1000, ".", number % 1000 / 10); }

// Compute capabilities as numbers, such as 86, of a list such as "86 90a".
std::vector<int32_t> capabilities(std::string_view list) {
  std::vector<int32_t> found;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(' ', begin), list.size());
    std::from_chars(list.data() + begin, list.data() + end, found.emplace_back());
    begin = end + 1;
  }
  return found;
}

// Machine code serves its compute capability and later ones with the same major part; "90a" is for
// 9.0, the only one of its major part.
bool has_machine_code(const Plugin& plugin, const GpuFacts& gpu) {
  return std::ranges::any_of(capabilities(plugin.machine_code), [&](int32_t number) {
    return number / 10 == gpu.major && number % 10 <= gpu.minor;
  });
}

// Why a library without PTX cannot serve this GPU.
std::string compiled_for_others(const Plugin& plugin, const GpuFacts& gpu) {
  std::string names;
  for (const int32_t number : capabilities(plugin.machine_code)) {
    names += cat(names.empty() ? "" : " and ", number / 10, ".", number % 10);
  }
  return cat("the kernels were compiled for compute capability ", names, ", but ", gpu.name,
             " has ", gpu.major, ".", gpu.minor,
             ". Rebuild the package on this machine, or with SINKSTREAM_CUDA_CODE=RELEASE.");
}

// Why the runtime finds no GPU, in the driver's words if there is no better explanation.
std::string why_no_gpu(const Runtime& runtime, Status status) {
  int32_t driver = 0, needed = 0;
  const Status known = runtime.versions(&driver, &needed);
  if (known == kSuccess && driver == 0) return "there is no NVIDIA driver.";
  if (known == kSuccess && (status == kInsufficientDriver || driver / 1000 < needed / 1000)) {
    return cat("the NVIDIA driver supports CUDA ", version(driver), ", but this build needs ",
               version(needed), ". Install a newer driver.");
  }
  if (status == kSuccess || status == kNoDevice) {
    return "no GPU is visible. Is CUDA_VISIBLE_DEVICES set?";
  }
  return cat("the driver reports: ", runtime.message(status), ".");
}

}  // namespace

GpuSearch find_gpu(const Plugin& plugin) {
  GpuSearch found;
  const Runtime& runtime = plugin.runtime;
  int32_t count = 0;
  Status status = runtime.count_gpus(&count);
  if (status != kSuccess || count == 0) {
    found.problem = why_no_gpu(runtime, status);
    return found;
  }
  // The first visible GPU, which CUDA_VISIBLE_DEVICES selects.
  status = runtime.describe(0, &found.facts);
  if (status != kSuccess) {
    found.problem = cat("the driver reports: ", runtime.message(status), ".");
  } else if (found.facts.major < kLeastMajor) {
    found.problem = cat("the kernels need compute capability ", kLeastMajor, ".0 or newer, but ",
                        found.facts.name, " has ", found.facts.major, ".", found.facts.minor, ".");
  } else {
    found.driver_compiles = !has_machine_code(plugin, found.facts);
    if (found.driver_compiles && !plugin.has_ptx) {
      found.problem = compiled_for_others(plugin, found.facts);
    } else {
      found.plugin = &plugin;
    }
  }
  return found;
}

GpuSearch find_gpu(const std::string& path) {
  GpuSearch found;
  if (access(path.c_str(), F_OK) != 0) {
    found.problem =
        "this build has no CUDA kernels. Rebuild it with nvcc on PATH and SINKSTREAM_CUDA=ON.";
    return found;
  }
  const SharedLibrary library(path);
  if (!library.is_loaded()) {
    found.problem = cat("the CUDA library cannot be loaded: ", library.problem(), ".");
    return found;
  }
  using Entry = const Plugin*();
  auto* const entry = reinterpret_cast<Entry*>(library.symbol(kPluginSymbol));
  const Plugin* const plugin = entry == nullptr ? nullptr : entry();
  if (plugin == nullptr || plugin->version != kPluginVersion) {
    found.problem =
        "the CUDA library belongs to another build of the package. Reinstall the package.";
    return found;
  }
  return find_gpu(*plugin);
}

UniqueStream::UniqueStream(const Runtime& runtime) : runtime_(runtime) {
  check(runtime, runtime.new_stream(&stream_), "creating a stream");
}

UniqueEvent::UniqueEvent(const Runtime& runtime) : runtime_(runtime) {
  check(runtime, runtime.new_event(&event_), "creating an event");
}

void check(const Runtime& runtime, Status status, const char* what) {
  if (status == kSuccess) return;
  throw DeviceError(cat("cuda: ", what, " failed: ", runtime.message(status), "."));
}

}  // namespace sinkstream::cuda
