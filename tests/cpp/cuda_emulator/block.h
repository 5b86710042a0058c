// Runs a grid: one block after another, and in each a fiber for every thread. Knows barriers, one
// exchange among the lanes of a warp from which all collectives are made, shared memory and copies
// that are under way; emulator.h gives them CUDA's names.
//
// Note: [What the sanitizers see]
// Kernels are compiled with the sanitizer, these files without the thread sanitizer: what passes
// through an exchange is no access to memory, and no fence either. Only barriers order what threads
// did, and only `fence` orders threads of different blocks. All blocks of a launch are otherwise
// unordered, though they run one after another.
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

// What one lane gives to the others of its warp.
struct Words {
  uint32_t word[12] = {};
};

// Where a thread is when it waits for others.
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

// Runs it to its end. What a GPU would refuse returns a Status other than success; rethrows what a
// thread threw, and a Fault of the block's own.
Status run(const Grid& grid);

// The rest is for threads of a running block.

void block_barrier(const CallSite& site);
void warp_barrier(unsigned mask, const CallSite& site);  // orders memory, as __syncwarp does

// Gives `mine` to the other lanes and waits until all have given theirs; those are to be read, lane
// by lane, with `given`, before the warp's next exchange.
const Words* exchange(unsigned mask, const CallSite& site, const Words& mine);
Words given(const Words* words, int lane);

int lane();

// What a block may have of shared memory, in bytes. Changed while nothing runs.
inline size_t shared_limit = 227 * 1024;  // as sm_90

// A GPU with less, while this lives.
class SharedLimit {
 public:
  explicit SharedLimit(size_t bytes) : before_(shared_limit) { shared_limit = bytes; }
  ~SharedLimit() { shared_limit = before_; }
  SharedLimit(const SharedLimit&) = delete;
  SharedLimit& operator=(const SharedLimit&) = delete;

 private:
  size_t before_;
};

// A variable of the block, the same for all who ask with one `key`: 0xFF until it is written.
void* shared(const void* key, size_t bytes);
// The block's dynamic shared memory, `dynamic_bytes` long.
void* dynamic_shared();

struct Copy {
  void* to;
  const void* from;
};
void begin_copy(const Copy& copy);
void commit_copies();
// Takes out the oldest copy, if it is not of the last `groups` groups or still without one.
bool take_copy(int groups, Copy* copy);

void fence();

// What a lane has of a product's factors, as numbers: Note: [Fragments] of
// kernels/cuda/tensor_core.cuh.
struct Fragment {
  float a[8];  // a[2r] and a[2r + 1] are the pair of word r
  float b[4];  // likewise
};
// Adds this lane's four numbers of the product to d.
void multiply_add(const Fragment& mine, float (&d)[4], const CallSite& site);

}  // namespace sinkstream::cuda::emulator
