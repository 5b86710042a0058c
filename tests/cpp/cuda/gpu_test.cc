#include "kernels/cuda/gpu.h"

#include <gtest/gtest.h>

#include "cuda/emulated_gpu.h"

namespace sinkstream::cuda {
namespace {

// The problem that find_gpu reports with this runtime.
std::string problem_of(const Runtime& runtime) {
  static Plugin plugin = emulated_plugin();  // must outlive the result
  plugin.runtime = runtime;
  const GpuSearch found = find_gpu(plugin);
  EXPECT_EQ(found.plugin == nullptr, !found.problem.empty());
  return found.problem;
}

TEST(FindGpu, TakesOneThatServes) {
  EXPECT_EQ(problem_of(emulated_plugin().runtime), "");
  EXPECT_STREQ(find_gpu(emulated_plugin()).facts.name, "an emulated GPU");
}

TEST(FindGpu, SaysWhyThereIsNone) {
  Runtime runtime = emulated_plugin().runtime;
  runtime.count_gpus = [](int32_t* count) {
    *count = 0;
    return Status{100};
  };
  EXPECT_EQ(problem_of(runtime), "no GPU is visible. Is CUDA_VISIBLE_DEVICES set?");

  runtime.count_gpus = [](int32_t*) { return Status{35}; };
  runtime.versions = [](int32_t* driver, int32_t* needed) {
    *driver = 0, *needed = 13000;
    return kSuccess;
  };
  EXPECT_EQ(problem_of(runtime), "there is no NVIDIA driver.");

  runtime.versions = [](int32_t* driver, int32_t* needed) {
    *driver = 12040, *needed = 13000;
    return kSuccess;
  };
  EXPECT_EQ(problem_of(runtime),
            "the NVIDIA driver supports CUDA 12.4, but this build needs 13.0. Install a newer "
            "driver.");
}

TEST(FindGpu, RefusesAGpuThatIsTooOld) {
  Runtime runtime = emulated_plugin().runtime;
  runtime.describe = [](int32_t, GpuFacts* facts) {
    *facts = {"an old GPU", 7, 5, 40, 1 << 30, 1 << 30};
    return kSuccess;
  };
  EXPECT_EQ(problem_of(runtime),
            "the kernels need compute capability 8.0 or newer, but an old GPU has 7.5.");
}

// What a library with machine code for `list` says of a GPU.
GpuSearch search(const char* list, bool has_ptx, int32_t major, int32_t minor) {
  static int32_t numbers[2];
  numbers[0] = major, numbers[1] = minor;
  static Plugin plugin = emulated_plugin();
  plugin.machine_code = list;
  plugin.has_ptx = has_ptx;
  plugin.runtime.describe = [](int32_t, GpuFacts* facts) {
    *facts = {"a GPU", numbers[0], numbers[1], 40, 1 << 30, 1 << 30};
    return kSuccess;
  };
  return find_gpu(plugin);
}

// Whether the driver has to compile a library with machine code for `list`, and PTX.
bool driver_compiles(const char* list, int32_t major, int32_t minor) {
  const GpuSearch found = search(list, /*has_ptx=*/true, major, minor);
  EXPECT_NE(found.plugin, nullptr);
  return found.driver_compiles;
}

TEST(FindGpu, KnowsForWhichGpusTheDriverCompiles) {
  EXPECT_FALSE(driver_compiles("90a", 9, 0));
  EXPECT_TRUE(driver_compiles("90a", 8, 0));
  EXPECT_TRUE(driver_compiles("90a", 10, 0));
  const char* const all = "80 86 89 90a 100 120";
  EXPECT_FALSE(driver_compiles(all, 8, 0));
  EXPECT_FALSE(driver_compiles(all, 8, 7));  // the code for 8.6
  EXPECT_FALSE(driver_compiles(all, 12, 1));
  EXPECT_TRUE(driver_compiles(all, 11, 0));
  EXPECT_TRUE(driver_compiles("86", 8, 0));
  EXPECT_TRUE(driver_compiles("", 9, 0));
}

TEST(FindGpu, RefusesAGpuThatTheBuildHasNoCodeFor) {
  EXPECT_NE(search("86", /*has_ptx=*/false, 8, 9).plugin, nullptr);
  const GpuSearch found = search("86 90a", /*has_ptx=*/false, 8, 0);
  EXPECT_EQ(found.plugin, nullptr);
  EXPECT_EQ(found.problem,
            "the kernels were compiled for compute capability 8.6 and 9.0, but a GPU has 8.0. "
            "Rebuild the package on this machine, or with SINKSTREAM_CUDA_CODE=RELEASE.");
}

TEST(FindGpu, SaysThatABuildHasNoKernels) {
  EXPECT_EQ(find_gpu(std::string("/nowhere/_cuda.so")).problem,
            "this build has no CUDA kernels. Rebuild it with nvcc on PATH and SINKSTREAM_CUDA=ON.");
}

}  // namespace
}  // namespace sinkstream::cuda
