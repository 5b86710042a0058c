#include <vector>

#include "kernels/reference/page_element.h"
#include "kernels/reference/reference.h"
#include "kernels/reference/rotate.h"

namespace sinkstream {

void reference::append(const AppendArgs& args, const Launch& launch) {
  const PageShape& shape = args.shape;
  launch.pool->run(args.rows, [&](int64_t r, int) {
    const Slot& slot = args.slots[r];
    std::vector<float> rotated(shape.head_dim);
    for (int64_t h = 0; h < shape.kv_heads; ++h) {
      const float* key = args.keys + r * args.key_stride + h * shape.head_dim;
      const float* value = args.values + r * args.value_stride + h * shape.head_dim;
      rotate(args.rotation, r, key, shape.head_dim, rotated.data());
      write_row(slot.page, shape, Half::kKeys, h, slot.row, rotated.data());
      write_row(slot.page, shape, Half::kValues, h, slot.row, value);
    }
  });
}

}  // namespace sinkstream
