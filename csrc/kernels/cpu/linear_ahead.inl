// linear: which tile asks memory for which weights, before they are needed.
//
// The first tile that meets a panel asks for it, a little ahead of itself, where no other tile can.
// Where a share has two tiles of kMaxTile tokens or more, they ask for the next panel together, so
// that memory is at work all the time and not for the first of them alone. Nobody has asked for the
// first panel of a share or of a matrix; and behind the last one of a share, which another thread
// is likely to take, no more is asked for than a tile alone would.

// The tiles of kMaxTile tokens, padding included, among those of a share. They are its first ones.
int64_t askers_of(const LinearArgs& args, const Share& share) {
  if (kLanes < 16) return 0;  // they ask as a tile alone does
  const int64_t rest = args.tokens % kMaxTile;
  const int64_t end = args.tokens / kMaxTile + (rest > 0 && tile_size(rest) == kMaxTile);
  return (end < share.end_tile ? end : share.end_tile) - share.first_tile;
}

// What the tiles that meet a panel ask for.
struct PanelAhead {
  bool own = false;   // the first of them, for the panel itself
  LineParts panel;    // as lines: for a tile of kMaxTile tokens
  LineParts behind;   // of what is behind it
  int64_t begin = 0;  // the tiles [begin, end), counted within the share, ask for a part of that
  int64_t end = 0;

  LinesAhead of_tile(int64_t place) const {
    if (place == 0 && own) return panel.part(0);
    if (place < begin || place >= end) return {};
    return behind.part(place - begin);
  }
};

// `number`: of the panel, counted through all parts.
PanelAhead ahead_of(const Share& share, int64_t askers, const Panel& panel, int64_t number) {
  PanelAhead ahead;
  ahead.own = askers < 2 || number == share.first_panel || panel.index == 0;
  if (askers == 0) return ahead;
  const PackedMatrix& weights = panel.part->weights;
  const std::byte* const at = weights.panel(panel.index);
  const int64_t bytes = panel_bytes(weights.type, weights.cols);
  const int64_t distance = prefetch_bytes(weights.type, asks_first_cache());
  const int64_t groups = weights.cols / kGroup;
  const bool is_last = number + 1 == share.end_panel;
  if (ahead.own) ahead.panel = line_parts(at + distance, bytes, 1, groups);
  if (askers < 2 || (ahead.own && is_last)) return ahead;
  ahead.begin = ahead.own ? 1 : 0;
  ahead.end = askers;
  const int64_t wanted = is_last && distance < bytes ? distance : bytes;
  ahead.behind = line_parts(at + bytes, wanted, ahead.end - ahead.begin, groups);
  return ahead;
}
