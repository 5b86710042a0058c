#include "model/layer_views.h"

#include <algorithm>
#include <limits>

namespace sinkstream {

LayerViews::LayerViews(const DecoderSpec& spec) {
  const CacheLayers layers = spec.cache_layers();
  for (int64_t layer = 0; layer < spec.layers(); ++layer) {
    if (spec.block(layer).recurrent() != nullptr) {
      of_layer_.push_back(std::numeric_limits<size_t>::max());
      continue;
    }
    const RopeSpec& its_rope = spec.block(layer).attention().rope;
    auto rope = std::ranges::find(ropes_, its_rope, &Rope::spec);
    if (rope == ropes_.end()) {
      rope = ropes_.insert(
          ropes_.end(), {.spec = its_rope,
                         .angles = Angles(its_rope.inverse_frequencies, its_rope.attention_factor),
                         .shift_angles = Angles(its_rope.inverse_frequencies)});
    }
    const View its_view = {.group = layers.layer_in_group(layer).group,
                           .rope = static_cast<size_t>(rope - ropes_.begin())};
    auto view = std::ranges::find_if(views_, [&](const View& other) {
      return other.group == its_view.group && other.rope == its_view.rope;
    });
    if (view == views_.end()) view = views_.insert(views_.end(), its_view);
    of_layer_.push_back(static_cast<size_t>(view - views_.begin()));
  }
  const auto take_floats = [&](int64_t pairs) {
    const int64_t before = floats_per_row_;
    floats_per_row_ += 2 * pairs;
    return before;
  };
  for (Rope& rope : ropes_) rope.before = take_floats(rope.pairs());
  for (View& view : views_) view.before = take_floats(rope_of(view).pairs());
}

}  // namespace sinkstream
