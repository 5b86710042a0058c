#include "cuda_emulator/fiber.h"

#include <sys/mman.h>

#include <new>
#include <utility>

#include "cuda_emulator/sanitizers.h"

namespace sinkstream::cuda::emulator {
namespace {

// Stacks begin at multiples of a page. If all were used from the same offset, the hot ends of some
// hundred stacks would compete for a few sets of the caches. So they are spread over the 256 lines
// of 16 KiB; 13 and 256 have no common divisor.
constexpr size_t kSpreadBytes = 16 * 1024;
constexpr size_t kLineBytes = 64;
constexpr size_t kLinesApart = 13;
constexpr size_t kStackBytes = 128 * 1024 + kSpreadBytes;
constexpr size_t kGuardBytes = 64 * 1024;  // at least a page on any machine

thread_local Fiber* starting = nullptr;

// Below the stack is a guard that faults on access.
std::byte* new_stack() {
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) throw std::bad_alloc();
  return static_cast<std::byte*>(memory) + kGuardBytes;
}

}  // namespace

#if defined(__x86_64__) && !defined(SINKSTREAM_EMULATOR_UCONTEXT)

namespace {

// 20 ns instead of the 170 ns of swapcontext, which makes a system call for the signal mask.
[[gnu::naked, gnu::noinline]] void change_stacks(void** /*from*/, void* /*to*/) {
  asm("pushq %rbp\n\t"
      "pushq %rbx\n\t"
      "pushq %r12\n\t"
      "pushq %r13\n\t"
      "pushq %r14\n\t"
      "pushq %r15\n\t"
      "movq %rsp, (%rdi)\n\t"
      "movq %rsi, %rsp\n\t"
      "popq %r15\n\t"
      "popq %r14\n\t"
      "popq %r13\n\t"
      "popq %r12\n\t"
      "popq %rbx\n\t"
      "popq %rbp\n\t"
      "ret");
}

}  // namespace

void Fiber::set(Context* context, std::byte* stack, size_t bytes) {
  auto** top = reinterpret_cast<void**>(stack + bytes);
  *--top = nullptr;  // a null return address, where stack walks end
  *--top = reinterpret_cast<void*>(&Fiber::run);
  for (int i = 0; i < 6; ++i) *--top = nullptr;  // the registers that change_stacks pops
  *context = top;
}

void Fiber::change(Context* from, Context* to) { change_stacks(from, *to); }

#else

void Fiber::set(Context* context, std::byte* stack, size_t bytes) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = bytes;
  context->uc_link = nullptr;
  makecontext(context, &Fiber::run, 0);
}

void Fiber::change(Context* from, Context* to) { swapcontext(from, to); }

#endif

Fiber::Fiber(int number)
    : stack_(new_stack()),
      used_bytes_(kStackBytes - number * kLinesApart * kLineBytes % kSpreadBytes),
      known_(create_known_fiber()) {
  set(&own_, stack_, used_bytes_);
}

Fiber::~Fiber() {
  destroy_known_fiber(known_);
  unpoison(stack_, kStackBytes);
  munmap(stack_ - kGuardBytes, kGuardBytes + kStackBytes);
}

void Fiber::begin(Entry entry, void* argument) {
  if (!ended_) start_anew();
  entry_ = entry;
  argument_ = argument;
  ended_ = false;
}

// Functions that never returned left poisoned memory.
void Fiber::start_anew() {
  unpoison(stack_, kStackBytes);
  destroy_known_fiber(known_);
  known_ = create_known_fiber();
  set(&own_, stack_, used_bytes_);
}

thread_local Fiber::Resumer Fiber::resumer_;

[[gnu::always_inline]] inline void Fiber::arrive(void* fake_stack) {
  if constexpr (kAddressSanitizer) {
    const void* stack = nullptr;
    size_t bytes = 0;
    after_change(fake_stack, &stack, &bytes);
    if (!std::exchange(resumer_.changes, false)) return;
    resumer_.stack = stack;
    resumer_.stack_bytes = bytes;
  }
}

void Fiber::abandon(void* address) { release_for(known_, address); }

void Fiber::resume() {
  starting = this;
  resumer_.known = known_fiber();
  resumer_.changes = true;
  void* fake_stack = nullptr;
  before_change(&fake_stack, stack_, kStackBytes, known_);
  change(&resumer_.context, &own_);
  after_change(fake_stack, nullptr, nullptr);
}

void Fiber::pause() {
  void* fake_stack = nullptr;
  before_change(&fake_stack, resumer_.stack, resumer_.stack_bytes, resumer_.known);
  change(&own_, &resumer_.context);
  arrive(fake_stack);
}

void Fiber::continue_with(Fiber& next) {
  starting = &next;
  void* fake_stack = nullptr;
  before_change(&fake_stack, next.stack_, kStackBytes, next.known_);
  change(&own_, &next.own_);
  arrive(fake_stack);
}

// One after another calls each entry that `begin` gives. Its frame must not be poisoned by the
// address sanitizer, because it never returns.
[[gnu::no_sanitize("address", "undefined")]] void Fiber::run() {
  Fiber* fiber = starting;
  arrive(nullptr);
  while (true) {
    fiber->entry_(fiber->argument_);
    fiber->ended_ = true;
    fiber->pause();
  }
}

}  // namespace sinkstream::cuda::emulator
