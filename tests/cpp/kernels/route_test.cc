#include "kernels/route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/matrix.h"
#include "kernels/tables.h"

namespace sinkstream {
namespace {

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed routed(const Kernels& table, RouteArgs args, const std::vector<float>& logits) {
  args.logits = logits.data();
  args.rows = static_cast<int64_t>(logits.size()) / args.rules.experts;
  Routed found = {
      .ids = std::vector<int32_t>(static_cast<size_t>(args.rows * args.rules.chosen), -1),
      .weights = std::vector<float>(static_cast<size_t>(args.rows * args.rules.chosen))};
  args.ids = found.ids.data();
  args.weights = found.weights.data();
  ThreadPool pool(2);
  table.route(args, {&pool});
  return found;
}

class RouteTest : public TableTest<&Kernels::route> {
 protected:
  Routed route(const RouteArgs& args, const std::vector<float>& logits) {
    return routed(table(), args, logits);
  }
};

using Ids = std::vector<int32_t>;

// By hand, from the rules of kernels/route.h.

TEST_P(RouteTest, TakesTheBestOfASoftmaxInFallingOrder) {
  const std::vector<float> logits = {1, 3, 2, 0};
  const Routed found = route({.rules = {.experts = 4, .chosen = 2}}, logits);
  EXPECT_EQ(found.ids, (Ids{1, 2}));
  const double sum = std::exp(1) + std::exp(3) + std::exp(2) + 1;
  EXPECT_FLOAT_EQ(found.weights[0], static_cast<float>(std::exp(3) / sum));
  EXPECT_FLOAT_EQ(found.weights[1], static_cast<float>(std::exp(2) / sum));
}

TEST_P(RouteTest, DividesByTheSumAndThenScales) {
  const std::vector<float> scale = {1, 10, 100, 1000};
  const Routed found = route({.expert_scale = scale.data(),
                              .rules = {.experts = 4,
                                        .chosen = 2,
                                        .score = RouterScore::kSigmoid,
                                        .normalize = true,
                                        .normalize_eps = 0.25f,
                                        .weight_scale = 2}},
                             {-1, 0, 0, -2});
  EXPECT_EQ(found.ids, (Ids{1, 2}));
  EXPECT_FLOAT_EQ(found.weights[0], 0.5f / 1.25f * 2 * 10);
  EXPECT_FLOAT_EQ(found.weights[1], 0.5f / 1.25f * 2 * 100);
}

TEST_P(RouteTest, ChoosesByTheBiasAndWeighsWithoutIt) {
  const std::vector<float> bias = {0, 0, 0.6f, 0};
  const Routed found = route({.choice_bias = bias.data(),
                              .rules = {.experts = 4, .chosen = 2, .score = RouterScore::kSigmoid}},
                             {0, 1, -1, -3});
  EXPECT_EQ(found.ids, (Ids{2, 1}));
  EXPECT_FLOAT_EQ(found.weights[0], static_cast<float>(1 / (1 + std::exp(1))));
  EXPECT_FLOAT_EQ(found.weights[1], static_cast<float>(1 / (1 + std::exp(-1))));
}

TEST_P(RouteTest, WeighsTheChosenAmongThemselves) {
  const Routed found = route(
      {.rules = {.experts = 3, .chosen = 2, .score = RouterScore::kSoftmaxOfChosen}}, {5, 80, 82});
  EXPECT_EQ(found.ids, (Ids{2, 1}));
  EXPECT_FLOAT_EQ(found.weights[0], static_cast<float>(1 / (1 + std::exp(-2))));
  EXPECT_FLOAT_EQ(found.weights[1], static_cast<float>(1 / (1 + std::exp(2))));
}

TEST_P(RouteTest, GivesTiesToTheLowerExpertAndTheLowerGroup) {
  EXPECT_EQ(route({.rules = {.experts = 5, .chosen = 3}}, {2, 7, 2, 7, 2}).ids, (Ids{1, 3, 0}));
  EXPECT_EQ(route({.rules = {.experts = 4, .chosen = 2, .groups = 2}}, {1, 1, 1, 1}).ids,
            (Ids{0, 1}));
}

TEST_P(RouteTest, ChoosesGroupsByTheirBestOrTheirTwoBest) {
  RouteArgs args = {
      .rules = {.experts = 6, .chosen = 2, .score = RouterScore::kSoftmaxOfChosen, .groups = 2}};
  const std::vector<float> logits = {9, 0, 0, 5, 6, 1};
  EXPECT_EQ(route(args, logits).ids, (Ids{0, 1}));
  args.rules.group_score = GroupScore::kSumOfTwo;
  EXPECT_EQ(route(args, logits).ids, (Ids{4, 3}));
}

// Numbers of transformers' `sparsemixer` without training noise.
TEST_P(RouteTest, MixesOnlyLogitsThatAreClose) {
  const RouteArgs args = {
      .rules = {.experts = 4, .chosen = 2, .score = RouterScore::kSparseMixer, .jitter = 0.1f}};
  const Routed found = route(args, {10, 9, 7.5f, -20});
  EXPECT_EQ(found.ids, (Ids{0, 1}));
  EXPECT_FLOAT_EQ(found.weights[0], static_cast<float>(1 / (1 + std::exp(-1))));
  EXPECT_FLOAT_EQ(found.weights[1], static_cast<float>(1 / (1 + std::exp(-1.5))));
}

TEST_P(RouteTest, WithNaNWeighsWithNaNAndStaysInRange) {
  const Routed found = route({.rules = {.experts = 3, .chosen = 2}}, {1, NAN, 3, 1, 2, 3});
  EXPECT_EQ(found.ids, (Ids{0, 1, 2, 1}));
  EXPECT_TRUE(std::isnan(found.weights[0]) && std::isnan(found.weights[1]));
  EXPECT_FALSE(std::isnan(found.weights[2]) || std::isnan(found.weights[3]));
}

TEST_P(RouteTest, TakesInfiniteLogits) {
  const Routed found = route({.rules = {.experts = 3, .chosen = 2}}, {-INFINITY, 2, -INFINITY});
  EXPECT_EQ(found.ids, (Ids{1, 0}));
  EXPECT_EQ(found.weights, (std::vector<float>{1, 0}));
  // No expert twice, where all that are left are infinitely far.
  const RouteRules rules = {.experts = 4, .chosen = 4, .score = RouterScore::kSoftmaxOfChosen};
  EXPECT_EQ(route({.rules = rules}, {-INFINITY, 2, -INFINITY, -INFINITY}).ids, (Ids{1, 0, 2, 3}));
}

// No row may have an expert twice, or one that there is not, and every table chooses alike.
TEST_P(RouteTest, ChoosesDifferentExpertsWhateverTheLogits) {
  const float inf = INFINITY;
  const std::vector<float> logits = {-inf, 2,    -inf, -inf, -inf, -inf,  //
                                     inf,  1,    inf,  2,    -inf, inf,   //
                                     inf,  -inf, inf,  -inf, inf,  -inf,  //
                                     -inf, -inf, -inf, -inf, -inf, -inf,  //
                                     1,    2,    3,    4,    5,    6};
  const std::vector<float> biases[] = {
      {0, 0, 0, 0, 0, 0}, {NAN, 0, NAN, 0, 0, NAN}, {-inf, inf, -inf, inf, inf, -inf}};
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid,
                                  RouterScore::kSoftmaxOfChosen, RouterScore::kSparseMixer}) {
    for (const auto& bias : biases) {
      for (const int64_t chosen_groups : {2, 3}) {
        for (const GroupScore group_score : {GroupScore::kLargest, GroupScore::kSumOfTwo}) {
          const RouteArgs args = {.choice_bias = bias.data(),
                                  .rules = {.experts = 6,
                                            .chosen = 4,
                                            .score = score,
                                            .groups = 3,
                                            .chosen_groups = chosen_groups,
                                            .group_score = group_score,
                                            .jitter = 0.1f}};
          const Routed found = route(args, logits);
          for (auto first = found.ids.begin(); first != found.ids.end(); first += 4) {
            Ids ids(first, first + 4);
            std::ranges::sort(ids);
            EXPECT_EQ(std::ranges::adjacent_find(ids), ids.end());
            EXPECT_GE(ids.front(), 0);
            EXPECT_LT(ids.back(), 6);
          }
          const Routed expected = routed(reference_kernels(), args, logits);
          EXPECT_EQ(found.ids, expected.ids);
          for (size_t i = 0; i < found.weights.size(); ++i) {
            if (score == RouterScore::kSparseMixer) continue;  // of infinities, anything
            EXPECT_EQ(std::isnan(found.weights[i]), std::isnan(expected.weights[i])) << i;
          }
        }
      }
    }
  }
}

TEST_P(RouteTest, WithAChoiceThatIsNaNWeighsWithNaN) {
  const std::vector<float> bias = {0, 0, NAN};
  const Routed found =
      route({.choice_bias = bias.data(), .rules = {.experts = 3, .chosen = 2}}, {1, 2, 3});
  EXPECT_EQ(found.ids, (Ids{0, 1}));
  EXPECT_TRUE(std::isnan(found.weights[0]) && std::isnan(found.weights[1]));
  const Routed infinite = route({.rules = {.experts = 3, .chosen = 2}}, {1, 2, INFINITY});
  EXPECT_EQ(infinite.ids, (Ids{0, 1}));
  EXPECT_TRUE(std::isnan(infinite.weights[0]) && std::isnan(infinite.weights[1]));
}

TEST_P(RouteTest, MatchesTheReferenceInEveryRule) {  // tsan
  const auto bias = random_floats(kMostExperts, 3), scale = random_floats(kMostExperts, 4);
  int cases = 0;
  for (const auto [experts, chosen, groups] :
       {std::tuple{1, 1, 1}, {4, 4, 2}, {64, 8, 8}, {60, 6, 4}, {512, 10, 1}}) {
    const auto logits = random_floats(7 * experts, 5);
    for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid,
                                    RouterScore::kSoftmaxOfChosen, RouterScore::kSparseMixer}) {
      for (int rules = 0; rules < 16; ++rules) {
        const RouteArgs args = {
            .choice_bias = rules & 1 ? bias.data() : nullptr,
            .expert_scale = rules & 2 ? scale.data() : nullptr,
            .rules = {.experts = experts,
                      .chosen = chosen,
                      .score = score,
                      .groups = groups,
                      .chosen_groups = rules & 4 ? (groups + 1) / 2 + (groups == 2) : groups,
                      .group_score = rules & 8 ? GroupScore::kSumOfTwo : GroupScore::kLargest,
                      .normalize = (rules & 2) != 0,
                      .normalize_eps = 1e-6f,
                      .weight_scale = 1.8f,
                      .jitter = 0.2f}};
        const Routed found = route(args, logits);
        const Routed expected = routed(reference_kernels(), args, logits);
        EXPECT_EQ(found.ids, expected.ids) << experts << ", rules " << rules;
        for (size_t i = 0; i < found.weights.size(); ++i) {
          EXPECT_FLOAT_EQ(found.weights[i], expected.weights[i]) << experts << ", rules " << rules;
        }
        ++cases;
      }
    }
  }
  EXPECT_EQ(cases, 5 * 4 * 16);
}

SINKSTREAM_TEST_ALL_TABLES(RouteTest);

}  // namespace
}  // namespace sinkstream
