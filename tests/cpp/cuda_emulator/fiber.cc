#include "cuda_emulator/fiber.h"

#include <sys/mman.h>

#include <new>

#include "cuda_emulator/sanitizers.h"

namespace sinkstream::cuda::emulator {
namespace {

constexpr size_t kStackBytes = 128 * 1024;
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

void Fiber::set(Context* context, std::byte* stack) {
  auto** top = reinterpret_cast<void**>(stack + kStackBytes);
  *--top = nullptr;  // a null return address, where stack walks end
  *--top = reinterpret_cast<void*>(&Fiber::run);
  for (int i = 0; i < 6; ++i) *--top = nullptr;  // the registers that change_stacks pops
  *context = top;
}

void Fiber::change(Context* from, Context* to) { change_stacks(from, *to); }

#else

void Fiber::set(Context* context, std::byte* stack) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = kStackBytes;
  context->uc_link = nullptr;
  makecontext(context, &Fiber::run, 0);
}

void Fiber::change(Context* from, Context* to) { swapcontext(from, to); }

#endif

Fiber::Fiber() : stack_(new_stack()), own_known_(create_known_fiber()) {}

Fiber::~Fiber() {
  destroy_known_fiber(own_known_);
  unpoison(stack_, kStackBytes);
  munmap(stack_ - kGuardBytes, kGuardBytes + kStackBytes);
}

void Fiber::begin(Entry entry, void* argument) {
  if (!ended_) {  // functions that never returned left poisoned memory
    unpoison(stack_, kStackBytes);
    destroy_known_fiber(own_known_);
    own_known_ = create_known_fiber();
  }
  entry_ = entry;
  argument_ = argument;
  ended_ = false;
  set(&own_, stack_);
}

void Fiber::abandon(void* address) { release_for(own_known_, address); }

void Fiber::resume() {
  starting = this;
  resumer_known_ = known_fiber();
  void* fake_stack = nullptr;
  before_change(&fake_stack, stack_, kStackBytes, own_known_);
  change(&resumer_, &own_);
  after_change(fake_stack, nullptr, nullptr);
}

void Fiber::pause() {
  void* fake_stack = nullptr;
  before_change(&fake_stack, resumer_stack_, resumer_stack_bytes_, resumer_known_);
  change(&own_, &resumer_);
  after_change(fake_stack, &resumer_stack_, &resumer_stack_bytes_);
}

// Its frame must not be poisoned by the address sanitizer, because it never returns.
[[gnu::no_sanitize("address", "undefined")]] void Fiber::run() {
  Fiber* fiber = starting;
  after_change(nullptr, &fiber->resumer_stack_, &fiber->resumer_stack_bytes_);
  fiber->entry_(fiber->argument_);
  fiber->ended_ = true;
  before_change(nullptr, fiber->resumer_stack_, fiber->resumer_stack_bytes_, fiber->resumer_known_);
  change(&fiber->own_, &fiber->resumer_);
}

}  // namespace sinkstream::cuda::emulator
