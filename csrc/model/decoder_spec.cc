#include "model/decoder_spec.h"

#include <cmath>

#include "common/errors.h"

namespace sinkstream {

namespace {

void require_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    throw CheckpointError(
        cat("load: `", name, "` must be in [", low, ", ", high, "], but is ", value, "."), name);
  }
}

}  // namespace

float DecoderSpec::attention_scale() const {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

CacheLayers DecoderSpec::cache_layers() const {
  return own_windows.empty() ? CacheLayers(layers) : CacheLayers::with_windows(own_windows);
}

void validate(const DecoderSpec& spec) {
  constexpr int64_t kMost = int64_t{1} << 20;  // far above any model; products stay in 64 bits
  require_range("vocab_size", spec.vocab_size, 1, kMost << 4);
  require_range("hidden_size", spec.hidden_size, 1, kMost);
  require_range("intermediate_size", spec.intermediate_size, 1, kMost);
  require_range("layers", spec.layers, 1, 4096);
  require_range("heads", spec.heads, 1, 4096);
  require_range("kv_heads", spec.kv_heads, 1, spec.heads);
  require_range("head_dim", spec.head_dim, 2, 256);
  require_range("rotary_dim", spec.rotary_dim(), 0, spec.head_dim);
  if (!spec.own_windows.empty()) {
    require_range("own_windows", std::ssize(spec.own_windows), spec.layers, spec.layers);
  }
  for (const int64_t own_window : spec.own_windows) {
    require_range("own_windows", own_window, 0, int64_t{1} << 30);
  }
  if (spec.heads % spec.kv_heads != 0) {
    throw CheckpointError(cat("load: `heads` must be a multiple of `kv_heads` (", spec.kv_heads,
                              "), but is ", spec.heads, "."),
                          "heads");
  }
  if (spec.head_dim % 2 != 0) {
    throw CheckpointError(cat("load: `head_dim` must be even, but is ", spec.head_dim, "."),
                          "head_dim");
  }
  if (!(spec.norm_eps > 0) || !std::isfinite(spec.norm_eps)) {
    throw CheckpointError(cat("load: `norm_eps` must be above 0, but is ", spec.norm_eps, "."),
                          "norm_eps");
  }
}

}  // namespace sinkstream
