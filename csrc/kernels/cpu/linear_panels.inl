// linear's work: the panels of all parts times the tiles of tokens, and how threads share them.
// Knows nothing of what is multiplied.

// The panels of all parts, counted through.
struct Panel {
  const LinearPart* part;
  int64_t index;
};

Panel find_panel(const LinearArgs& args, int64_t index) {
  const LinearPart* part = args.parts;
  while (index >= panel_count(part->weights.rows)) {
    index -= panel_count(part->weights.rows);
    ++part;
  }
  return {part, index};
}

// One task: all of its panels meet all of its tiles.
struct Share {
  int64_t first_panel, end_panel;  // counted through all parts
  int64_t first_tile, end_tile;
};

// Calls `body` for shares that together are all panels times all `tiles`. `tile_bytes`: of the
// inputs of one tile.
template <typename Body>
void share_panels(const LinearArgs& args, const Launch& launch, int64_t tiles, int64_t tile_bytes,
                  const Body& body) {
  int64_t panels = 0;
  for (int64_t i = 0; i < args.part_count; ++i) {
    panels += panel_count(args.parts[i].weights.rows);
  }
  // A task takes so many tiles that their inputs stay in a core's own cache while its panels pass.
  constexpr int64_t kCacheBytes = 256 * 1024;
  const int64_t block = tile_bytes < kCacheBytes ? kCacheBytes / tile_bytes : 1;
  const int64_t blocks = (tiles + block - 1) / block;
  // Sixteen tasks a thread: the last one to finish is late by a few per cent at most.
  const int64_t wanted = int64_t{16} * launch.pool->threads();
  const int64_t chunk = panels > wanted ? panels / wanted : 1;
  const int64_t chunks = (panels + chunk - 1) / chunk;
  launch.pool->run(blocks * chunks, [&](int64_t task, int) {
    const int64_t panel = task % chunks * chunk;
    const int64_t tile = task / chunks * block;
    body({.first_panel = panel,
          .end_panel = panel + chunk < panels ? panel + chunk : panels,
          .first_tile = tile,
          .end_tile = tile + block < tiles ? tile + block : tiles});
  });
}
