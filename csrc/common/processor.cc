#include "common/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace sinkstream {
namespace {

// The family of an AMD processor; -1 for others.
int amd_family() {
#if defined(__x86_64__)
  uint32_t a, b, c, d;
  const bool is_amd = __get_cpuid(0, &a, &b, &c, &d) != 0 && b == signature_AMD_ebx &&
                      c == signature_AMD_ecx && d == signature_AMD_edx;
  if (is_amd && __get_cpuid(1, &a, &b, &c, &d) != 0) return family_of(a);
#endif
  return -1;
}

}  // namespace

int family_of(uint32_t version) {
  const uint32_t base = version >> 8 & 0xf, extended = version >> 20 & 0xff;
  return static_cast<int>(base == 0xf ? base + extended : base);
}

const bool kPrefetchToL1 = amd_family() == 26;

}  // namespace sinkstream
