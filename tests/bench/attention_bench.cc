// Times attention in the shape of SmolLM2-135M: 9 query and 3 key heads of 64, 30 layers.
//
// Decoding: one token after n cached ones, layer after layer, so that the caches of all layers
// together stand where they stand in a real step. Prefill: 512 tokens in pieces of 64.
// The table is chosen as everywhere: SINKSTREAM_KERNELS=avx2 forces one.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "cache/window.h"
#include "device/buffer.h"
#include "kernels/kernels.h"

namespace sinkstream {
namespace {

constexpr int64_t kHeads = 9;
constexpr int64_t kLayers = 30;
constexpr int64_t kSinks = 4;

// The pages of all layers, with numbers that are finite in every type.
class Cache {
 public:
  Cache(const Window& window, const PageShape& shape, int64_t layers) : window_(window) {
    const int64_t per_layer = window.sink_pages() + window.window_pages();
    memory_ = Buffer(per_layer * layers * shape.bytes(), "the pages");
    std::mt19937 random(1);
    auto* words = reinterpret_cast<uint32_t*>(memory_.data());
    for (int64_t i = 0; i < per_layer * layers * shape.bytes() / 4; ++i) {
      words[i] = random() & 0xbbffbbff;  // at most 1 as bfloat16, at most 2 as float16
    }
    for (int64_t page = 0; page < per_layer * layers; ++page) {
      pages_.push_back(memory_.data() + page * shape.bytes());
    }
  }

  AttentionSpan span(int64_t layer, int64_t index, int64_t count) const {
    const std::byte* const* pages =
        pages_.data() + layer * (window_.sink_pages() + window_.window_pages());
    return {.row = 0,
            .count = count,
            .index = index,
            .sinks = window_.sinks,
            .sink_pages = pages,
            .window_pages = pages + window_.sink_pages(),
            .window_page_count = window_.window_pages()};
  }

 private:
  Window window_;
  Buffer memory_;
  std::vector<const std::byte*> pages_;
};

// Seconds of the fastest call: what the machine does when nobody else uses it.
template <typename Call>
double fastest_time(int repeats, const Call& call) {
  double fastest = INFINITY;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    fastest = std::min(fastest, seconds.count());
  }
  return fastest;
}

class Bench {
 public:
  Bench(const Kernels& kernels, DType type, int threads)
      : kernels_(kernels), shape_{3, 64, type}, pool_(threads) {}

  // One token that sees `live` keys, in each of `layers` layers.
  void decode(int64_t live, int64_t layers) {
    const Window window = {.sinks = kSinks, .window = live - kSinks};
    const Cache cache(window, shape_, layers);
    prepare(window, live - 1, 1);
    const double seconds = fastest_time(51, [&] {
      for (int64_t layer = 0; layer < layers; ++layer) run(cache.span(layer, live - 1, 1));
    });
    const double bytes = static_cast<double>(live * shape_.bytes() / kPageRows);
    std::printf("decode  %-8s %d threads %5ld live %2ld layers %9.2f us/layer %7.1f GB/s\n",
                name_of(shape_.type), pool_.threads(), long(live), long(layers),
                seconds / layers * 1e6, bytes * layers / seconds / 1e9);
  }

  // `count` tokens from an empty cache on, in pieces of a page.
  void prefill(int64_t count) {
    const Window window = {.sinks = kSinks, .window = 2044};
    const Cache cache(window, shape_, 1);
    double seconds = 0;
    double keys = 0;
    for (int64_t t = 0, piece; t < count; t += piece) {
      piece = std::min<int64_t>(window.piece(t, count - t), kPageRows);
      prepare(window, t, piece);
      seconds += fastest_time(11, [&] { run(cache.span(0, t, piece)); });
      for (int64_t i = t; i < t + piece; ++i) keys += static_cast<double>(i + 1);
    }
    const double flops = keys * kHeads * shape_.head_dim * 4;
    std::printf("prefill %-8s %d threads %5ld tokens %9.2f us/layer %7.1f Gflop/s\n",
                name_of(shape_.type), pool_.threads(), long(count), seconds * 1e6,
                flops / seconds / 1e9);
  }

 private:
  void prepare(const Window& window, int64_t index, int64_t rows) {
    query_.assign(rows * kHeads * shape_.head_dim, 0.5f);
    out_.resize(query_.size());
    first_.resize(rows);
    for (int64_t r = 0; r < rows; ++r) first_[r] = window.first(index + r);
    pages_ = window.sink_pages() + window.window_pages();
    scratch_ = Buffer(attention_scratch_bytes(kHeads, shape_.head_dim, pages_, pool_.threads()),
                      "the scratch");
  }

  void run(const AttentionSpan& span) {
    kernels_.attention({.query_window = query_.data(),
                        .query_sink = query_.data(),
                        .out = out_.data(),
                        .first = first_.data(),
                        .spans = &span,
                        .span_count = 1,
                        .rows = span.count,
                        .heads = kHeads,
                        .shape = shape_,
                        .sink_type = shape_.type,
                        .scale = 0.125f,
                        .scratch = scratch_.data(),
                        .scratch_pages = pages_},
                       {&pool_});
  }

  const Kernels& kernels_;
  PageShape shape_;
  ThreadPool pool_;
  std::vector<float> query_;
  std::vector<float> out_;
  std::vector<int64_t> first_;
  int64_t pages_ = 0;
  Buffer scratch_;
};

void run_all() {
  const char* forced = std::getenv("SINKSTREAM_KERNELS");
  const ChosenKernels chosen = choose_kernels(forced == nullptr ? "" : forced);
  std::printf("kernels: %s\n", chosen.kernels.name);
  for (const DType type : {DType::kInt8, DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (const int threads : {1, 2}) {
      Bench bench(chosen.kernels, type, threads);
      for (const int64_t live : {16, 1024, 2048}) {
        bench.decode(live, 1);
        bench.decode(live, kLayers);
      }
      bench.prefill(512);
    }
  }
}

}  // namespace
}  // namespace sinkstream

int main() { sinkstream::run_all(); }
