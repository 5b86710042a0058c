// Which kernel table serves a model: the best that the processor supports, or the one that is
// forced.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/table.h"

namespace sinkstream {

// Every table of this build, best first, whether or not the processor supports it.
std::vector<const Kernels*> all_kernels();

// A table without null entries, and for each op the name of the table that serves it.
struct ChosenKernels {
  Kernels kernels;
  std::vector<std::pair<std::string, std::string>> served_by;  // op, table
};

// Takes the best supported table, or the one that `forced` names (empty: no wish).
// Throws InvalidArgument for a name that is unknown or not supported here; it lists what is.
// `tables`: what there is to choose from, best first.
ChosenKernels choose_kernels(std::string_view forced,
                             const std::vector<const Kernels*>& tables = all_kernels());

}  // namespace sinkstream
