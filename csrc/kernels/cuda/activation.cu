#include "kernels/cuda/activation.h"

#include "common/divide_up.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/sum_splits.cuh"

namespace sinkstream::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 4;  // per thread

// Below about −88 exp overflows to infinity and the quotient is 0, as it should be.
__device__ inline float silu(float x) { return x / (1.0f + exp_approx(-x)); }

// x · Φ(x). With erfc no digits cancel where the result is small.
__device__ inline float gelu(float x) { return 0.5f * x * erfcf(-0.70710678118654752f * x); }

// x · (1 + tanh(u)) / 2, u = sqrt(2/π) · (x + 0.044715 · x³), which is x / (1 + exp(−2 u)).
__device__ inline float gelu_tanh(float x) {
  const float u = 0.79788456080286536f * fmaf(0.044715f * x * x, x, x);
  return x / (1.0f + exp_approx(-2 * u));
}

__device__ inline float relu2(float x) {
  const float positive = x < 0 ? 0 : x;  // NaN stays NaN
  return positive * positive;
}

__device__ inline float clamped_silu(float x) {
  const float gate = x > kSwigluLimit ? kSwigluLimit : x;  // NaN stays NaN
  return gate / (1.0f + exp_approx(-kSwigluSlope * gate));
}

// What the activated gate is multiplied by.
template <Activation kActivation>
__device__ inline float factor(float up) {
  if constexpr (kActivation != Activation::kClampedSwiglu) return up;
  const float below = up > kSwigluLimit ? kSwigluLimit : up;
  return (below < -kSwigluLimit ? -kSwigluLimit : below) + 1;
}

template <Activation kActivation>
__device__ inline float activated(float x) {
  if constexpr (kActivation == Activation::kSilu) return silu(x);
  if constexpr (kActivation == Activation::kGelu) return gelu(x);
  if constexpr (kActivation == Activation::kGeluTanh) return gelu_tanh(x);
  if constexpr (kActivation == Activation::kRelu2) return relu2(x);
  if constexpr (kActivation == Activation::kClampedSwiglu) return clamped_silu(x);
}

template <Activation kActivation, bool kIsGated>
__global__ void __launch_bounds__(kThreads) activation_kernel(ActivationArgs args) {
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kColumns;
  if (column >= args.dim) return;
  const float4 x = sum_of_splits4(args.input, row, column);
  float4 y = make_float4(activated<kActivation>(x.x), activated<kActivation>(x.y),
                         activated<kActivation>(x.z), activated<kActivation>(x.w));
  if constexpr (kIsGated) {
    const float4 up = sum_of_splits4(args.input, row, args.dim + column);
    y = make_float4(y.x * factor<kActivation>(up.x), y.y * factor<kActivation>(up.y),
                    y.z * factor<kActivation>(up.z), y.w * factor<kActivation>(up.w));
  }
  auto* out = static_cast<bf16*>(args.out) + row * args.out_stride + column;
  *reinterpret_cast<uint2*>(out) = make_uint2(pack<bf16>(y.x, y.y), pack<bf16>(y.z, y.w));
}

template <Activation kActivation>
Status activation_of(const ActivationArgs& args, Stream stream) {
  constexpr int64_t kOfBlock = kThreads * kColumns;
  const dim3 grid(unsigned(args.rows), unsigned(divide_up(args.dim, kOfBlock)));
  const auto kernel =
      args.is_gated ? activation_kernel<kActivation, true> : activation_kernel<kActivation, false>;
  return launch(kernel, grid, kThreads, 0, stream, args);
}

}  // namespace

Status activation(const ActivationArgs& args, Stream stream) {
  if (args.rows == 0) return kSuccess;
  switch (args.activation) {
    case Activation::kSilu: return activation_of<Activation::kSilu>(args, stream);
    case Activation::kGelu: return activation_of<Activation::kGelu>(args, stream);
    case Activation::kGeluTanh: return activation_of<Activation::kGeluTanh>(args, stream);
    case Activation::kRelu2: return activation_of<Activation::kRelu2>(args, stream);
    case Activation::kClampedSwiglu: break;
    case Activation::kXielu: break;  // refused at load
  }
  return activation_of<Activation::kClampedSwiglu>(args, stream);
}

}  // namespace sinkstream::cuda
