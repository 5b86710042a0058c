// Runs a grid: one block after another, with a fiber per thread. Knows barriers, one exchange among
// the lanes of a warp from which all collectives are built, shared memory and copies in flight;
// emulator.h gives them CUDA's names.
//
// Note: [What the sanitizers see]
// Kernels are compiled with the sanitizer, these files without the thread sanitizer: an exchange is
// neither a memory access nor a fence. Only barriers order threads, and only `fence` orders threads
// of different blocks. Blocks of a launch are otherwise unordered, although they run one after
// another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>

#include "cuda_emulator/numbers.h"
#include "cuda_emulator/orders.h"

extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;

namespace sinkstream::cuda::emulator {

// What one lane passes to the others of its warp.
struct Words {
  uint32_t word[2] = {};
};

// Where a thread waits for others.
struct CallSite {
  const char* what;  // "__syncthreads"
  std::source_location where;
};

struct Grid {
  dim3 blocks;
  dim3 threads;
  size_t dynamic_bytes;
  void (*call)(const void* kernel);  // runs one thread
  const void* kernel;
};

// Runs a grid to completion. A launch that a GPU would refuse returns a Status other than success.
// Rethrows what a thread threw, and throws a Fault for errors that the block detects.
Status run(const Grid& grid);

// The rest is called by threads of a running block.

void block_barrier(const CallSite& site);
void warp_barrier(unsigned mask, const CallSite& site);  // orders memory, as __syncwarp does

// Passes `mine` to the other lanes and waits for theirs, which must be read with `given`, lane by
// lane, before the warp's next exchange.
const Words* exchange(unsigned mask, const CallSite& site, Words mine);
Words given(const Words* words, int lane);
unsigned ballot(unsigned mask, const CallSite& site, bool mine);

int lane();

// Shared memory that a block may use, in bytes. Change it only while nothing runs.
inline size_t shared_limit = 227 * 1024;  // as sm_90

// Lowers the limit while it lives.
class SharedLimit {
 public:
  explicit SharedLimit(size_t bytes) : before_(shared_limit) { shared_limit = bytes; }
  ~SharedLimit() { shared_limit = before_; }
  SharedLimit(const SharedLimit&) = delete;
  SharedLimit& operator=(const SharedLimit&) = delete;

 private:
  size_t before_;
};

// What blocks_together() of portable.h returns. So few that such blocks have several things to do.
// Change it only while nothing runs.
inline int64_t blocks_together = 7;

// Changes it while it lives.
class BlocksTogether {
 public:
  explicit BlocksTogether(int64_t blocks) : before_(blocks_together) { blocks_together = blocks; }
  ~BlocksTogether() { blocks_together = before_; }
  BlocksTogether(const BlocksTogether&) = delete;
  BlocksTogether& operator=(const BlocksTogether&) = delete;

 private:
  int64_t before_;
};

// A shared variable of the block, one per `key`: 0xFF until it is written.
void* shared(const void* key, size_t bytes);
// The block's dynamic shared memory, `dynamic_bytes` long.
void* dynamic_shared();

struct Copy {
  void* to;
  const void* from;
};
void begin_copy(const Copy& copy);
void commit_copies();
// Takes the oldest copy, unless it belongs to the last `groups` groups or is not committed yet.
bool take_copy(int groups, Copy* copy);

void fence();

// Every thread of a kernel must call it once, as on a GPU whose kernels overlap.
void wait_for_previous();

// A lane's part of a product: Note: [Fragments] of kernels/cuda/tensor_core.cuh.
struct Fragment {
  uint32_t a[4];  // pairs of numbers
  uint32_t b[2];  // likewise
  float d[4];     // what the product is added to
};
// Sets `d` to this lane's numbers of the sum. T: bf16 or f16.
template <typename T>
void multiply_add(const Fragment& mine, float (&d)[4], const CallSite& site);

}  // namespace sinkstream::cuda::emulator
