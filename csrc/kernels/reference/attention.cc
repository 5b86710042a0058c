// One softmax over every key that a query sees, without blocks, in double.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/page_element.h"
#include "kernels/reference/reference.h"

namespace sinkstream {

using reference::read_element;

namespace {

struct Key {
  const std::byte* page;
  int64_t row;
  const float* query;  // what it is scored against: the head's query, turned for its group
};

// What the query in row `r` sees, sinks first, then rising index. `t` is its index.
std::vector<Key> visible_keys(const AttentionArgs& args, const AttentionSpan& span, int64_t r,
                              int64_t t, int64_t head) {
  const int64_t query = (r * args.heads + head) * args.shape.head_dim;
  std::vector<Key> keys;
  for (int64_t j = 0; j < std::min(span.sinks, t + 1); ++j) {
    keys.push_back({span.sink_pages[j / kPageRows], j % kPageRows, args.query_sink + query});
  }
  for (int64_t i = args.first[r]; i <= t; ++i) {
    const int64_t block = (i - span.sinks) / kPageRows;
    keys.push_back({span.window_pages[block % span.window_page_count], (i - span.sinks) % kPageRows,
                    args.query_window + query});
  }
  return keys;
}

void attend(const AttentionArgs& args, const std::vector<Key>& keys, int64_t kv_head, float* out) {
  const PageShape& shape = args.shape;
  std::vector<double> p(keys.size());
  double largest = -INFINITY;
  for (size_t k = 0; k < keys.size(); ++k) {
    const std::byte* stored = keys[k].page + shape.key_offset(kv_head);
    double score = 0;
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      score += double{keys[k].query[d]} *
               read_element(stored, shape.key_element(keys[k].row, d), shape.type);
    }
    p[k] = score * args.scale;
    largest = std::max(largest, p[k]);
  }
  double total = 0;
  for (double& x : p) total += x = std::exp(x - largest);
  for (int64_t d = 0; d < shape.head_dim; ++d) {
    double sum = 0;
    for (size_t k = 0; k < keys.size(); ++k) {
      const std::byte* stored = keys[k].page + shape.value_offset(kv_head);
      sum += p[k] * read_element(stored, shape.value_element(keys[k].row, d), shape.type);
    }
    out[d] = static_cast<float>(sum / total);
  }
}

}  // namespace

void reference::attention(const AttentionArgs& args, const Launch& launch) {
  const int64_t group = args.heads / args.shape.kv_heads;
  for (int64_t s = 0; s < args.span_count; ++s) {
    const AttentionSpan& span = args.spans[s];
    launch.pool->run(span.count * args.heads, [&](int64_t task, int) {
      const int64_t r = span.row + task / args.heads;
      const int64_t head = task % args.heads;
      const int64_t t = span.index + task / args.heads;
      attend(args, visible_keys(args, span, r, t, head), head / group,
             args.out + (r * args.heads + head) * args.shape.head_dim);
    });
  }
}

}  // namespace sinkstream
