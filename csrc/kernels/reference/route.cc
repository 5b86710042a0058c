#include "kernels/route.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/reference/reference.h"

namespace sinkstream::reference {

namespace {

using Numbers = std::vector<double>;

constexpr double kNever = -std::numeric_limits<double>::infinity();

// Among the experts that `belongs` accepts; 0 for the others.
template <typename Belongs>
Numbers softmax(const Numbers& logits, const Belongs& belongs) {
  double largest = kNever, sum = 0;
  for (size_t e = 0; e < logits.size(); ++e) {
    if (belongs(e)) largest = std::max(largest, logits[e]);
  }
  Numbers parts(logits.size());
  for (size_t e = 0; e < logits.size(); ++e) {
    if (belongs(e)) sum += parts[e] = std::exp(logits[e] - largest);
  }
  for (double& part : parts) part /= sum;
  return parts;
}

Numbers scores_of(const RouteArgs& args, const Numbers& logits) {
  switch (args.rules.score) {
    case RouterScore::kSoftmax: return softmax(logits, [](size_t) { return true; });
    case RouterScore::kSigmoid: {
      Numbers scores;
      for (const double x : logits) scores.push_back(1 / (1 + std::exp(-x)));
      return scores;
    }
    case RouterScore::kSoftmaxOfChosen:
    case RouterScore::kSparseMixer: break;
  }
  return logits;
}

// The indices of the `count` largest values, in falling order. None is NaN.
std::vector<size_t> largest_of(const Numbers& values, int64_t count) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](size_t a, size_t b) {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  });
  order.resize(static_cast<size_t>(count));
  return order;
}

// Takes the experts outside of the best groups out of the choice.
void keep_best_groups(const RouteArgs& args, Numbers* choice) {
  if (args.rules.chosen_groups == args.rules.groups) return;
  const int64_t size = args.rules.experts / args.rules.groups;
  Numbers ranks;
  for (int64_t group = 0; group < args.rules.groups; ++group) {
    const auto first = choice->begin() + group * size;
    const Numbers members(first, first + size);
    const bool has_two = args.rules.group_score == GroupScore::kSumOfTwo && size > 1;
    double rank = 0;
    for (const size_t member : largest_of(members, has_two ? 2 : 1)) rank += members[member];
    ranks.push_back(std::isnan(rank) ? kNever : rank);  // of two infinities
  }
  std::vector<bool> is_kept(static_cast<size_t>(args.rules.groups));
  for (const size_t group : largest_of(ranks, args.rules.chosen_groups)) is_kept[group] = true;
  for (int64_t e = 0; e < args.rules.experts; ++e) {
    if (!is_kept[static_cast<size_t>(e / size)]) (*choice)[static_cast<size_t>(e)] = kNever;
  }
}

// Note: [SparseMixer]
Numbers mixed(const RouteArgs& args, const Numbers& logits, const std::vector<size_t>& chosen) {
  Numbers weights;
  std::vector<bool> is_taken(logits.size());
  for (const size_t expert : chosen) {
    const double best = logits[expert];
    const auto is_close = [&](size_t e) {
      const double distance = (best - logits[e]) / std::max(std::abs(logits[e]), best);
      return !is_taken[e] && !(distance > 2 * double{args.rules.jitter});
    };
    weights.push_back(softmax(logits, is_close)[expert]);
    is_taken[expert] = true;
  }
  return weights;
}

Numbers weights_of(const RouteArgs& args, const Numbers& logits, const Numbers& scores,
                   const std::vector<size_t>& chosen) {
  if (args.rules.score == RouterScore::kSparseMixer) return mixed(args, logits, chosen);
  Numbers weights;
  for (const size_t expert : chosen) weights.push_back(scores[expert]);
  if (args.rules.score != RouterScore::kSoftmaxOfChosen) return weights;
  return softmax(weights, [](size_t) { return true; });
}

void route_row(const RouteArgs& args, int64_t row) {
  const float* const given = args.logits + row * args.rules.experts;
  int32_t* const ids = args.ids + row * args.rules.chosen;
  float* const weights = args.weights + row * args.rules.chosen;
  const Numbers logits(given, given + args.rules.experts);
  const Numbers scores = scores_of(args, logits);
  Numbers choice;
  for (size_t e = 0; e < scores.size(); ++e) {
    const double bias = args.choice_bias == nullptr ? 0 : args.choice_bias[e];
    choice.push_back(scores[e] + bias);
  }
  if (std::ranges::any_of(choice, [](double x) { return std::isnan(x); })) {
    std::iota(ids, ids + args.rules.chosen, 0);
    std::fill_n(weights, args.rules.chosen, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  keep_best_groups(args, &choice);
  const std::vector<size_t> chosen = largest_of(choice, args.rules.chosen);
  const Numbers found = weights_of(args, logits, scores, chosen);
  const double sum = std::accumulate(found.begin(), found.end(), 0.0) + args.rules.normalize_eps;
  for (size_t r = 0; r < chosen.size(); ++r) {
    double weight = args.rules.normalize ? found[r] / sum : found[r];
    weight *= args.rules.weight_scale;
    if (args.expert_scale != nullptr) weight *= args.expert_scale[chosen[r]];
    ids[r] = static_cast<int32_t>(chosen[r]);
    weights[r] = static_cast<float>(weight);
  }
}

}  // namespace

void route(const RouteArgs& args, const Launch& launch) {
  launch.pool->run(args.rows, [&](int64_t row, int) { route_row(args, row); });
}

}  // namespace sinkstream::reference
