// No tolerance may be twice as wide as needed. Only a program that ran the tests that come closest
// can check this: CMakeLists.txt runs them with SINKSTREAM_TIGHTNESS set.
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/test_stream.h"
#include "kernels/tolerance.h"

namespace sinkstream {
namespace {

class Tightness : public testing::Environment {
  void TearDown() override {
    if (std::getenv("SINKSTREAM_TIGHTNESS") == nullptr) return;
    for (const DType type : kTypes) {
      EXPECT_GT(worst_shares[static_cast<size_t>(type)], 0.5) << name_of(type);
    }
  }
};

[[maybe_unused]] const auto* const tightness = testing::AddGlobalTestEnvironment(new Tightness);

}  // namespace
}  // namespace sinkstream
