// Numbers of bytes for people, in the decimal units of Python's `human_bytes`.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace sinkstream {

// Such as "8.8 MB".
inline std::string human_bytes(int64_t count) {
  if (count < 1000) return std::to_string(count) + " bytes";
  double size = static_cast<double>(count) / 1000;
  const char* const units[] = {"kB", "MB", "GB", "TB"};
  int unit = 0;
  for (; size >= 999.95 && unit < 3; ++unit) size /= 1000;
  char text[48];
  std::snprintf(text, sizeof text, "%.1f %s", size, units[unit]);
  return text;
}

}  // namespace sinkstream
