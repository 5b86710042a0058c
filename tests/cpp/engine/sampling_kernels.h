// The ops of `generic` that sample. Engines need no others, and under a sanitizer the whole table
// takes a minute and a half to compile.
#pragma once

#include "kernels/table.h"

namespace sinkstream {

const Kernels& sampling_kernels();

}  // namespace sinkstream
