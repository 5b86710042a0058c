// Where the bytes of pages lie: the host's memory, or a GPU's, which the host does not read.
#pragma once

#include <cstdint>

#include "device/buffer.h"

namespace sinkstream {

class PageMemory {
 public:
  virtual ~PageMemory() = default;

  // As the kernels address it.
  virtual std::byte* data() const = 0;
  virtual int64_t bytes() const = 0;
  // Whether the host may follow the addresses. Else it reads and writes copies.
  virtual bool is_hosts() const = 0;

  // All in the order in which kernels run, or as if it were.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // Every byte becomes 0xFF: NaN in every floating-point type.
  virtual void spoil(std::byte* at, int64_t bytes) = 0;
  virtual void read(std::byte* to_host, const std::byte* from, int64_t bytes) = 0;
  virtual void write(std::byte* to, const std::byte* from_host, int64_t bytes) = 0;

  // The pages are needed no more.
  virtual void release() = 0;
};

class HostPages : public PageMemory {
 public:
  // Throws CapacityError. `threads` may help to take the memory.
  HostPages(int64_t bytes, ThreadPool* threads) : memory_(bytes, "the cache", threads) {}

  std::byte* data() const override { return memory_.data(); }
  int64_t bytes() const override { return memory_.bytes(); }
  bool is_hosts() const override { return true; }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  void spoil(std::byte* at, int64_t bytes) override;
  void read(std::byte* to_host, const std::byte* from, int64_t bytes) override;
  void write(std::byte* to, const std::byte* from_host, int64_t bytes) override;
  void release() override { memory_.release(); }

 private:
  Buffer memory_;
};

}  // namespace sinkstream
