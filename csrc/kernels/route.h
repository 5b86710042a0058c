// The choice of experts for each token, and the weights of their outputs.
//
//   scores   s = softmax of a token's logits, or the sigmoid of each; for kSoftmaxOfChosen and
//            kSparseMixer the logits themselves
//   choice   c = s + choice_bias
//   groups   experts are divided into `groups` runs; only those in the `chosen_groups` best runs
//            can be chosen. A run is as good as its largest c, or the sum of its two largest.
//   chosen   the experts with the largest c, in falling order
//   weights  w = s of the chosen experts; for kSoftmaxOfChosen the softmax over their logits; for
//            kSparseMixer Note: [SparseMixer]
//            normalize: w / (Σ w + normalize_eps); then w · weight_scale · expert_scale
//
// Equal values: the lower index wins. A token with a c that is NaN, because a logit or a bias is
// NaN or infinite, gets the experts 0, 1, …, and weights that are NaN; what the model computes of
// it is NaN, too, and an error. Every table computes this in double, so that two of them only
// choose differently where their logits differ.
//
// Note: [SparseMixer]
// The weight of the r-th chosen expert is its part of the softmax over the experts not chosen
// before whose logit is close to the best of those, x: (x − logit) / max(|logit|, x) <= 2 · jitter.
#pragma once

#include "kernels/launch.h"

namespace sinkstream {

inline constexpr int64_t kMostExperts = 1024;

enum class RouterScore : uint8_t { kSoftmax, kSigmoid, kSoftmaxOfChosen, kSparseMixer };
enum class GroupScore : uint8_t { kLargest, kSumOfTwo };

// What a model's router does. Each field's default changes nothing.
struct RouteRules {
  int64_t experts = 0;  // in [1, kMostExperts]
  int64_t chosen = 0;   // in [1, experts]; at most those of the chosen groups
  RouterScore score = RouterScore::kSoftmax;
  int64_t groups = 1;  // divides `experts`
  int64_t chosen_groups = 1;
  GroupScore group_score = GroupScore::kLargest;
  bool normalize = false;
  float normalize_eps = 0;
  float weight_scale = 1;
  float jitter = 0;  // of kSparseMixer

  friend bool operator==(const RouteRules&, const RouteRules&) = default;
};

struct RouteArgs {
  const float* logits = nullptr;        // [rows, experts]
  const float* choice_bias = nullptr;   // [experts], or null
  const float* expert_scale = nullptr;  // [experts], or null
  int64_t rows = 0;
  RouteRules rules;
  int32_t* ids = nullptr;    // [rows, chosen]; of a row all different
  float* weights = nullptr;  // [rows, chosen]
};

using RouteOp = void(const RouteArgs&, const Launch&);

}  // namespace sinkstream
