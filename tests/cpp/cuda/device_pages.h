// Pages in a GPU's layout (Note [Pages on a GPU] of kernels/cuda/device_types.h), and conversion
// from the reference's layout and back, bit for bit.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cuda/device_types.h"
#include "kernels/test_stream.h"

namespace sinkstream::cuda {

// Where element `dim` of token `row` is on a GPU, in bytes from the start of the page.
inline int64_t gpu_offset(const PageShape& shape, Half half, int64_t head, int64_t row,
                          int64_t dim) {
  return reference::offset_of(shape, half, head) +
         (row * shape.head_dim + dim) * bytes_of(shape.type);
}

// Calls visit(offset in a page of the reference, offset in a page of a GPU, bytes) for every
// number and every scale.
template <typename Visit>
void for_each_number(const PageShape& shape, const Visit& visit) {
  for (const Half half : {Half::kKeys, Half::kValues}) {
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      const int64_t offset = reference::offset_of(shape, half, head);
      for (int64_t row = 0; row < kPageRows; ++row) {
        for (int64_t dim = 0; dim < shape.head_dim; ++dim) {
          visit(offset + reference::element_of(shape, half, row, dim) * bytes_of(shape.type),
                gpu_offset(shape, half, head, row, dim), bytes_of(shape.type));
        }
        if (shape.has_scales()) {
          const int64_t scale = offset + shape.scale_offset(row);
          visit(scale, scale, int64_t{sizeof(float)});
        }
      }
    }
  }
}

inline void to_gpu(const PageShape& shape, const std::byte* page, std::byte* gpu) {
  for_each_number(shape, [&](int64_t from, int64_t to, int64_t bytes) {
    std::memcpy(gpu + to, page + from, bytes);
  });
}

inline void from_gpu(const PageShape& shape, const std::byte* gpu, std::byte* page) {
  for_each_number(shape, [&](int64_t to, int64_t from, int64_t bytes) {
    std::memcpy(page + to, gpu + from, bytes);
  });
}

// A pool with the pages of some streams, in no order; unused pages are NaN.
class GpuPool {
 public:
  // layers[s]: sequence s's streams, one per layer, all with one window; null: that layer's pages
  // are NaN.
  explicit GpuPool(std::vector<std::vector<const TestStream*>> layers)
      : layers_(std::move(layers)), shape_(layers_[0].back()->spec().shape), ids_(5, -1) {
    for (const auto& streams : layers_) {
      const Window& window = streams.back()->spec().window;
      sequences_.push_back({.offset = static_cast<int64_t>(ids_.size()),
                            .sinks = static_cast<int32_t>(window.sinks),
                            .sink_pages = static_cast<int32_t>(window.sink_pages()),
                            .window_pages = static_cast<int32_t>(window.window_pages())});
      ids_.resize(ids_.size() + streams.size() * streams.back()->page_count());
    }
    // Every second page is unused.
    const auto count = static_cast<int32_t>(ids_.size());
    for (int32_t i = 5; i < count; ++i) ids_[i] = 2 * (count - i) - 1;
    bytes_ = 2 * (count - 5) * shape_.bytes();
    memory_ = nan_bytes(bytes_);
    for (SequencePages& sequence : sequences_) sequence.pool = memory_.get();
    for_each_page([&](int64_t page, const std::byte* of_stream) {
      to_gpu(shape_, of_stream, memory_.get() + page * shape_.bytes());
    });
  }

  Pages pages(int32_t layer) const {
    return {.ids = ids_.data(), .sequences = sequences_.data(), .layer = layer, .shape = shape_};
  }
  const SequencePages& sequence(int64_t s) const { return sequences_[s]; }

  // Moves blocks [block, end) of sequence s in `layer` to scratch pages; in the ring they become
  // NaN.
  void move_to_scratch(int64_t s, int32_t layer, int64_t block, int64_t end) {
    SequencePages& sequence = sequences_[s];
    scratch_ = nan_bytes((end - block) * shape_.bytes());
    sequence.scratch_block = block;
    sequence.scratch = scratch_.get();
    const int64_t of_layer = sequence.sink_pages + sequence.window_pages;
    const int32_t* ids = ids_.data() + sequence.offset + layer * of_layer + sequence.sink_pages;
    for (int64_t b = block; b < end; ++b) {
      std::byte* page = memory_.get() + ids[b % sequence.window_pages] * shape_.bytes();
      std::memcpy(scratch_.get() + (b - block) * shape_.bytes(), page, shape_.bytes());
      std::memset(page, 0xff, shape_.bytes());
    }
  }

  // Copies the pool's pages back to the streams.
  void read_back() const {
    for_each_page([&](int64_t page, const std::byte* of_stream) {
      from_gpu(shape_, memory_.get() + page * shape_.bytes(), const_cast<std::byte*>(of_stream));
    });
  }

  // Whether the unused pages are unchanged.
  bool is_intact() const {
    std::vector<bool> belongs(bytes_ / shape_.bytes());
    for_each_page([&](int64_t page, const std::byte*) { belongs[page] = true; });
    const std::vector<std::byte> untouched(shape_.bytes(), std::byte{0xff});
    for (size_t page = 0; page < belongs.size(); ++page) {
      const std::byte* memory = &memory_[page * untouched.size()];
      if (!belongs[page] && std::memcmp(memory, untouched.data(), untouched.size()) != 0)
        return false;
    }
    return true;
  }

 private:
  template <typename Visit>
  void for_each_page(const Visit& visit) const {
    for (size_t s = 0; s < layers_.size(); ++s) {
      int64_t at = sequences_[s].offset;
      for (const TestStream* stream : layers_[s]) {
        const int64_t count = layers_[s].back()->page_count();
        for (int64_t p = 0; stream != nullptr && p < count; ++p) {
          const AttentionSpan span = stream->span(0, 0, 1);
          const int64_t sinks = sequences_[s].sink_pages;
          visit(ids_[at + p], p < sinks ? span.sink_pages[p] : span.window_pages[p - sinks]);
        }
        at += count;
      }
    }
  }

  std::vector<std::vector<const TestStream*>> layers_;
  PageShape shape_;
  std::vector<int32_t> ids_;
  std::vector<SequencePages> sequences_;
  int64_t bytes_ = 0;
  Bytes memory_, scratch_;
};

}  // namespace sinkstream::cuda
