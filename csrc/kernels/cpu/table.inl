// The kernel table of one instruction set. Each <set>.cc includes its simd_<set>.inl and then this
// file inside an anonymous namespace.
#pragma once

#include "kernels/cpu/activation.inl"
#include "kernels/cpu/append.inl"
#include "kernels/cpu/attention/attention.inl"
#include "kernels/cpu/combine.inl"
#include "kernels/cpu/convolve.inl"
#include "kernels/cpu/elementwise.inl"
#include "kernels/cpu/embedding.inl"
#include "kernels/cpu/evict.inl"
#include "kernels/cpu/linear/linear.inl"
#include "kernels/cpu/norm.inl"
#include "kernels/cpu/rope.inl"
#include "kernels/cpu/route.inl"
#include "kernels/cpu/sampling/logits.inl"
#include "kernels/cpu/sampling/sample.inl"

// `linear`: linear_fma, or the set's own version; `native_input`: its fastest input type.
constexpr Kernels table_of(const char* name, bool (*supported)(), LinearOp* linear,
                           InputType native_input) {
  return {
      .name = name,
      .supported = supported,
      .embedding = embedding,
      .norm = norm,
      .linear = linear,
      .rope = rope,
      .append = append,
      .attention = attention,
      .evict = evict,
      .activation = activation,
      .add_scaled = add_scaled,
      .soft_cap = soft_cap,
      .clamp = clamp,
      .route = route,
      .combine = combine,
      .convolve = convolve,
      .logits = logits,
      .sample = sample,
      .native_input = native_input,
  };
}
