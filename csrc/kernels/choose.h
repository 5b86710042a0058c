// Chooses the kernel table for a model: the best that the processor supports, or a forced one.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/table.h"

namespace sinkstream {

// Every table of this build, best first, whether or not the processor supports it.
std::vector<const Kernels*> all_kernels();

// A table without null entries, and for each op the name of the table that it comes from.
struct ChosenKernels {
  Kernels kernels;
  std::vector<std::pair<std::string, std::string>> served_by;  // op, table
};

// Chooses the table named `forced`, or the best supported one if it is empty. `tables`: the
// candidates, best first. Throws InvalidArgument, which lists the supported names, if `forced` is
// unknown or not supported.
ChosenKernels choose_kernels(std::string_view forced,
                             const std::vector<const Kernels*>& tables = all_kernels());

}  // namespace sinkstream
