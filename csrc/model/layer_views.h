// Which angles the layers of a model read. Layers that keep the same tokens (a cache group) and
// rotate them alike share a view: Note [Views].
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/angles.h"
#include "model/decoder_spec.h"

namespace sinkstream {

// Note: [Views]
// The angles of a token's index depend on the rotary scheme alone; those of its rank on the cache
// group, too. A forward pass computes the former once for each rope, the latter once for each view.
class LayerViews {
 public:
  // One rotary scheme.
  struct Rope {
    RopeSpec spec;
    Angles angles;
    Angles shift_angles;  // without attention factor: for keys that move
    int64_t before = 0;   // floats per row before its cosines, of floats_per_row()

    int64_t pairs() const { return angles.pairs(); }
  };

  struct View {
    int64_t group = 0;   // of CacheLayers
    size_t rope = 0;     // of ropes()
    int64_t before = 0;  // as for Rope
  };

  explicit LayerViews(const DecoderSpec& spec);

  const std::vector<Rope>& ropes() const { return ropes_; }  // all different
  const std::vector<View>& views() const { return views_; }  // likewise
  // Of a layer with attention, like the next two.
  size_t index_of(int64_t layer) const { return of_layer_[static_cast<size_t>(layer)]; }
  const View& view_of(int64_t layer) const { return views_[index_of(layer)]; }
  const Rope& rope_of(const View& view) const { return ropes_[view.rope]; }
  const Rope& rope_of(int64_t layer) const { return rope_of(view_of(layer)); }

  // Cosines and sines of all ropes, then of all views.
  int64_t floats_per_row() const { return floats_per_row_; }

 private:
  std::vector<Rope> ropes_;
  std::vector<View> views_;
  std::vector<size_t> of_layer_;  // [layers]; of those without attention, no view's
  int64_t floats_per_row_ = 0;
};

}  // namespace sinkstream
