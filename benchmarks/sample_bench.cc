// The cost of choosing a token: `logits` and `sample` on one row.
//
//   sample_bench [vocab]     default: 49152; every table that this processor supports
//
// Two kinds of rows: as language models produce them (few probable tokens, a long normal tail), and
// flat ones, on which filters that keep much have most to do.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "device/buffer.h"
#include "kernels/choose.h"

namespace {

using namespace sinkstream;

// The median of many calls, in microseconds.
template <typename Body>
double median_us(const Body& body) {
  std::vector<double> times(301);
  for (double& time : times) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    time =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

std::vector<float> likely_row(int64_t vocab) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> row(vocab);
  for (float& x : row) x = normal(random);
  for (int i = 0; i < 20; ++i) row[random() % vocab] = 12 + normal(random);
  return row;
}

std::vector<float> flat_row(int64_t vocab) {
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> row(vocab);
  for (float& x : row) x = normal(random);
  return row;
}

struct Case {
  const char* name;
  SampleArgs args;
};

const Case kCases[] = {
    {"greedy", {.greedy = true}},
    {"no filter", {}},
    {"min-p 0.05", {.min_p = 0.05}},
    {"top-p 0.95, min-p 0.05", {.top_p = 0.95, .min_p = 0.05}},
    {"top-p 0.95", {.top_p = 0.95}},
    {"top-k 50", {.top_k = 50}},
    {"top-k 50, top-p 0.95", {.top_k = 50, .top_p = 0.95}},
    {"top-k 5000", {.top_k = 5000}},
};

void bench_row(const Kernels& table, const char* row_name, std::vector<float> row,
               const Launch& launch) {
  const int64_t vocab = static_cast<int64_t>(row.size());
  const Buffer scratch(sample_scratch_bytes(vocab), "bench");
  std::vector<float> out(vocab);
  bool is_finite = false;
  double log_sum_exp = 0;
  const LogitsArgs raw = {
      .input = row.data(), .vocab = vocab, .is_finite = &is_finite, .log_sum_exp = &log_sum_exp};
  LogitsArgs scaled = raw;
  scaled.out = out.data();
  scaled.temperature = 0.7f;
  const auto print = [&](const char* op, const char* what, double us) {
    std::printf("%-9s  %-6s  %-6s  %-24s  %8.1f us\n", table.name, row_name, op, what, us);
  };
  print("logits", "logprob only", median_us([&] { table.logits(raw, launch); }));
  print("logits", "logprob and temperature", median_us([&] { table.logits(scaled, launch); }));
  for (const Case& c : kCases) {
    SampleArgs args = c.args;
    int32_t token = 0;
    args.logits = row.data();
    args.vocab = vocab;
    args.scratch = scratch.data();
    args.token = &token;
    args.uniform = 0.999;
    print("sample", c.name, median_us([&] { table.sample(args, launch); }));
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int64_t vocab = count > 1 ? std::atoll(arguments[1]) : 49152;
  ThreadPool pool(1);
  const Launch launch{&pool};
  for (const Kernels* table : all_kernels()) {
    if (!table->supported() || table->sample == nullptr) continue;
    bench_row(*table, "likely", likely_row(vocab), launch);
    bench_row(*table, "flat", flat_row(vocab), launch);
  }
}
