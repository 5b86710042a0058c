#include "cache/page_memory.h"

#include <cstring>

namespace sinkstream {

void HostPages::copy(std::byte* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, bytes);
}

void HostPages::fill(std::byte* at, uint8_t value, int64_t bytes) { std::memset(at, value, bytes); }

void HostPages::read(std::byte* to_host, const std::byte* from, int64_t bytes) {
  std::memcpy(to_host, from, bytes);
}

void HostPages::write(std::byte* to, const std::byte* from_host, int64_t bytes) {
  std::memcpy(to, from_host, bytes);
}

}  // namespace sinkstream
