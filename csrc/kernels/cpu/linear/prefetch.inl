// linear: which tile asks memory for which weights, before they are needed.
//
// The first tile that meets a panel asks for it, a little ahead of itself. But where a share has
// two tiles of kMaxTile tokens or more, these ask for the panel that is met next, together and each
// for its part, so that memory is at work all the time and not for the first of them alone. A share
// cannot tell whether its thread had the one before it, and so asks for its first panel again.
#pragma once

#include "kernels/cpu/linear/panels.inl"
#include "kernels/cpu/linear/tile.inl"

// The tiles of kMaxTile tokens, padding included, among those of a share. They are its first ones.
int64_t prefetching_tiles(const LinearArgs& args, const Share& share) {
  if (kLanes < 16) return 0;  // they ask as a tile alone does
  const int64_t rest = args.tokens % kMaxTile;
  const int64_t end = args.tokens / kMaxTile + (rest > 0 && tile_size(rest) == kMaxTile);
  return (end < share.end_tile ? end : share.end_tile) - share.first_tile;
}

// What the tiles that meet a panel ask for. Tiles are counted within their share.
struct PanelPrefetch {
  bool own_panel = false;  // whether the first of them asks for the panel itself
  PrefetchParts panel;     // which lines, if it is one of kMaxTile tokens: in one part
  PrefetchParts next;      // the panel that is met next, for
  int64_t begin = 0;       // the tiles [begin, end), a part for each
  int64_t end = 0;

  PrefetchLines of_tile(int64_t tile) const {
    if (tile == 0 && own_panel) return panel.part(0);
    if (tile < begin || tile >= end) return {};
    return next.part(tile - begin);
  }
};

// `number`: of the panel, counted through all parts, of `panels`.
PanelPrefetch panel_prefetch(const LinearArgs& args, const Share& share, int64_t prefetchers,
                             const Panel& panel, int64_t number, int64_t panels) {
  PanelPrefetch prefetch;
  prefetch.own_panel = prefetchers < 2 || number == share.first_panel;
  if (prefetchers == 0) return prefetch;
  const auto at = [&](const Panel& panel) { return panel.part->weights.panel(panel.index); };
  const auto bytes_of = [&](const Panel& panel) {
    return panel_bytes(panel.part->weights.type, args.cols);
  };
  const int64_t groups = args.cols / kGroup;
  const int64_t bytes = bytes_of(panel);
  const Panel next = number + 1 < panels ? find_panel(args, number + 1) : Panel{};
  // Two panels and a block of inputs stay in a core's second cache together.
  const bool fits = bytes <= kCacheBytes / 2;
  prefetch.own_panel |= !fits;
  const bool together = prefetchers > 1 && fits && next.part != nullptr;
  if (prefetch.own_panel) {
    const int64_t distance = prefetch_distance(panel.part->weights.type, prefetches_to_l1());
    const int64_t wanted = together ? bytes - distance : bytes;  // the others ask for what follows
    prefetch.panel = prefetch_parts(at(panel) + distance, wanted, 1, groups);
  }
  if (together) {
    prefetch.begin = prefetch.own_panel ? 1 : 0;
    prefetch.end = prefetchers;
    prefetch.next = prefetch_parts(at(next), bytes_of(next), prefetch.end - prefetch.begin, groups);
  }
  return prefetch;
}
