#include "common/human_bytes.h"

#include <gtest/gtest.h>

namespace sinkstream {
namespace {

TEST(HumanBytes, HaveOneDecimalAndADecimalUnit) {
  EXPECT_EQ(human_bytes(0), "0 bytes");
  EXPECT_EQ(human_bytes(999), "999 bytes");
  EXPECT_EQ(human_bytes(1000), "1.0 kB");
  EXPECT_EQ(human_bytes(999'949), "999.9 kB");
  EXPECT_EQ(human_bytes(999'950), "1.0 MB");
  EXPECT_EQ(human_bytes(8'800'000), "8.8 MB");
  EXPECT_EQ(human_bytes(1 << 30), "1.1 GB");
  EXPECT_EQ(human_bytes(int64_t{1} << 40), "1.1 TB");
  EXPECT_EQ(human_bytes(int64_t{5'000'000'000'000'000}), "5000.0 TB");
}

}  // namespace
}  // namespace sinkstream
