// Memory for pages and states: the host's, or a GPU's, which the host cannot access.
#pragma once

#include <cstdint>

#include "device/buffer.h"

namespace sinkstream {

class PageMemory {
 public:
  virtual ~PageMemory() = default;

  // The address that kernels use.
  virtual std::byte* data() const = 0;
  virtual int64_t bytes() const = 0;
  // Whether the host can access the memory by address. If not, it reads and writes copies.
  virtual bool is_host_memory() const = 0;

  // All of these are ordered with the kernels.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  virtual void fill(std::byte* at, uint8_t value, int64_t bytes) = 0;
  // Sets every byte to 0xFF: NaN in every floating-point type.
  void poison(std::byte* at, int64_t bytes) { fill(at, 0xff, bytes); }
  virtual void read(std::byte* to_host, const std::byte* from, int64_t bytes) = 0;
  virtual void write(std::byte* to, const std::byte* from_host, int64_t bytes) = 0;

  // Frees the memory. The pages must not be used afterwards.
  virtual void release() = 0;
};

class HostPages : public PageMemory {
 public:
  // Throws CapacityError. `threads`, if not null, speed up the allocation.
  HostPages(int64_t bytes, ThreadPool* threads) : memory_(bytes, "the cache", threads) {}

  std::byte* data() const override { return memory_.data(); }
  int64_t bytes() const override { return memory_.bytes(); }
  bool is_host_memory() const override { return true; }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  void fill(std::byte* at, uint8_t value, int64_t bytes) override;
  void read(std::byte* to_host, const std::byte* from, int64_t bytes) override;
  void write(std::byte* to, const std::byte* from_host, int64_t bytes) override;
  void release() override { memory_.release(); }

 private:
  Buffer memory_;
};

}  // namespace sinkstream
