// The kernel tables: one name and one function per op. A table fixes the numerics: within one table
// every result is the same on every run.
#pragma once

#include "kernels/activation.h"
#include "kernels/append.h"
#include "kernels/attention.h"
#include "kernels/combine.h"
#include "kernels/convolve.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/evict.h"
#include "kernels/linear.h"
#include "kernels/logits.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/route.h"
#include "kernels/sample.h"

namespace sinkstream {

// A null entry falls back to the next table: amx, avx512, avx2, generic, reference.
struct Kernels {
  const char* name = nullptr;
  bool (*supported)() = nullptr;  // whether this machine can run the table
  // Returns why the operating system refuses the table on a processor that has its instructions, or
  // null if it does not.
  const char* (*refusal)() = nullptr;
  EmbeddingOp* embedding = nullptr;
  NormOp* norm = nullptr;
  LinearOp* linear = nullptr;
  RopeOp* rope = nullptr;
  AppendOp* append = nullptr;
  AttentionOp* attention = nullptr;
  EvictOp* evict = nullptr;
  ActivationOp* activation = nullptr;
  AddScaledOp* add_scaled = nullptr;
  SoftCapOp* soft_cap = nullptr;
  ClampOp* clamp = nullptr;
  RouteOp* route = nullptr;
  CombineOp* combine = nullptr;
  ConvolveOp* convolve = nullptr;
  LogitsOp* logits = nullptr;
  SampleOp* sample = nullptr;
  // The input type with which `linear` is fastest.
  InputType native_input = InputType::kFloat32;
  // Prompt tokens that a step which decodes may also take, with inputs of 8 or 16 bits. Such a step
  // should take at most twice as long (engine_bench.py, long_prompt). Four rows cost little where
  // decoding is memory-bound.
  int64_t prompt_tokens_per_decode_step = 4;
};

const Kernels& reference_kernels();
const Kernels& generic_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& amx_kernels();
#endif

}  // namespace sinkstream
