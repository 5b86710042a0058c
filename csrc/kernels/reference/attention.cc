// One softmax in double over all keys that a query sees, without blocks.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/page_element.h"
#include "kernels/reference/reference.h"

namespace sinkstream {

using reference::Half;
using reference::read_element;

namespace {

struct Key {
  const std::byte* page;
  int64_t row;
  DType type;
  const float* query;  // the head's query, rotated for sinks or for the window
  int64_t distance;    // in positions of the cache
};

// What the query in row `r` sees: sinks first, then by ascending index. `t` is its index.
std::vector<Key> visible_keys(const AttentionArgs& args, const AttentionSpan& span, int64_t r,
                              int64_t t, int64_t head) {
  const int64_t query = (r * args.heads + head) * args.shape.head_dim;
  const int64_t rank = args.slopes == nullptr ? 0 : args.rank[r];
  std::vector<Key> keys;
  for (int64_t j = 0; j < std::min(span.sinks, t + 1); ++j) {
    keys.push_back({.page = span.sink_pages[j / kPageRows],
                    .row = j % kPageRows,
                    .type = args.sink_type,
                    .query = args.query_sink + query,
                    .distance = rank - j});
  }
  for (int64_t i = args.first[r]; i <= t; ++i) {
    const int64_t block = (i - span.sinks) / kPageRows;
    keys.push_back({.page = span.window_pages[block % span.window_page_count],
                    .row = (i - span.sinks) % kPageRows,
                    .type = args.shape.type,
                    .query = args.query_window + query,
                    .distance = t - i});
  }
  return keys;
}

PageShape shape_of(const AttentionArgs& args, const Key& key) {
  return {.kv_heads = args.shape.kv_heads, .head_dim = args.shape.head_dim, .type = key.type};
}

double score_of(const AttentionArgs& args, const Key& key, int64_t head) {
  const PageShape shape = shape_of(args, key);
  const int64_t kv_head = head / (args.heads / shape.kv_heads);
  double score = 0;
  for (int64_t d = 0; d < shape.head_dim; ++d) {
    score += double{key.query[d]} * read_element(key.page, shape, Half::kKeys, kv_head, key.row, d);
  }
  score *= args.scale;
  if (args.soft_cap > 0) score = args.soft_cap * std::tanh(score / args.soft_cap);
  if (args.slopes != nullptr) {
    score -= double{args.slopes[head]} * static_cast<double>(key.distance);
  }
  return score;
}

double value_of(const AttentionArgs& args, const Key& key, int64_t kv_head, int64_t dim) {
  return read_element(key.page, shape_of(args, key), Half::kValues, kv_head, key.row, dim);
}

void attend(const AttentionArgs& args, const std::vector<Key>& keys, int64_t head, float* out) {
  std::vector<double> p(keys.size());
  double largest = args.sink_logits == nullptr ? -INFINITY : args.sink_logits[head];
  for (size_t k = 0; k < keys.size(); ++k) {
    p[k] = score_of(args, keys[k], head);
    largest = std::max(largest, p[k]);
  }
  double total = args.sink_logits == nullptr ? 0 : std::exp(args.sink_logits[head] - largest);
  for (double& x : p) total += x = std::exp(x - largest);
  const int64_t kv_head = head / (args.heads / args.shape.kv_heads);
  for (int64_t d = 0; d < args.shape.head_dim; ++d) {
    double sum = 0;
    for (size_t k = 0; k < keys.size(); ++k) sum += p[k] * value_of(args, keys[k], kv_head, d);
    out[d] = static_cast<float>(sum / total);
  }
}

}  // namespace

void reference::attention(const AttentionArgs& args, const Launch& launch) {
  for (int64_t s = 0; s < args.span_count; ++s) {
    const AttentionSpan& span = args.spans[s];
    launch.pool->run(span.count * args.heads, [&](int64_t task, int) {
      const int64_t r = span.row + task / args.heads;
      const int64_t head = task % args.heads;
      const int64_t t = span.index + task / args.heads;
      attend(args, visible_keys(args, span, r, t, head), head,
             args.out + (r * args.heads + head) * args.shape.head_dim);
    });
  }
}

}  // namespace sinkstream
