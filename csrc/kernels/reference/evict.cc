#include <vector>

#include "kernels/reference/page_element.h"
#include "kernels/reference/reference.h"
#include "kernels/reference/rotate.h"

namespace sinkstream {

using reference::read_element;
using reference::rotate;
using reference::write_element;

void reference::evict(const EvictArgs& args, const Launch&) {
  const PageShape& shape = args.shape;
  std::vector<float> key(shape.head_dim);
  for (int64_t r = 0; r < args.rows; ++r) {
    const Slot &from = args.from[r], &to = args.to[r];
    for (int64_t h = 0; h < shape.kv_heads; ++h) {
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        key[d] = read_element(from.page + shape.key_offset(h), shape.key_element(from.row, d),
                              shape.type);
        const float value = read_element(from.page + shape.value_offset(h),
                                         shape.value_element(from.row, d), shape.type);
        write_element(to.page + shape.value_offset(h), shape.value_element(to.row, d), shape.type,
                      value);
      }
      rotate(args.rotation, 0, key.data(), shape.head_dim, key.data());
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        write_element(to.page + shape.key_offset(h), shape.key_element(to.row, d), shape.type,
                      key[d]);
      }
    }
  }
}

}  // namespace sinkstream
