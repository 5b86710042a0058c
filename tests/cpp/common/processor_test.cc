#include "common/processor.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace sinkstream {
namespace {

// The first value of a field of /proc/cpuinfo, or nothing.
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

TEST(Processor, IsOneWhoseFirstCacheServesAheadByWhatTheSystemSaysOfIt) {
  const bool is_zen5 = field("vendor_id") == "AuthenticAMD" && field("cpu family") == "26";
  EXPECT_EQ(kFirstCacheServesAhead, is_zen5);
}

}  // namespace
}  // namespace sinkstream
