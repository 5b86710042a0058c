#include "kernels/embedding.h"

#include "kernels/reference/reference.h"
#include "kernels/reference/weight_at.h"

namespace sinkstream::reference {

void embedding(const EmbeddingArgs& args, const Launch& launch) {
  launch.pool->run(args.tokens, [&](int64_t token, int) {
    for (int64_t col = 0; col < args.table.cols; ++col) {
      args.out[token * args.table.cols + col] =
          static_cast<float>(args.scale * weight_at(args.table, args.ids[token], col));
    }
  });
}

}  // namespace sinkstream::reference
