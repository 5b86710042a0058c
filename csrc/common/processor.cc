#include "common/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace sinkstream {
namespace {

bool is_amd_family(unsigned wanted) {
#if defined(__x86_64__)
  unsigned version, name[3], features[2];
  if (__get_cpuid(0, &version, &name[0], &name[2], &name[1]) == 0) return false;
  if (name[0] != signature_AMD_ebx || name[1] != signature_AMD_edx ||
      name[2] != signature_AMD_ecx) {
    return false;
  }
  if (__get_cpuid(1, &version, &name[0], &features[0], &features[1]) == 0) return false;
  const unsigned base = version >> 8 & 0xf, extended = version >> 20 & 0xff;
  return (base == 0xf ? base + extended : base) == wanted;
#else
  return wanted == 0;  // no such family
#endif
}

}  // namespace

const bool kFirstCacheServesAhead = is_amd_family(26);

}  // namespace sinkstream
