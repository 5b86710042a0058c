#include <vector>

#include "kernels/reference/page_element.h"
#include "kernels/reference/reference.h"
#include "kernels/reference/rotate.h"

namespace sinkstream {

void reference::append(const AppendArgs& args, const Launch& launch) {
  const PageShape& shape = args.shape;
  launch.pool->run(args.rows, [&](int64_t r, int) {
    const Slot& slot = args.slots[r];
    std::vector<float> turned(shape.head_dim);
    for (int64_t h = 0; h < shape.kv_heads; ++h) {
      const float* key = args.keys + r * args.key_stride + h * shape.head_dim;
      const float* value = args.values + r * args.value_stride + h * shape.head_dim;
      rotate(args.rotation, r, key, shape.head_dim, turned.data());
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        write_element(slot.page + shape.key_offset(h), shape.key_element(slot.row, d), shape.type,
                      turned[d]);
        write_element(slot.page + shape.value_offset(h), shape.value_element(slot.row, d),
                      shape.type, value[d]);
      }
    }
  });
}

}  // namespace sinkstream
