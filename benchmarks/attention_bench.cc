// Times attention in the shapes of SmolLM2-135M and of Qwen3-0.6B.
//
// Decode: one token after n cached ones, layer after layer, so that the caches of all layers are in
// memory as in a real step; also for a batch of sequences. Prefill: 512 tokens in pieces of 64.
// SINKSTREAM_KERNELS chooses the table, as usual. Arguments select the rows: attention_bench batch
// qwen3-0.6b bfloat16
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>
#include <vector>

#include "cache/window.h"
#include "device/buffer.h"
#include "kernels/choose.h"

namespace sinkstream {
namespace {

constexpr int64_t kSinks = 4;

struct Model {
  const char* name;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t layers;
};
constexpr Model kSmollm2 = {"smollm2", 9, 3, 64, 30};
constexpr Model kQwen3 = {"qwen3-0.6b", 16, 8, 128, 28};

// The pages of some sequences in all layers, with elements that are finite in every type.
class Cache {
 public:
  Cache(const Window& window, const PageShape& shape, int64_t layers, int64_t sequences = 1)
      : window_(window), sequences_(sequences) {
    const int64_t pages = (window.sink_pages() + window.window_pages()) * sequences * layers;
    memory_ = Buffer(pages * shape.bytes(), "the pages");
    std::mt19937 random(1);
    auto* words = reinterpret_cast<uint32_t*>(memory_.data());
    for (int64_t i = 0; i < pages * shape.bytes() / 4; ++i) {
      words[i] = random() & 0xbbffbbff;  // at most 1 as bfloat16, at most 2 as float16
    }
    for (int64_t page = 0; page < pages; ++page) {
      pages_.push_back(memory_.data() + page * shape.bytes());
    }
  }

  AttentionSpan span(int64_t layer, int64_t index, int64_t count, int64_t sequence = 0) const {
    const std::byte* const* pages =
        pages_.data() +
        (layer * sequences_ + sequence) * (window_.sink_pages() + window_.window_pages());
    return {.row = sequence * count,
            .count = count,
            .index = index,
            .sinks = window_.sinks,
            .sink_pages = pages,
            .window_pages = pages + window_.sink_pages(),
            .window_page_count = window_.window_pages()};
  }

 private:
  Window window_;
  int64_t sequences_;
  Buffer memory_;
  std::vector<const std::byte*> pages_;
};

// Seconds of the fastest call: the one that other load disturbed least.
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
  Bench(const Kernels& kernels, const Model& model, DType type, int threads)
      : kernels_(kernels),
        model_(model),
        shape_{.kv_heads = model.kv_heads, .head_dim = model.head_dim, .type = type},
        pool_(threads) {}

  // One token of each sequence, which sees `live` keys, in each of `layers` layers.
  void decode(int64_t live, int64_t layers, int64_t sequences = 1) {
    const Window window = {.sinks = kSinks, .window = live - kSinks};
    const Cache cache(window, shape_, layers, sequences);
    prepare(window, live - 1, 1, sequences);
    std::vector<AttentionSpan> spans;
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (int64_t s = 0; s < sequences; ++s) spans.push_back(cache.span(layer, live - 1, 1, s));
    }
    const double seconds = fastest_time(sequences == 1 ? 51 : 11, [&] {
      for (int64_t layer = 0; layer < layers; ++layer) {
        run(spans.data() + layer * sequences, sequences);
      }
    });
    const double bytes = static_cast<double>(sequences * live * shape_.bytes() / kPageRows);
    std::printf(
        "decode  %-10s %-8s %d threads %5ld live %2ld sequences %2ld layers %9.2f us/layer "
        "%7.1f GB/s\n",
        model_.name, name_of(shape_.type), pool_.threads(), long(live), long(sequences),
        long(layers), seconds / layers * 1e6, bytes * layers / seconds / 1e9);
  }

  // `count` tokens into an empty cache, in pieces of a page.
  void prefill(int64_t count) {
    const Window window = {.sinks = kSinks, .window = 2044};
    const Cache cache(window, shape_, 1);
    double seconds = 0;
    double keys = 0;
    for (int64_t t = 0, piece; t < count; t += piece) {
      piece = std::min<int64_t>(window.piece(t, count - t), kPageRows);
      prepare(window, t, piece);
      const AttentionSpan span = cache.span(0, t, piece);
      seconds += fastest_time(11, [&] { run(&span, 1); });
      for (int64_t i = t; i < t + piece; ++i) keys += static_cast<double>(i + 1);
    }
    const double flops = keys * static_cast<double>(model_.heads * shape_.head_dim * 4);
    std::printf("prefill %-10s %-8s %d threads %5ld tokens %9.2f us/layer %7.1f Gflop/s\n",
                model_.name, name_of(shape_.type), pool_.threads(), long(count), seconds * 1e6,
                flops / seconds / 1e9);
  }

 private:
  // `count` tokens of each sequence, starting at `index`.
  void prepare(const Window& window, int64_t index, int64_t count, int64_t sequences = 1) {
    query_.assign(count * sequences * model_.heads * shape_.head_dim, 0.5f);
    out_.resize(query_.size());
    first_.resize(count * sequences);
    for (int64_t r = 0; r < count * sequences; ++r) first_[r] = window.first(index + r % count);
    pages_ = window.sink_pages() + window.window_pages();
    scratch_ =
        Buffer(attention_scratch_bytes(model_.heads, shape_.head_dim, pages_, pool_.threads()),
               "the scratch");
  }

  void run(const AttentionSpan* spans, int64_t count) {
    kernels_.attention({.query_window = query_.data(),
                        .query_sink = query_.data(),
                        .out = out_.data(),
                        .first = first_.data(),
                        .spans = spans,
                        .span_count = count,
                        .rows = static_cast<int64_t>(first_.size()),
                        .heads = model_.heads,
                        .shape = shape_,
                        .sink_type = shape_.type,
                        .scale = 0.125f,
                        .scratch = scratch_.data(),
                        .scratch_pages = pages_},
                       {&pool_});
  }

  const Kernels& kernels_;
  Model model_;
  PageShape shape_;
  ThreadPool pool_;
  std::vector<float> query_;
  std::vector<float> out_;
  std::vector<int64_t> first_;
  int64_t pages_ = 0;
  Buffer scratch_;
};

// Whether `word` is among the arguments, or no word of its kind is.
bool is_asked(const std::vector<std::string_view>& words, std::string_view word,
              const std::vector<std::string_view>& kind) {
  const auto has = [&](std::string_view one) {
    return std::ranges::find(words, one) != words.end();
  };
  return has(word) || std::ranges::none_of(kind, has);
}

void run_all(const std::vector<std::string_view>& words) {
  const char* forced = std::getenv("SINKSTREAM_KERNELS");
  const ChosenKernels chosen = choose_kernels(forced == nullptr ? "" : forced);
  std::printf("kernels: %s\n", chosen.kernels.name);
  for (const DType type : {DType::kInt8, DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    if (!is_asked(words, name_of(type), {"int8", "bfloat16", "float16", "float32"})) continue;
    for (const int threads : {1, 2}) {
      for (const Model& model : {kSmollm2, kQwen3}) {
        if (!is_asked(words, model.name, {kSmollm2.name, kQwen3.name})) continue;
        Bench bench(chosen.kernels, model, type, threads);
        if (is_asked(words, "decode", {"decode", "batch", "prefill"})) {
          for (const int64_t live : {16, 1024, 2048}) {
            bench.decode(live, 1);
            bench.decode(live, model.layers);
          }
        }
        if (is_asked(words, "batch", {"decode", "batch", "prefill"})) {
          for (const int64_t sequences : {8, 32}) bench.decode(256, model.layers, sequences);
        }
        if (is_asked(words, "prefill", {"decode", "batch", "prefill"})) bench.prefill(512);
      }
    }
  }
}

}  // namespace
}  // namespace sinkstream

int main(int count, char** words) { sinkstream::run_all({words + 1, words + count}); }
