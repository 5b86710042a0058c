// Compares `linear` of two builds of one kernel table, interleaved in one process. linear_duel.py
// builds it.
//
//   linear_duel [threads]
//
// A shared processor changes its speed within seconds, so only interleaved runs can be compared to
// a few per cent. The addresses of inputs and outputs change the time by up to 5 %, so both builds
// use the same ones. Ratios above 1: the new build is faster.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "device/buffer.h"
#include "linear_call.h"

namespace sinkstream {

const Kernels& SINKSTREAM_TABLE();  // the new build
const Kernels& base_kernels();

}  // namespace sinkstream

namespace {

using namespace sinkstream;

// Prints quartiles of ratios, so that one disturbed turn changes little.
void print_ratios(const char* what, std::vector<double> ratios, bool same_bits) {
  std::sort(ratios.begin(), ratios.end());
  const size_t n = ratios.size();
  std::printf("  %-13s %.3f (%.3f - %.3f)%s\n", what, ratios[n / 2], ratios[n / 4],
              ratios[n - 1 - n / 4], same_bits ? "" : ", other bits");
  std::fflush(stdout);
}

void compare(ThreadPool* pool, int64_t tokens, int64_t bytes, int64_t cols, int turns) {
  std::printf(" %lld tokens, %lld MB of weights, %lld columns:\n", static_cast<long long>(tokens),
              static_cast<long long>(bytes >> 20), static_cast<long long>(cols));
  for (const auto& [type, name, format] : kWeightTypes) {
    if (cols % block_cols(format, kOpenBlock) != 0) continue;
    const int64_t rows = bytes / panel_bytes(type, cols, kOpenBlock) * kPanelRows;
    const Buffer panels(packed_bytes(type, rows, cols, kOpenBlock), "panels");
    fill_panels(type, panels.bytes(), panels.data());
    const PackedMatrix weights = {
        .type = type, .rows = rows, .cols = cols, .panels = panels.data(), .block = kOpenBlock};
    const Kernels* const tables[] = {&base_kernels(), &SINKSTREAM_TABLE()};
    const InputType input = base_kernels().native_input;  // of both
    Call calls[] = {{weights, tokens, input, pool->threads()},
                    {weights, tokens, input, pool->threads()}};
    for (const int which : {0, 1}) calls[which].seconds(*tables[which], pool);
    const size_t count = static_cast<size_t>(tokens * rows);
    const bool same_bits =
        std::memcmp(calls[0].out.get(), calls[1].out.get(), count * sizeof(float)) == 0;
    std::vector<double> ratios;
    for (int turn = 0; turn < turns; ++turn) {
      double seconds[2] = {};  // each build in both calls' memory, once first and once last
      for (int i = 0; i < 4; ++i) {
        const int which = (i ^ i >> 1 ^ turn) & 1;
        seconds[which] += calls[i / 2].seconds(*tables[which], pool);
      }
      ratios.push_back(seconds[0] / seconds[1]);
    }
    print_ratios(name, ratios, same_bits);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (!SINKSTREAM_TABLE().supported()) {  // this also requests the tile unit's registers
    std::fprintf(stderr, "linear_duel: this processor cannot run %s\n", SINKSTREAM_TABLE().name);
    return 1;
  }
  if (SINKSTREAM_TABLE().native_input != base_kernels().native_input) {
    std::fprintf(stderr, "linear_duel: the builds have different native input types\n");
    return 1;
  }
  ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : 1);
  std::printf("%s, threads: %d, base time over new time (middle half)\n", SINKSTREAM_TABLE().name,
              pool.threads());
  for (const int64_t tokens : {1, 2, 4, 8, 16, 32}) {
    compare(&pool, tokens, int64_t{320} << 20, 1536, 16);
  }
  for (const int64_t tokens : {1, 8, 64, 512}) {
    compare(&pool, tokens, int64_t{1} << 20, 576, tokens > 64 ? 16 : 100);
  }
}
