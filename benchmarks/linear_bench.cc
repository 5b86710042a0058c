// `linear` as a share of the machine's limits: for a few tokens, of a plain read of the same bytes;
// for many, of a loop of dot products or multiply-adds in registers.
//
//   linear_bench [table] [threads] [inputs]
//
// Defaults: the best table, 1 and 2 threads, and the table's native input type.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "kernels/choose.h"
#include "linear_call.h"
#include "probes/bandwidth.h"
#include "probes/peak.h"

namespace {

using namespace sinkstream;

// The best of several short runs: other load only slows a run down.
double best(const std::vector<double>& rates) {
  return *std::max_element(rates.begin(), rates.end());
}

// A few tokens, weights from memory, interleaved with the plain read.
void measure_decode(const Kernels& kernels, ThreadPool* pool, int64_t tokens) {
  constexpr int64_t kCols = 1536;
  constexpr int64_t kBytes = int64_t{320} << 20;
  const Buffer panels(kBytes, "panels");  // in huge pages where available, as in a model
  std::printf(" %lld tokens, 320 MB of weights, %lld columns:\n", static_cast<long long>(tokens),
              static_cast<long long>(kCols));
  for (const auto& [type, name, format] : kWeightTypes) {
    const int64_t rows = kBytes / panel_bytes(type, kCols, kOpenBlock) * kPanelRows;
    const int64_t bytes = packed_bytes(type, rows, kCols, kOpenBlock);
    fill_panels(type, bytes, panels.data());
    Call call(
        {.type = type, .rows = rows, .cols = kCols, .panels = panels.data(), .block = kOpenBlock},
        tokens, kernels.native_input, pool->threads());
    std::vector<double> rates, reads;
    for (int repeat = 0; repeat < 15; ++repeat) {
      reads.push_back(read_rate(panels.data(), bytes, pool));
      rates.push_back(bytes / call.seconds(kernels, pool));
    }
    std::printf("  %-13s %6.1f GB/s, plain read %6.1f GB/s: %3.0f %%\n", name, best(rates) * 1e-9,
                best(reads) * 1e-9, 100 * best(rates) / best(reads));
  }
}

// The unit that multiplies weights of this type.
PeakUnit unit_of(const Kernels& kernels, WeightType type) {
  const bool is_for_tiles = type == WeightType::kBFloat16 || is_quantized(type);
  const bool has_tiles = std::string(kernels.name) == "amx";
  return has_tiles && is_for_tiles && kernels.native_input == InputType::kBFloat16
             ? PeakUnit::kTiles
             : PeakUnit::kVectors;
}

// Many tokens, weights of one layer, interleaved with the peak.
void measure_prefill(const Kernels& kernels, ThreadPool* pool, int64_t tokens, int64_t rows,
                     int64_t cols) {
  std::printf(" %lld tokens, %lld x %lld:\n", static_cast<long long>(tokens),
              static_cast<long long>(rows), static_cast<long long>(cols));
  for (const auto& [type, name, format] : kWeightTypes) {
    if (cols % block_cols(format, kOpenBlock) != 0) continue;
    const int64_t bytes = packed_bytes(type, rows, cols, kOpenBlock);
    const Buffer panels(bytes, "panels");
    fill_panels(type, bytes, panels.data());
    Call call(
        {.type = type, .rows = rows, .cols = cols, .panels = panels.data(), .block = kOpenBlock},
        tokens, kernels.native_input, pool->threads());
    const double work = 2.0 * tokens * rows * cols;
    const PeakUnit unit = unit_of(kernels, type);
    std::vector<double> rates, peaks;
    for (int repeat = 0; repeat < 30; ++repeat) {
      peaks.push_back(unit == PeakUnit::kTiles ? peak_rate(pool, 600000, unit).rate
                                               : peak_rate(pool, 12000000, unit).rate);
      rates.push_back(work / call.seconds(kernels, pool));
    }
    std::printf("  %-13s %6.1f GFLOP/s of %6.1f: %3.0f %%\n", name, best(rates) * 1e-9,
                best(peaks) * 1e-9, 100 * best(rates) / best(peaks));
  }
}

InputType input_named(const std::string& name) {
  for (const InputType type : kInputTypes) {
    if (name == name_of(type)) return type;
  }
  std::fprintf(stderr,
               "linear_bench: inputs must be float32, bfloat16, int16 or int8, but are %s.\n",
               name.c_str());
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  ChosenKernels chosen = choose_kernels(argc > 1 ? argv[1] : "");
  if (argc > 3) chosen.kernels.native_input = input_named(argv[3]);
  const std::vector<int> threads =
      argc > 2 ? std::vector<int>{std::atoi(argv[2])} : std::vector<int>{1, 2};
  for (const int count : threads) {
    ThreadPool pool(count);
    std::printf("%s, inputs %s, threads: %d\n", chosen.kernels.name,
                name_of(chosen.kernels.native_input), count);
    for (const int64_t tokens : {1, 8, 32}) measure_decode(chosen.kernels, &pool, tokens);
    for (const int64_t tokens : {1, 8, 64, 512}) {
      measure_prefill(chosen.kernels, &pool, tokens, 1536 * 2, 576);
      measure_prefill(chosen.kernels, &pool, tokens, 576, 1536);
      measure_prefill(chosen.kernels, &pool, tokens, 2048, 8192);
    }
  }
}
