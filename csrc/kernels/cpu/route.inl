#pragma once

#include <cmath>

// One token's choice, in double as in the reference. Arrays have a place for each expert.
class Router {
 public:
  Router(const RouteArgs& args, int64_t row)
      : args_(args),
        rules_(args.rules),
        logits_(args.logits + row * args.rules.experts),
        ids_(args.ids + row * args.rules.chosen),
        weights_(args.weights + row * args.rules.chosen) {}

  void run() {
    write_scores();
    for (int64_t e = 0; e < rules_.experts; ++e) {
      const double bias = args_.choice_bias == nullptr ? 0 : args_.choice_bias[e];
      choice_[e] = scores_[e] + bias;
      if (std::isnan(choice_[e])) return write_nan();
    }
    keep_best_groups();
    take_largest(choice_, rules_.experts, rules_.chosen,
                 [&](int64_t r, int64_t expert) { ids_[r] = static_cast<int32_t>(expert); });
    write_weights();
  }

 private:
  static constexpr double kNever = -HUGE_VAL;

  void write_nan() {
    for (int64_t r = 0; r < rules_.chosen; ++r) {
      ids_[r] = static_cast<int32_t>(r);
      weights_[r] = NAN;
    }
  }

  void write_scores() {
    for (int64_t e = 0; e < rules_.experts; ++e) scores_[e] = logits_[e];
    if (rules_.score == RouterScore::kSoftmax) softmax(scores_, rules_.experts);
    if (rules_.score == RouterScore::kSigmoid) {
      for (int64_t e = 0; e < rules_.experts; ++e) scores_[e] = 1 / (1 + std::exp(-scores_[e]));
    }
  }

  static void softmax(double* values, int64_t count) {
    double largest = kNever, sum = 0;
    for (int64_t i = 0; i < count; ++i) largest = values[i] > largest ? values[i] : largest;
    for (int64_t i = 0; i < count; ++i) sum += values[i] = std::exp(values[i] - largest);
    for (int64_t i = 0; i < count; ++i) values[i] /= sum;
  }

  // Calls take(r, index) for the largest values in falling order, each of which becomes NaN. None
  // is NaN before, so there is always one that was not taken, which may be kNever.
  template <typename Take>
  static void take_largest(double* values, int64_t count, int64_t taken, const Take& take) {
    int64_t first = 0;  // that was not taken
    for (int64_t r = 0; r < taken; ++r) {
      while (std::isnan(values[first])) ++first;
      int64_t best = first;
      for (int64_t i = first + 1; i < count; ++i) best = values[i] > values[best] ? i : best;
      take(r, best);
      values[best] = NAN;
    }
  }

  void keep_best_groups() {
    if (rules_.chosen_groups == rules_.groups) return;
    const int64_t size = rules_.experts / rules_.groups;
    for (int64_t group = 0; group < rules_.groups; ++group) {
      double first = kNever, second = kNever;
      for (int64_t e = group * size; e < (group + 1) * size; ++e) {
        const double x = choice_[e];
        second = x > first ? first : x > second ? x : second;
        first = x > first ? x : first;
      }
      const bool has_two = rules_.group_score == GroupScore::kSumOfTwo && size > 1;
      const double sum = has_two ? first + second : first;
      ranks_[group] = std::isnan(sum) ? kNever : sum;  // of two infinities
      is_kept_[group] = false;
    }
    take_largest(ranks_, rules_.groups, rules_.chosen_groups,
                 [&](int64_t, int64_t group) { is_kept_[group] = true; });
    for (int64_t e = 0; e < rules_.experts; ++e) {
      if (!is_kept_[e / size]) choice_[e] = kNever;
    }
  }

  // `scores_` of the chosen experts move to the front of `choice_`, which is free by then.
  void write_weights() {
    const int64_t chosen = rules_.chosen;
    double* const found = choice_;
    if (rules_.score == RouterScore::kSparseMixer) {
      for (int64_t r = 0; r < chosen; ++r) found[r] = mixed(r);
    } else {
      for (int64_t r = 0; r < chosen; ++r) found[r] = scores_[ids_[r]];
      if (rules_.score == RouterScore::kSoftmaxOfChosen) softmax(found, chosen);
    }
    double sum = 0;
    for (int64_t r = 0; r < chosen; ++r) sum += found[r];
    sum += rules_.normalize_eps;
    for (int64_t r = 0; r < chosen; ++r) {
      double weight = rules_.normalize ? found[r] / sum : found[r];
      weight *= rules_.weight_scale;
      if (args_.expert_scale != nullptr) weight *= args_.expert_scale[ids_[r]];
      weights_[r] = static_cast<float>(weight);
    }
  }

  // Note: [SparseMixer]. A taken expert's score becomes NaN.
  double mixed(int64_t r) {
    const double best = scores_[ids_[r]];
    double sum = 0;
    for (int64_t e = 0; e < rules_.experts; ++e) {
      const double x = scores_[e], size = std::abs(x) > best ? std::abs(x) : best;
      if (std::isnan(x) || (best - x) / size > 2 * double{rules_.jitter}) continue;
      sum += std::exp(x - best);
    }
    scores_[ids_[r]] = NAN;
    return 1 / sum;
  }

  const RouteArgs& args_;
  const RouteRules& rules_;
  const float* logits_;
  int32_t* ids_;
  float* weights_;
  double scores_[kMostExperts], choice_[kMostExperts], ranks_[kMostExperts];
  bool is_kept_[kMostExperts];
};

void route(const RouteArgs& args, const Launch& launch) {
  launch.pool->run(args.rows, [&](int64_t row, int) { Router(args, row).run(); });
}
