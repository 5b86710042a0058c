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
int64_t askers_of(const LinearArgs& args, const Share& share) {
  if (kLanes < 16) return 0;  // they ask as a tile alone does
  const int64_t rest = args.tokens % kMaxTile;
  const int64_t end = args.tokens / kMaxTile + (rest > 0 && tile_size(rest) == kMaxTile);
  return (end < share.end_tile ? end : share.end_tile) - share.first_tile;
}

// What the tiles that meet a panel ask for. Tiles are counted within their share.
struct PanelAhead {
  bool own = false;   // whether the first of them asks for the panel itself
  LineParts panel;    // which lines, if it is one of kMaxTile tokens: in one part
  LineParts next;     // the panel that is met next, for
  int64_t begin = 0;  // the tiles [begin, end), a part for each
  int64_t end = 0;

  LinesAhead of_tile(int64_t place) const {
    if (place == 0 && own) return panel.part(0);
    if (place < begin || place >= end) return {};
    return next.part(place - begin);
  }
};

// `number`: of the panel, counted through all parts, of `panels`.
PanelAhead ahead_of(const LinearArgs& args, const Share& share, int64_t askers, const Panel& panel,
                    int64_t number, int64_t panels) {
  PanelAhead ahead;
  ahead.own = askers < 2 || number == share.first_panel;
  if (askers == 0) return ahead;
  const auto at = [&](const Panel& panel) { return panel.part->weights.panel(panel.index); };
  const auto bytes_of = [&](const Panel& panel) {
    return panel_bytes(panel.part->weights.type, args.cols);
  };
  const int64_t groups = args.cols / kGroup;
  const int64_t bytes = bytes_of(panel);
  const Panel next = number + 1 < panels ? find_panel(args, number + 1) : Panel{};
  // Two panels and a block of inputs stay in a core's second cache together.
  const bool fits = bytes <= kCacheBytes / 2;
  ahead.own |= !fits;
  const bool together = askers > 1 && fits && next.part != nullptr;
  if (ahead.own) {
    const int64_t distance = prefetch_bytes(panel.part->weights.type, asks_first_cache());
    const int64_t wanted = together ? bytes - distance : bytes;  // the others ask for what follows
    ahead.panel = line_parts(at(panel) + distance, wanted, 1, groups);
  }
  if (together) {
    ahead.begin = ahead.own ? 1 : 0;
    ahead.end = askers;
    ahead.next = line_parts(at(next), bytes_of(next), ahead.end - ahead.begin, groups);
  }
  return ahead;
}
