#include "cuda_emulator/block.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "cuda_emulator/fiber.h"
#include "cuda_emulator/sanitizers.h"

constinit thread_local uint3 threadIdx = {};
constinit thread_local uint3 blockIdx = {};
constinit thread_local dim3 blockDim = {};
constinit thread_local dim3 gridDim = {};

namespace sinkstream::cuda::emulator {
namespace {

constexpr int kLanes = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr int kMostCopies = 512;    // in flight in one thread
constexpr int kMostVariables = 64;  // SHARED in one kernel
constexpr int kMostThreads = 1024;
constexpr size_t kMostStatic = 48 * 1024;    // what nvcc accepts
constexpr Status kInvalidValue = 1;          // cudaErrorInvalidValue
constexpr Status kInvalidConfiguration = 9;  // cudaErrorInvalidConfiguration

// Picks the next ready thread. splitmix64, so that it is the same on every machine.
struct ThreadOrder {
  Order order;
  uint64_t state = 0;

  uint64_t below(uint64_t count) {
    uint64_t x = state += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return (x ^ (x >> 31)) % count;
  }
};

thread_local Order chosen_order;
thread_local Status next_status = kSuccess;

// Where threads wait for each other: all of a block, or of a warp.
struct Barrier {
  int first = 0;  // of its threads
  int count = 0;
  int arrived = 0;
  CallSite site = {};  // of the first to arrive
  unsigned generation = 0;
  // Addresses for the thread sanitizer. Two consecutive uses need different ones, or a late thread
  // would synchronize with what others did after they had left.
  char address[2] = {};
};

struct Warp {
  Barrier barrier;
  // An exchange writes to one half, while late threads still read the other: no thread can be two
  // exchanges ahead.
  Words words[2][kLanes];
  Fragment fragments[2][kLanes];
  bool is_multiplied[2] = {};
};

struct Block;

struct Thread {
  Block* block = nullptr;
  int number = 0;
  uint3 index = {};
  Fiber* fiber = nullptr;
  const Barrier* waits_in = nullptr;
  bool has_waited = false;  // for the previous kernel
  bool has_returned = false;
  int first_copy = 0, copy_count = 0;  // copies in flight: a range of its ring
  int group = 0;                       // of the next copy
};

struct GroupedCopy {
  Copy copy;
  int group;
};
using CopyRing = GroupedCopy[kMostCopies];
// One per thread number; allocated by the first kernel that copies, then reused.
thread_local std::unique_ptr<CopyRing[]> copy_rings;

// The fibers of a block's threads, created on demand and reused. To the thread sanitizer, what one
// fiber does in two blocks is ordered, and it is slow to create fibers: so there are several sets,
// and a block uses any but the previous block's.
constexpr int kSets = kThreadSanitizer ? 3 : 1;
using Fibers = std::vector<std::unique_ptr<Fiber>>;
thread_local Fibers fiber_sets[kSets];

Fibers& fibers_for(int count, int set) {
  Fibers& fibers = fiber_sets[set];
  while (static_cast<int>(fibers.size()) < count) {
    fibers.push_back(std::make_unique<Fiber>(static_cast<int>(fibers.size())));
  }
  return fibers;
}

struct Variable {
  const void* key;
  void* memory;
};

struct Block {
  const Grid& grid;
  ThreadOrder& turns;
  int count;  // of threads
  std::unique_ptr<Thread[]> threads;
  std::unique_ptr<Warp[]> warps;
  Barrier all;
  std::unique_ptr<Thread*[]> ready;  // a stack
  int ready_count = 0;
  int returned = 0;
  Variable variables[kMostVariables];
  int variable_count = 0;
  size_t static_bytes = 0;
  void* dynamic = nullptr;
  std::exception_ptr error;
  char end = 0;  // address of its end for the thread sanitizer

  Block(const Grid& its_grid, ThreadOrder& its_turns, int set);
  ~Block() { free_shared(); }
  void free_shared();

  void push(int first, int size);
  Thread* pop();
  void pause();
  void meet(Barrier& barrier, const CallSite& site);
  void run();
};

thread_local Thread* running = nullptr;
// Addresses of the start and end of launches for the thread sanitizer.
thread_local char launch_begin = 0;
thread_local char launch_end = 0;

inline Thread& running_thread(const char* what) {
  if (running == nullptr) throw Fault(cat(what, ": is called outside of a kernel."));
  return *running;
}

std::string name_of(const CallSite& site) {
  return cat(site.what, " at ", site.where.file_name(), ":", site.where.line());
}

std::string name_of(const Thread& thread) {
  return cat("thread ", thread.number, " of block (", blockIdx.x, ", ", blockIdx.y, ", ",
             blockIdx.z, ")");
}

bool same(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

bool same(const CallSite& a, const CallSite& b) {
  return a.where.line() == b.where.line() && a.where.column() == b.where.column() &&
         same(a.what, b.what) && same(a.where.file_name(), b.where.file_name());
}

// A sanitizer sees accesses out of bounds.
void* poisoned(size_t bytes, size_t alignment) {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, bytes) != 0) throw std::bad_alloc();
  std::memset(memory, 0xFF, bytes);
  return memory;
}

// A thread from its first line to its last.
void run_thread(void* argument) {
  Thread& thread = *static_cast<Thread*>(argument);
  Block& block = *thread.block;
  acquire(&launch_begin);
  try {
    block.grid.call(block.grid.kernel);
    if (thread.copy_count > 0) {
      throw Fault(cat(name_of(thread), " returns with ", thread.copy_count,
                      " copies that were never awaited."));
    }
    if (!thread.has_waited) {
      throw Fault(cat(name_of(thread), " returns without wait_for_previous()."));
    }
  } catch (...) {
    block.error = std::current_exception();
  }
  thread.has_returned = true;
  ++block.returned;
  release(&launch_end);
  release(&block.end);
  // Freed by the last thread, which acquires the others' ends. The launch itself must not acquire
  // them, or the next block's threads would be ordered after them.
  if (block.returned == block.count) {
    acquire(&block.end);
    block.free_shared();
  }
}

Block::Block(const Grid& its_grid, ThreadOrder& its_turns, int set)
    : grid(its_grid),
      turns(its_turns),
      count(static_cast<int>(grid.threads.x * grid.threads.y * grid.threads.z)),
      threads(new Thread[count]),
      warps(new Warp[(count + kLanes - 1) / kLanes]),
      ready(new Thread*[count]) {
  dynamic = poisoned(grid.dynamic_bytes, 128);
  all = {.first = 0, .count = count};
  for (int first = 0; first < count; first += kLanes) {
    warps[first / kLanes].barrier = {.first = first, .count = std::min(kLanes, count - first)};
  }
  const Fibers& fibers = fibers_for(count, set);
  for (int i = 0; i < count; ++i) {
    Thread& thread = threads[i];
    thread.block = this;
    thread.number = i;
    const auto number = static_cast<unsigned>(i);
    thread.index = {number % grid.threads.x, number / grid.threads.x % grid.threads.y,
                    number / grid.threads.x / grid.threads.y};
    thread.fiber = fibers[i].get();
    thread.fiber->begin(run_thread, &thread);
  }
}

void Block::free_shared() {
  for (int i = 0; i < variable_count; ++i) std::free(variables[i].memory);
  variable_count = 0;
  std::free(std::exchange(dynamic, nullptr));
}

// Pushes them, the first to run last.
void Block::push(int first, int size) {
  for (int i = 0; i < size; ++i) {
    const bool falling = turns.order.kind == Order::kForward;
    ready[ready_count++] = &threads[falling ? first + size - 1 - i : first + i];
  }
}

Thread* Block::pop() {
  if (turns.order.kind == Order::kRandom) {
    std::swap(ready[turns.below(ready_count)], ready[ready_count - 1]);
  }
  return ready[--ready_count];
}

// Continues with the next ready thread, or with run() if there is none.
void Block::pause() {
  const Thread& thread = *running;
  if (ready_count == 0) {
    thread.fiber->pause();
    return;
  }
  running = pop();
  if (running == &thread) return;
  threadIdx = running->index;
  thread.fiber->continue_with(*running->fiber);
}

void Block::meet(Barrier& barrier, const CallSite& site) {
  Thread& thread = *running;
  if (barrier.arrived == 0) barrier.site = site;
  if (!same(barrier.site, site)) {
    throw Fault(cat(name_of(thread), " is in ", name_of(site), ", while others wait for it in ",
                    name_of(barrier.site), "."));
  }
  if (++barrier.arrived == barrier.count) {
    barrier.arrived = 0;
    ++barrier.generation;
    push(barrier.first, barrier.count);
  }
  thread.waits_in = &barrier;
  pause();
  thread.waits_in = nullptr;
}

// The message for a block in which no thread can continue.
std::string deadlock(const Block& block) {
  std::map<std::string, int> waiting;
  for (int i = 0; i < block.count; ++i) {
    const Thread& thread = block.threads[i];
    if (!thread.has_returned) ++waiting[name_of(thread.waits_in->site)];
  }
  std::string text = cat("deadlock in block (", blockIdx.x, ", ", blockIdx.y, ", ", blockIdx.z,
                         "): ", block.returned, " threads have returned");
  for (const auto& [site, count] : waiting) text += cat(", ", count, " wait in ", site);
  return text + ".";
}

void Block::run() {
  push(0, count);
  while (ready_count > 0 && !error) {
    running = pop();
    threadIdx = running->index;
    running->fiber->resume();
  }
  running = nullptr;
  if (returned == count) return;
  if (!error) error = std::make_exception_ptr(Fault(deadlock(*this)));
  for (int i = 0; i < count; ++i) {
    if (!threads[i].has_returned) threads[i].fiber->abandon(&launch_end);
  }
}

// What a GPU checks before a launch.
Status check(const Grid& grid) {
  const auto is_within = [](const dim3& size, uint64_t x, uint64_t y, uint64_t z) {
    return size.x >= 1 && size.x <= x && size.y >= 1 && size.y <= y && size.z >= 1 && size.z <= z;
  };
  if (!is_within(grid.blocks, 0x7FFFFFFF, 65535, 65535)) return kInvalidConfiguration;
  if (!is_within(grid.threads, kMostThreads, kMostThreads, 64)) return kInvalidConfiguration;
  if (uint64_t{grid.threads.x} * grid.threads.y * grid.threads.z > kMostThreads) {
    return kInvalidConfiguration;
  }
  return grid.dynamic_bytes <= shared_limit ? kSuccess : kInvalidValue;
}

// The block that runs at `turn`. A random order is a walk with a step coprime to `count`.
uint64_t block_at(uint64_t turn, uint64_t count, uint64_t step, const Order& order) {
  if (order.kind == Order::kForward) return turn;
  if (order.kind == Order::kReverse) return count - 1 - turn;
  return (turn + 1) * step % count;
}

uint64_t greatest_divisor(uint64_t a, uint64_t b) {
  return b == 0 ? a : greatest_divisor(b, a % b);
}

}  // namespace

void set_order(const Order& order) { chosen_order = order; }

void fail_next_launch(Status status) { next_status = status; }

Status run(const Grid& grid) {
  if (const Status status = std::exchange(next_status, kSuccess); status != kSuccess) return status;
  if (const Status status = check(grid); status != kSuccess) return status;
  if (running != nullptr) throw Fault("launch: is called inside of a kernel.");
  ThreadOrder turns{chosen_order, chosen_order.seed};
  const uint64_t count = uint64_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z;
  uint64_t step = 1 + turns.below(count);
  while (greatest_divisor(count, step) != 1) ++step;

  blockDim = grid.threads;
  gridDim = grid.blocks;
  std::exception_ptr error;
  int set = 0;
  for (uint64_t turn = 0; turn < count && !error; ++turn) {
    const auto number = block_at(turn, count, step, turns.order);
    blockIdx = {static_cast<unsigned>(number % grid.blocks.x),
                static_cast<unsigned>(number / grid.blocks.x % grid.blocks.y),
                static_cast<unsigned>(number / grid.blocks.x / grid.blocks.y)};
    set = (set + 1 + static_cast<int>(turns.below(std::max(1, kSets - 1)))) % kSets;
    const auto block = std::make_unique<Block>(grid, turns, set);
    release(&launch_begin);
    block->run();
    error = block->error;
    if (error) acquire(&launch_end);  // before the block's memory is freed
  }
  acquire(&launch_end);
  if (error) std::rethrow_exception(error);
  return kSuccess;
}

void block_barrier(const CallSite& site) {
  Thread& thread = running_thread(site.what);
  Barrier& all = thread.block->all;
  char* address = &all.address[all.generation & 1];
  release(address);
  thread.block->meet(all, site);
  acquire(address);
}

namespace {

Warp& warp_of(const Thread& thread, unsigned mask, const CallSite& site) {
  Warp& warp = thread.block->warps[thread.number / kLanes];
  if (mask != kAllLanes) {
    throw Fault(cat(name_of(site), ": the mask must be kWarp, but is ", mask, "."));
  }
  if (warp.barrier.count != kLanes) {
    throw Fault(
        cat(name_of(site), ": the warp must have 32 threads, but has ", warp.barrier.count, "."));
  }
  return warp;
}

}  // namespace

void warp_barrier(unsigned mask, const CallSite& site) {
  Thread& thread = running_thread(site.what);
  Barrier& barrier = warp_of(thread, mask, site).barrier;
  char* address = &barrier.address[barrier.generation & 1];
  release(address);
  thread.block->meet(barrier, site);
  acquire(address);
}

const Words* exchange(unsigned mask, const CallSite& site, Words mine) {
  Thread& thread = running_thread(site.what);
  Warp& warp = warp_of(thread, mask, site);
  Words* words = warp.words[warp.barrier.generation & 1];
  words[thread.number % kLanes] = mine;
  thread.block->meet(warp.barrier, site);
  return words;
}

Words given(const Words* words, int lane) { return words[lane]; }

unsigned ballot(unsigned mask, const CallSite& site, bool mine) {
  const Words* words = exchange(mask, site, {{mine}});
  unsigned votes = 0;
  for (int lane = 0; lane < kLanes; ++lane) votes |= words[lane].word[0] << lane;
  return votes;
}

int lane() { return running_thread("lane").number % kLanes; }

void* shared(const void* key, size_t bytes) {
  Block& block = *running_thread("SHARED").block;
  for (int i = 0; i < block.variable_count; ++i) {
    if (block.variables[i].key != key) continue;
    acquire(&block.variables[i]);
    return block.variables[i].memory;
  }
  block.static_bytes += bytes;
  if (block.variable_count == kMostVariables || block.static_bytes > kMostStatic ||
      block.static_bytes + block.grid.dynamic_bytes > shared_limit) {
    throw Fault(cat("SHARED: a kernel must have at most 64 variables, 48 KiB of them, and ",
                    shared_limit >> 10, " KiB with its dynamic memory, but variable ",
                    block.variable_count + 1, " makes it ", block.static_bytes, " and ",
                    block.grid.dynamic_bytes, " bytes."));
  }
  Variable& variable = block.variables[block.variable_count++];
  variable = {key, poisoned(bytes, 16)};
  release(&variable);
  return variable.memory;
}

void* dynamic_shared() { return running_thread("DYNAMIC_SHARED").block->dynamic; }

void begin_copy(const Copy& copy) {
  Thread& thread = running_thread("copy_async");
  if (reinterpret_cast<uintptr_t>(copy.to) % 16 || reinterpret_cast<uintptr_t>(copy.from) % 16) {
    throw Fault(cat("copy_async: both addresses must be multiples of 16, but are ", copy.to,
                    " and ", copy.from, "."));
  }
  if (thread.copy_count == kMostCopies) {
    throw Fault(cat("copy_async: at most ", kMostCopies, " copies may be in flight in a thread."));
  }
  if (!copy_rings) copy_rings.reset(new CopyRing[kMostThreads]);
  const int slot = (thread.first_copy + thread.copy_count++) % kMostCopies;
  copy_rings[thread.number][slot] = {copy, thread.group};
}

void commit_copies() { ++running_thread("copy_async_commit").group; }

bool take_copy(int groups, Copy* copy) {
  Thread& thread = running_thread("copy_async_wait");
  if (thread.copy_count == 0) return false;
  const GroupedCopy& oldest = copy_rings[thread.number][thread.first_copy];
  if (oldest.group >= thread.group - groups) return false;
  *copy = oldest.copy;
  thread.first_copy = (thread.first_copy + 1) % kMostCopies;
  --thread.copy_count;
  return true;
}

void wait_for_previous() {
  Thread& thread = running_thread("wait_for_previous");
  if (thread.has_waited) throw Fault(cat(name_of(thread), " waits twice for the previous kernel."));
  thread.has_waited = true;
}

void fence() {
  static char address;
  release(&address);
  acquire(&address);
}

namespace {

// A row of B or D: eight numbers.
using Row = float __attribute__((vector_size(32)));

template <typename T>
float half_of(uint32_t word, int half) {
  return to_float(T{static_cast<uint16_t>(word >> (16 * half))});
}

// Adds A times B to D, for all lanes of a warp. Each sum begins with D and takes the columns of A
// in the order of the lanes that hold them: 0, 1, 8, 9, 2, 3, 10, 11, …
template <typename T>
void multiply(Fragment (&lanes)[kLanes]) {
  Row b[16];  // in the order of the sum
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 4; ++i) {
      b[lane % 4 * 4 + i][lane / 4] = half_of<T>(lanes[lane].b[i / 2], i % 2);
    }
  }
  for (int group = 0; group < 8; ++group) {
    Fragment* const row = &lanes[group * 4];
    Row upper, lower;  // rows `group` and `group` + 8 of D
    for (int column = 0; column < 8; ++column) {
      upper[column] = row[column / 2].d[column % 2];
      lower[column] = row[column / 2].d[2 + column % 2];
    }
    for (int k = 0; k < 16; ++k) {
      const uint32_t* words = row[k / 4].a + k % 4 / 2 * 2;
      upper += half_of<T>(words[0], k % 2) * b[k];
      lower += half_of<T>(words[1], k % 2) * b[k];
    }
    for (int column = 0; column < 8; ++column) {
      row[column / 2].d[column % 2] = upper[column];
      row[column / 2].d[2 + column % 2] = lower[column];
    }
  }
}

}  // namespace

template <typename T>
void multiply_add(const Fragment& mine, float (&d)[4], const CallSite& site) {
  Thread& thread = running_thread(site.what);
  Warp& warp = warp_of(thread, kAllLanes, site);
  const int half = warp.barrier.generation & 1;
  Fragment& fragment = warp.fragments[half][thread.number % kLanes];
  fragment = mine;
  warp.is_multiplied[half] = false;
  thread.block->meet(warp.barrier, site);
  // By the first that continues, for all.
  if (!std::exchange(warp.is_multiplied[half], true)) multiply<T>(warp.fragments[half]);
  std::copy_n(fragment.d, 4, d);
}

template void multiply_add<bf16>(const Fragment&, float (&)[4], const CallSite&);
template void multiply_add<f16>(const Fragment&, float (&)[4], const CallSite&);

}  // namespace sinkstream::cuda::emulator
