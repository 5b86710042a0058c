#include "common/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace sinkstream {
namespace {

struct Processor {
  bool is_intel = false;
  int amd_family = -1;  // of an AMD processor
};

Processor this_processor() {
  Processor processor;
#if defined(__x86_64__)
  uint32_t a, b, c, d;
  if (__get_cpuid(0, &a, &b, &c, &d) == 0) return processor;
  processor.is_intel =
      b == signature_INTEL_ebx && c == signature_INTEL_ecx && d == signature_INTEL_edx;
  const bool is_amd = b == signature_AMD_ebx && c == signature_AMD_ecx && d == signature_AMD_edx;
  if (is_amd && __get_cpuid(1, &a, &b, &c, &d) != 0) processor.amd_family = family_of(a);
#endif
  return processor;
}

}  // namespace

int family_of(uint32_t version) {
  const uint32_t base = version >> 8 & 0xf, extended = version >> 20 & 0xff;
  return static_cast<int>(base == 0xf ? base + extended : base);
}

const bool kPrefetchToL1 = this_processor().amd_family == 26;
const bool kDotsAreSlow = this_processor().is_intel;

}  // namespace sinkstream
