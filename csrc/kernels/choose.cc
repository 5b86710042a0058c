#include "kernels/choose.h"

#include "common/errors.h"

namespace sinkstream {

std::vector<const Kernels*> all_kernels() {
  return {
#if defined(__x86_64__)
      &amx_kernels(), &avx512_kernels(), &avx2_kernels(),
#endif
      &generic_kernels(), &reference_kernels()};
}

namespace {

std::string supported_names(const std::vector<const Kernels*>& tables) {
  std::string names;
  for (const Kernels* table : tables) {
    if (table->supported()) names += (names.empty() ? "" : ", ") + std::string(table->name);
  }
  return names;
}

// Takes `op` from the first supported table, starting at `from`, that has it.
template <typename Op>
void fill(const std::vector<const Kernels*>& tables, size_t from, const char* op_name,
          Op Kernels::*op, ChosenKernels* chosen) {
  for (size_t i = from; i < tables.size(); ++i) {
    if (tables[i]->*op == nullptr || !tables[i]->supported()) continue;
    chosen->kernels.*op = tables[i]->*op;
    chosen->served_by.emplace_back(op_name, tables[i]->name);
    return;
  }
}

}  // namespace

ChosenKernels choose_kernels(std::string_view forced, const std::vector<const Kernels*>& tables) {
  size_t from = 0;
  while (from < tables.size() &&
         !((forced.empty() || forced == tables[from]->name) && tables[from]->supported())) {
    ++from;
  }
  if (from == tables.size()) {
    throw InvalidArgument(cat("load: SINKSTREAM_KERNELS must be one of ", supported_names(tables),
                              " on this processor, but is \"", forced, "\"."),
                          "SINKSTREAM_KERNELS");
  }
  ChosenKernels chosen;
  chosen.kernels.name = tables[from]->name;
  chosen.kernels.supported = tables[from]->supported;
  chosen.kernels.native_input = tables[from]->native_input;
  chosen.kernels.prompt_tokens_per_decode_step = tables[from]->prompt_tokens_per_decode_step;
  fill(tables, from, "embedding", &Kernels::embedding, &chosen);
  fill(tables, from, "norm", &Kernels::norm, &chosen);
  fill(tables, from, "linear", &Kernels::linear, &chosen);
  fill(tables, from, "rope", &Kernels::rope, &chosen);
  fill(tables, from, "append", &Kernels::append, &chosen);
  fill(tables, from, "attention", &Kernels::attention, &chosen);
  fill(tables, from, "evict", &Kernels::evict, &chosen);
  fill(tables, from, "activation", &Kernels::activation, &chosen);
  fill(tables, from, "add_scaled", &Kernels::add_scaled, &chosen);
  fill(tables, from, "soft_cap", &Kernels::soft_cap, &chosen);
  fill(tables, from, "clamp", &Kernels::clamp, &chosen);
  fill(tables, from, "route", &Kernels::route, &chosen);
  fill(tables, from, "combine", &Kernels::combine, &chosen);
  fill(tables, from, "convolve", &Kernels::convolve, &chosen);
  fill(tables, from, "logits", &Kernels::logits, &chosen);
  fill(tables, from, "sample", &Kernels::sample, &chosen);
  return chosen;
}

}  // namespace sinkstream
