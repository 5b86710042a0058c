// The emulator's tensor-core functions, against plain products and transposes.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "common/dtype.h"
#include "cuda_emulator/orders.h"
#include "kernels/cuda/tensor_core.cuh"

namespace sinkstream::cuda {
namespace {

using emulator::in_every_order;

template <typename T>
std::vector<T> random_numbers(int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> numbers(count);
  for (T& number : numbers) number = rounded<T>(normal(random));
  return numbers;
}

template <typename T>
__device__ uint32_t word_at(const T* pair) {
  uint32_t word;
  memcpy(&word, pair, sizeof(word));
  return word;
}

// d[16][8] += a[16][16] · b[16][8], one warp for each; words as in Note: [Fragments], or with two
// registers of A swapped.
template <typename T, bool is_swapped>
__global__ void __launch_bounds__(64) product_kernel(const T* a, const T* b, float* d) {
  wait_for_previous();
  const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
  a += warp * 256;
  b += warp * 128;
  d += warp * 128;
  uint32_t a_words[4], b_words[2];
  for (int r = 0; r < 4; ++r) {
    const int at = is_swapped && (r == 1 || r == 2) ? 3 - r : r;
    a_words[at] = word_at(a + (group + 8 * (r & 1)) * 16 + 2 * pair + 8 * (r >> 1));
  }
  for (int r = 0; r < 2; ++r) {
    const int k = 2 * pair + 8 * r;
    b_words[r] = pack<T>(to_float(b[k * 8 + group]), to_float(b[(k + 1) * 8 + group]));
  }
  float sums[4];
  for (int i = 0; i < 4; ++i) {
    sums[i] = d[(group + 8 * (i >> 1)) * 8 + 2 * pair + (i & 1)];
  }
  multiply_add<T>(sums, a_words, b_words);
  for (int i = 0; i < 4; ++i) {
    d[(group + 8 * (i >> 1)) * 8 + 2 * pair + (i & 1)] = sums[i];
  }
}

// The largest error of two warps' products.
template <typename T, bool is_swapped>
double worst_of_products() {
  const std::vector<T> a = random_numbers<T>(2 * 256, 1), b = random_numbers<T>(2 * 128, 2);
  const std::vector<float> before = random_numbers<float>(2 * 128, 3);
  std::vector<float> d = before;
  EXPECT_EQ(launch(product_kernel<T, is_swapped>, 1, 64, 0, Stream{}, a.data(), b.data(), d.data()),
            kSuccess);
  double worst = 0;
  for (int i = 0; i < 2 * 128; ++i) {
    const int warp = i / 128, row = i % 128 / 8, column = i % 8;
    double sum = before[i];
    for (int k = 0; k < 16; ++k) {
      sum += double{to_float(a[warp * 256 + row * 16 + k])} *
             double{to_float(b[warp * 128 + k * 8 + column])};
    }
    worst = std::fmax(worst, std::abs(d[i] - sum));
  }
  return worst;
}

TEST(TensorCoreTwins, MultiplyAddIsAPlainProduct) {
  in_every_order([&](const emulator::Order& order) {
    EXPECT_LT((worst_of_products<bf16, false>()), 5e-6) << order.name;
    EXPECT_LT((worst_of_products<f16, false>()), 5e-6) << order.name;
  });
}

TEST(TensorCoreTwins, ASwappedRegisterIsNoticed) {
  EXPECT_GT((worst_of_products<bf16, true>()), 1);
}

// words[lane][m] of four stacked 8 × 8 matrices with a row stride of 24 numbers.
template <bool is_transposed>
__global__ void __launch_bounds__(32) load_kernel(const bf16* numbers, uint32_t* out) {
  wait_for_previous();
  SHARED(bf16, tile, [32][24]);
  for (int column = 0; column < 8; ++column) {
    tile[threadIdx.x][column] = numbers[threadIdx.x * 8 + column];
  }
  __syncwarp();
  uint32_t words[4];
  if (is_transposed) {
    load_fragment4_transposed(words, tile[threadIdx.x]);
  } else {
    load_fragment4(words, tile[threadIdx.x]);
  }
  for (int m = 0; m < 4; ++m) out[threadIdx.x * 4 + m] = words[m];
}

TEST(TensorCoreTwins, LoadFragmentGivesEachLaneItsPairs) {
  std::vector<bf16> numbers(256);
  for (int i = 0; i < 256; ++i) numbers[i] = {static_cast<uint16_t>(i)};
  in_every_order([&](const emulator::Order& order) {
    std::vector<uint32_t> plain(128), transposed(128);
    ASSERT_EQ(launch(load_kernel<false>, 1, 32, 0, Stream{}, numbers.data(), plain.data()),
              kSuccess);
    ASSERT_EQ(launch(load_kernel<true>, 1, 32, 0, Stream{}, numbers.data(), transposed.data()),
              kSuccess);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      for (uint32_t m = 0; m < 4; ++m) {
        const uint32_t group = lane / 4, pair = lane % 4, first = 64 * m;
        const uint32_t row = first + group * 8 + 2 * pair;
        EXPECT_EQ(plain[lane * 4 + m], row | (row + 1) << 16) << order.name << lane;
        const uint32_t column = first + 2 * pair * 8 + group;
        EXPECT_EQ(transposed[lane * 4 + m], column | (column + 8) << 16) << order.name << lane;
      }
    }
  });
}

enum class Mistake { kNone, kNeverWaits, kWaitsForTooFew, kNoBarrier, kOddAddress };

// Copies `count` times 32 numbers through two buffers, one group ahead; each thread writes out what
// its neighbour copied.
template <Mistake mistake>
__global__ void __launch_bounds__(8) copy_kernel(const float* input, int count, float4* out) {
  wait_for_previous();
  SHARED(float4, buffer, [2][8]);
  const int neighbour = (threadIdx.x + 1) % 8;
  const auto begin = [&](int i) {
    if (i < count) {
      copy_async(&buffer[i % 2][threadIdx.x],
                 input + i * 32 + 4 * threadIdx.x + (mistake == Mistake::kOddAddress));
    }
    copy_async_commit();
  };
  begin(0);
  for (int i = 0; i < count; ++i) {
    begin(i + 1);
    if (mistake != Mistake::kNeverWaits) {
      copy_async_wait<mistake == Mistake::kWaitsForTooFew ? 2 : 1>();
    }
    if (mistake != Mistake::kNoBarrier) __syncthreads();
    out[i * 8 + neighbour] = buffer[i % 2][neighbour];
    __syncthreads();
  }
  if (mistake != Mistake::kNeverWaits) copy_async_wait<0>();
}

// Whether what comes out is what went in.
template <Mistake mistake>
bool copies_all() {
  constexpr int kCount = 5;
  alignas(16) float input[kCount * 32 + 4];
  for (int i = 0; i < kCount * 32 + 4; ++i) input[i] = static_cast<float>(i);
  float4 out[kCount * 8] = {};
  EXPECT_EQ(launch(copy_kernel<mistake>, 1, 8, 0, Stream{}, input, kCount, out), kSuccess);
  return std::memcmp(out, input, sizeof(out)) == 0;
}

TEST(TensorCoreTwins, CopiesArriveWhenTheyAreWaitedFor) {
  in_every_order([&](const emulator::Order& order) {
    EXPECT_TRUE(copies_all<Mistake::kNone>()) << order.name;
    EXPECT_FALSE(copies_all<Mistake::kWaitsForTooFew>()) << order.name;
  });
}

TEST(TensorCoreTwins, ACopyThatIsNeverAwaitedIsAFault) {
  in_every_order([&](const emulator::Order& order) {
    EXPECT_THROW(copies_all<Mistake::kNeverWaits>(), emulator::Fault) << order.name;
  });
}

TEST(TensorCoreTwins, ACopyFromAnOddAddressIsAFault) {
  EXPECT_THROW(copies_all<Mistake::kOddAddress>(), emulator::Fault);
}

#if !defined(__SANITIZE_THREAD__)  // which reports the race: planted_kernel_faults.cc
TEST(TensorCoreTwins, CopiesOfOthersNeedABarrier) {
  in_every_order([&](const emulator::Order& order) {
    EXPECT_FALSE(copies_all<Mistake::kNoBarrier>()) << order.name;
  });
}
#endif

}  // namespace
}  // namespace sinkstream::cuda
