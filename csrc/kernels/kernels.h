// The kernel tables: one name and one function per op. Choosing a table is choosing numerics;
// inside one table every result is the same on every run.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/activation.h"
#include "kernels/append.h"
#include "kernels/attention.h"
#include "kernels/embedding.h"
#include "kernels/evict.h"
#include "kernels/linear.h"
#include "kernels/logits.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/sample.h"

namespace sinkstream {

// A null entry falls back to the next table: amx, avx512, avx2, generic, reference.
struct Kernels {
  const char* name = nullptr;
  bool (*supported)() = nullptr;  // whether this machine can run the table
  // Why the system withholds it from a processor that could run it; gives null if it does not.
  const char* (*refusal)() = nullptr;
  EmbeddingOp* embedding = nullptr;
  RmsNormOp* rms_norm = nullptr;
  LinearOp* linear = nullptr;
  RopeOp* rope = nullptr;
  AppendOp* append = nullptr;
  AttentionOp* attention = nullptr;
  EvictOp* evict = nullptr;
  SwigluOp* swiglu = nullptr;
  LogitsOp* logits = nullptr;
  SampleOp* sample = nullptr;
  // The fastest input type of `linear` here.
  InputType native_input = InputType::kFloat32;
};

const Kernels& reference_kernels();
const Kernels& generic_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& amx_kernels();
#endif

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
