// linear: which tile prefetches which weights.
//
// The first tile of a panel prefetches that panel, a little ahead of itself. Where a share has two
// or more tiles of kMaxTile tokens, these tiles instead share the prefetching of the next panel, so
// that memory is busy all the time and not only during the first tile. A share cannot know whether
// its thread ran the share before it, so it prefetches its first panel again.
#pragma once

#include "kernels/cpu/linear/panels.inl"
#include "kernels/cpu/linear/tile.inl"

// How many of a share's tiles have kMaxTile tokens, padding included. They come first.
int64_t prefetching_tiles(const LinearArgs& args, const Share& share) {
  if (kLanes < 16) return 0;  // these prefetch as a single tile does
  const int64_t rest = args.tokens % kMaxTile;
  const int64_t end = args.tokens / kMaxTile + (rest > 0 && tile_size(rest) == kMaxTile);
  return (end < share.end_tile ? end : share.end_tile) - share.first_tile;
}

// What the tiles of one panel prefetch. Tiles are counted within their share.
struct PanelPrefetch {
  bool own_panel = false;  // whether the first tile prefetches the panel itself
  PrefetchParts panel;     // its lines, if that tile has kMaxTile tokens: in one part
  PrefetchParts next;      // the next panel, a part for each of
  int64_t begin = 0;       // the tiles [begin, end)
  int64_t end = 0;

  PrefetchLines of_tile(int64_t tile) const {
    if (tile == 0 && own_panel) return panel.part(0);
    if (tile < begin || tile >= end) return {};
    return next.part(tile - begin);
  }
};

// `prefetchers`: see prefetching_tiles. `number`: of the panel, in [0, panels), across all parts.
PanelPrefetch panel_prefetch(const LinearArgs& args, const Share& share, int64_t prefetchers,
                             const Panel& panel, int64_t number, int64_t panels) {
  PanelPrefetch prefetch;
  prefetch.own_panel = prefetchers < 2 || number == share.first_panel;
  if (prefetchers == 0) return prefetch;
  const auto at = [&](const Panel& panel) { return panel.part->weights.panel(panel.index); };
  const auto bytes_of = [&](const Panel& panel) {
    const PackedMatrix& weights = panel.part->weights;
    return panel_bytes(weights.type, args.cols, weights.block);
  };
  const int64_t units = args.cols / kUnit;
  const int64_t bytes = bytes_of(panel);
  const Panel next = number + 1 < panels ? find_panel(args, number + 1) : Panel{};
  // Two panels and a block of inputs fit in a core's L2 together.
  const bool fits = bytes <= kCacheBytes / 2;
  prefetch.own_panel |= !fits;
  const bool together = prefetchers > 1 && fits && next.part != nullptr;
  if (prefetch.own_panel) {
    const int64_t distance =
        prefetch_distance(format_of(panel.part->weights.type), prefetches_to_l1());
    const int64_t wanted = together ? bytes - distance : bytes;  // the others prefetch the rest
    prefetch.panel = prefetch_parts(at(panel) + distance, wanted, 1, units);
  }
  if (together) {
    prefetch.begin = prefetch.own_panel ? 1 : 0;
    prefetch.end = prefetchers;
    prefetch.next = prefetch_parts(at(next), bytes_of(next), prefetch.end - prefetch.begin, units);
  }
  return prefetch;
}
