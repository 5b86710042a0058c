#include <cstring>
#include <vector>

#include "kernels/reference/page_element.h"
#include "kernels/reference/reference.h"
#include "kernels/reference/rotate.h"

namespace sinkstream {

using reference::Half;
using reference::read_element;
using reference::rotate;
using reference::write_row;

namespace {

// A value is copied as stored: rounding it again could change it.
void move_value(const PageShape& shape, int64_t head, const Slot& from, const Slot& to) {
  const std::byte* source = from.page + shape.value_offset(head);
  std::byte* target = to.page + shape.value_offset(head);
  const int64_t bytes = bytes_of(shape.type);
  for (int64_t d = 0; d < shape.head_dim; ++d) {
    std::memcpy(target + shape.value_element(to.row, d) * bytes,
                source + shape.value_element(from.row, d) * bytes, bytes);
  }
  if (shape.has_scales()) {
    std::memcpy(target + shape.scale_offset(to.row), source + shape.scale_offset(from.row),
                sizeof(float));
  }
}

}  // namespace

void reference::evict(const EvictArgs& args, const Launch&) {
  const PageShape& shape = args.shape;
  std::vector<float> key(shape.head_dim);
  for (int64_t r = 0; r < args.rows; ++r) {
    const Slot &from = args.from[r], &to = args.to[r];
    for (int64_t h = 0; h < shape.kv_heads; ++h) {
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        key[d] = read_element(from.page, shape, Half::kKeys, h, from.row, d);
      }
      rotate(args.rotation, 0, key.data(), shape.head_dim, key.data());
      write_row(to.page, shape, Half::kKeys, h, to.row, key.data());
      move_value(shape, h, from, to);
    }
  }
}

}  // namespace sinkstream
