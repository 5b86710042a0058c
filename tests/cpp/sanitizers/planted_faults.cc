// Deliberate mistakes around the engine, which the sanitizers must report. `planted_faults
// race|leak|overflow|undefined` makes one. Without a sanitizer it has no visible effect.
#include <cstdio>
#include <limits>
#include <string_view>

#include "engine/engine.h"
#include "engine/fake_model.h"

namespace sinkstream {
namespace {

// Writes one logit too many.
class OverflowingModel : public FakeModel {
 public:
  void forward(std::span<const ForwardSpan> spans, float* logits) override {
    FakeModel::forward(spans, logits);
    logits[kFakeVocab] = 0;
  }
};

// An engine with room for one sequence.
struct SmallEngine {
  explicit SmallEngine(LanguageModel& model) {
    options.pools = &pool;
    options.window = {.sinks = 4, .window = 60};
    options.kernels = &reference_kernels();
    options.threads = &threads;
    engine.emplace(model, options);
  }

  std::shared_ptr<TokenStream> submit(int64_t max_tokens) {
    Request request;
    request.prompt = {5};
    request.params.max_tokens = max_tokens;
    return engine->submit(std::move(request));
  }

  ThreadPool threads{1};
  PagePool pool{PageShape{.kv_heads = 1, .head_dim = 2}, 3};
  EngineOptions options;
  std::optional<Engine> engine;
};

void read_all(TokenStream& stream) {
  StreamBatch batch;
  while (stream.take(std::chrono::seconds(10), &batch) == TokenStream::Taken::kBatch) {
  }
}

// The consumer reads staged data, which belongs to the engine's thread.
void race() {
  FakeModel model;
  SmallEngine small(model);
  const auto stream = small.submit(100000);
  size_t seen = 0;
  while (stream->pending_tokens() < 1000) seen += stream->staged().tokens.size();
  std::printf("%zu tokens seen too early\n", seen);
}

// A consumer leaks its stream.
void leak() {
  FakeModel model;
  SmallEngine small(model);
  auto* forgotten = new std::shared_ptr<TokenStream>(small.submit(10));
  read_all(**forgotten);
  forgotten = nullptr;
}

// The model writes past the end of the engine's logits.
void overflow() {
  OverflowingModel model;
  SmallEngine small(model);
  read_all(*small.submit(10));
}

// The capacity of a window without an end.
void undefined() {
  volatile int64_t endless = std::numeric_limits<int64_t>::max();
  const Window window{.sinks = 4, .window = endless};
  std::printf("a capacity of %lld\n", static_cast<long long>(window.capacity()));
}

}  // namespace
}  // namespace sinkstream

int main(int count, char** arguments) {
  const std::string_view fault = count == 2 ? arguments[1] : "";
  if (fault == "race") return sinkstream::race(), 0;
  if (fault == "leak") return sinkstream::leak(), 0;
  if (fault == "overflow") return sinkstream::overflow(), 0;
  if (fault == "undefined") return sinkstream::undefined(), 0;
  std::fprintf(stderr, "planted_faults: the fault must be race, leak, overflow or undefined.\n");
  return 2;
}
