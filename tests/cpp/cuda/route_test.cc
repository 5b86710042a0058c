#include "kernels/cuda/experts/route.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "common/thread_pool.h"
#include "cuda/device_array.h"
#include "cuda_emulator/orders.h"
#include "kernels/matrix.h"
#include "kernels/table.h"

namespace sinkstream::cuda {
namespace {

using emulator::in_orders_of_run;

struct Choice {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

// A router's products: a row's logits are the sums of two splits of two parts.
struct Products {
  Products(const std::vector<float>& logits, int64_t experts)
      : rows(std::ssize(logits) / experts), stride(experts + 3), parts(2 * 2 * rows * stride) {
    for (int64_t i = 0; i < rows * experts; ++i) {
      const int64_t at = i / experts * stride + i % experts;
      const float half = logits[i] / 2;  // exact
      for (const int64_t part : {0, 1, 2, 3}) parts[part * rows * stride + at] = 0;
      parts[at] = parts[3 * rows * stride + at] = half;  // split 0 of the row, split 1 of its rest
    }
  }
  Partials of(bool rest) const { return {parts.get() + rest * rows * stride, 2, 2 * rows, stride}; }

  int64_t rows, stride;
  DeviceArray<float> parts;  // [splits][2 · rows][stride]
};

// `idle`: a row without a token, or −1.
Choice chosen(const RouteRules& rules, const std::vector<float>& logits, const float* choice_bias,
              const float* expert_scale, int64_t idle = -1) {
  const Products products(logits, rules.experts);
  DeviceArray<TokenRow> tokens(std::vector<TokenRow>(products.rows, {.sequence = 0}));
  if (idle >= 0) tokens[idle].sequence = -1;
  DeviceArray<int32_t> ids(products.rows * rules.chosen);
  DeviceArray<float> weights(products.rows * rules.chosen);
  EXPECT_EQ(route({.logits = products.of(false),
                   .rests = products.of(true),
                   .choice_bias = choice_bias,
                   .expert_scale = expert_scale,
                   .tokens = tokens.get(),
                   .rows = products.rows,
                   .rules = rules,
                   .ids = ids.get(),
                   .weights = weights.get()},
                  nullptr),
            kSuccess);
  return {{ids.get(), ids.get() + ids.count()}, {weights.get(), weights.get() + weights.count()}};
}

Choice defined(const RouteRules& rules, const std::vector<float>& logits, const float* choice_bias,
               const float* expert_scale) {
  const int64_t rows = std::ssize(logits) / rules.experts;
  Choice found = {std::vector<int32_t>(rows * rules.chosen),
                  std::vector<float>(rows * rules.chosen)};
  ThreadPool pool(1);
  reference_kernels().route({.logits = logits.data(),
                             .choice_bias = choice_bias,
                             .expert_scale = expert_scale,
                             .rows = rows,
                             .rules = rules,
                             .ids = found.ids.data(),
                             .weights = found.weights.data()},
                            {&pool});
  return found;
}

TEST(CudaRoute, MatchesTheReferenceInEveryRule) {
  const auto bias = random_floats(kMostExperts, 3), scale = random_floats(kMostExperts, 4);
  in_orders_of_run([&](const emulator::Order& order) {
    for (const auto [experts, count, groups] :
         {std::tuple{1, 1, 1}, {4, 4, 2}, {64, 8, 8}, {60, 6, 4}, {512, 10, 1}}) {
      const auto logits = random_floats(3 * experts, 5);
      for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid,
                                      RouterScore::kSoftmaxOfChosen, RouterScore::kSparseMixer}) {
        for (int kind = 0; kind < 16; ++kind) {
          const RouteRules rules = {
              .experts = experts,
              .chosen = count,
              .score = score,
              .groups = groups,
              .chosen_groups = kind & 4 ? (groups + 1) / 2 + (groups == 2) : groups,
              .group_score = kind & 8 ? GroupScore::kSumOfTwo : GroupScore::kLargest,
              .normalize = (kind & 2) != 0,
              .normalize_eps = 1e-6f,
              .weight_scale = 1.8f,
              .jitter = 0.2f};
          const float* const choice_bias = kind & 1 ? bias.data() : nullptr;
          const float* const expert_scale = kind & 2 ? scale.data() : nullptr;
          const Choice found = chosen(rules, logits, choice_bias, expert_scale);
          const Choice expected = defined(rules, logits, choice_bias, expert_scale);
          ASSERT_EQ(found.ids, expected.ids)
              << order.name << ", " << experts << " experts, rules " << kind;
          for (size_t i = 0; i < found.weights.size(); ++i) {
            ASSERT_FLOAT_EQ(found.weights[i], expected.weights[i])
                << order.name << ", " << experts << " experts, rules " << kind;
          }
        }
      }
    }
  });
}

TEST(CudaRoute, GivesTiesToTheLowerExpertAndTheLowerGroup) {
  using Ids = std::vector<int32_t>;
  std::vector<float> logits(100, 2);
  logits[33] = logits[70] = logits[71] = 7;
  EXPECT_EQ(chosen({.experts = 100, .chosen = 5}, logits, nullptr, nullptr).ids,
            (Ids{33, 70, 71, 0, 1}));
  const RouteRules grouped = {.experts = 4, .chosen = 2, .groups = 2};
  EXPECT_EQ(chosen(grouped, {1, 1, 1, 1}, nullptr, nullptr).ids, (Ids{0, 1}));
}

// Neither may send a row to an expert twice, or to none: its positions would not be its own.
TEST(CudaRoute, ChoosesDifferentExpertsWhateverTheLogits) {
  const float inf = INFINITY;
  const std::vector<float> logits = {-inf, 2,    -inf, -inf, -inf, -inf,  //
                                     inf,  1,    inf,  2,    -inf, inf,   //
                                     inf,  -inf, inf,  -inf, inf,  -inf};
  const std::vector<float> biases[] = {
      {0, 0, 0, 0, 0, 0}, {NAN, 0, NAN, 0, 0, NAN}, {-inf, inf, -inf, inf, inf, -inf}};
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid,
                                  RouterScore::kSoftmaxOfChosen, RouterScore::kSparseMixer}) {
    for (const auto& bias : biases) {
      for (const GroupScore group_score : {GroupScore::kLargest, GroupScore::kSumOfTwo}) {
        const RouteRules rules = {.experts = 6,
                                  .chosen = 4,
                                  .score = score,
                                  .groups = 3,
                                  .chosen_groups = 2,
                                  .group_score = group_score};
        const Choice found = chosen(rules, logits, bias.data(), nullptr);
        EXPECT_EQ(found.ids, defined(rules, logits, bias.data(), nullptr).ids);
        for (int64_t row = 0; row < 3; ++row) {
          std::vector<int32_t> ids(found.ids.begin() + row * 4, found.ids.begin() + row * 4 + 4);
          std::ranges::sort(ids);
          EXPECT_EQ(std::ranges::adjacent_find(ids), ids.end()) << "row " << row;
          EXPECT_GE(ids.front(), 0);
          EXPECT_LT(ids.back(), 6);
        }
      }
    }
  }
}

TEST(CudaRoute, WithNanWeighsWithNanAndLeavesTheOthers) {
  const RouteRules rules = {.experts = 3, .chosen = 2};
  const Choice found = chosen(rules, {1, NAN, 3, 1, 2, 3}, nullptr, nullptr);
  EXPECT_EQ(found.ids, (std::vector<int32_t>{0, 1, 2, 1}));
  EXPECT_TRUE(std::isnan(found.weights[0]) && std::isnan(found.weights[1]));
  EXPECT_EQ(found.weights[2], chosen(rules, {1, 2, 3}, nullptr, nullptr).weights[0]);
}

TEST(CudaRoute, AnIdleRowChoosesNone) {
  const RouteRules rules = {.experts = 3, .chosen = 2};
  const Choice found = chosen(rules, {1, NAN, 3, 1, 2, 3}, nullptr, nullptr, 0);
  EXPECT_EQ(found.ids, (std::vector<int32_t>{-1, -1, 2, 1}));
  EXPECT_EQ(found.weights[0], 0);
}

TEST(CudaRoute, ARowIsTheSameInAnyCompany) {
  const RouteRules rules = {.experts = 70, .chosen = 6, .normalize = true};
  const auto logits = random_floats(5 * 70, 6);
  const Choice together = chosen(rules, logits, nullptr, nullptr);
  for (int64_t row = 0; row < 5; ++row) {
    const auto first = logits.begin() + row * 70;
    const Choice alone = chosen(rules, {first, first + 70}, nullptr, nullptr);
    for (int64_t r = 0; r < 6; ++r) {
      EXPECT_EQ(alone.ids[r], together.ids[row * 6 + r]);
      EXPECT_EQ(float_bits(alone.weights[r]), float_bits(together.weights[row * 6 + r]));
    }
  }
}

}  // namespace
}  // namespace sinkstream::cuda
