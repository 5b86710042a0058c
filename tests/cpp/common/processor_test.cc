#include "common/processor.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace sinkstream {
namespace {

// The first value of a field of /proc/cpuinfo, or "".
std::string field(const std::string& wanted) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || colon + 2 > line.size()) continue;
    if (line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1) == wanted) {
      return line.substr(colon + 2);
    }
  }
  return "";
}

TEST(Processor, HasTheFamilyOfItsVersion) {
  EXPECT_EQ(family_of(0x00b00f21), 26);
  EXPECT_EQ(family_of(0x00a20f10), 25);
  EXPECT_EQ(family_of(0x00800f12), 23);
  EXPECT_EQ(family_of(0x000806f8), 6);  // only family 0xf is extended
}

TEST(Processor, PrefetchesToL1OnAmdFamily26Alone) {
  const bool is_family_26 = field("vendor_id") == "AuthenticAMD" && field("cpu family") == "26";
  EXPECT_EQ(kPrefetchToL1, is_family_26);
}

TEST(Processor, HasSlowDotsIfItIsIntels) {
  EXPECT_EQ(kDotsAreSlow, field("vendor_id") == "GenuineIntel");
}

}  // namespace
}  // namespace sinkstream
