// The error of attention compared with its definition, by kernel table, cache type and index.
//
//   cmake -S . -B build/bench -DSINKSTREAM_BENCH=ON -DSINKSTREAM_TESTS=ON
//   cmake --build build/bench --target attention_error && build/bench/benchmarks/attention_error
//
// The largest |output − definition| over all queries, in units of the largest magnitude of the
// query's own output. The definition is in double, from keys and values that are not rounded.
// Prints Markdown.
#include <algorithm>
#include <cstdio>

#include "kernels/attention_fixture.h"

namespace sinkstream {
namespace {

constexpr int64_t kHeads = 9, kKvHeads = 3, kHeadDim = 64;  // SmolLM2's

double worst_of(const Kernels& table, const Window& window, DType type, int64_t start,
                int64_t length) {
  double worst = 0;
  for (const uint64_t seed : {1, 2, 3}) {
    StreamSpec spec = make_spec(window.sinks, window.window, kHeads, kKvHeads, kHeadDim, type);
    spec.base = 100000;
    spec.seed = seed;
    ThreadPool pool(1);
    if (start > 0) spec.window.begin = start;
    TestStream stream(spec, table);
    if (start > 0) stream.append(0, window.sinks, &pool);
    const auto out = read_all(&stream, table, &pool, start, start + length, 64);
    for (int64_t t = start + length - 40; t < start + length; ++t) {
      const std::vector<double> literal = literal_row(spec, t);
      const std::vector<float> expected(literal.begin(), literal.end());
      const int64_t size = kHeads * kHeadDim;
      worst = std::max(worst, worst_error(out.data() + (t - start) * size, expected.data(), size,
                                          largest_of(expected)));
    }
  }
  return worst;
}

void print_all() {
  constexpr Window kWindow = {.sinks = 4, .window = 252};
  std::printf(
      "| table | cache | before it fills | just filled | ten windows on | index 10,000,000 |\n"
      "|---|---|---|---|---|---|\n");
  for (const Kernels* table : tables_with(&Kernels::attention)) {
    if (!table->supported()) continue;
    for (const DType type : kTypes) {
      std::printf("| %s | %s | %.1e | %.1e | %.1e | %.1e |\n", table->name, name_of(type),
                  worst_of(*table, kWindow, type, 0, 200),
                  worst_of(*table, kWindow, type, 0, kWindow.capacity() + 40),
                  worst_of(*table, kWindow, type, 0, 10 * kWindow.window),
                  worst_of(*table, kWindow, type, 10'000'000, kWindow.window + 40));
    }
  }
}

}  // namespace
}  // namespace sinkstream

int main() { sinkstream::print_all(); }
