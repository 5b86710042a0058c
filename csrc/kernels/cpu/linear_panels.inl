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

// A task takes so many tokens that their inputs stay in half of a core's second cache (of Zen 4; of
// Zen 3) while its panels pass. Where rows are long, still so many: each time a panel passes it
// comes from memory, and inputs that do not stay in the second cache only from the third.
constexpr int64_t kCacheBytes = (kLanes == 16 ? 512 : 256) * 1024;
constexpr int64_t kLeastTokens = 32;

// Calls `body` for shares that together are all panels times all tiles of `tile_tokens`.
// `token_bytes`: of the inputs of one token.
template <typename Body>
void share_panels(const LinearArgs& args, const Launch& launch, int64_t tile_tokens,
                  int64_t token_bytes, const Body& body) {
  int64_t panels = 0;
  for (int64_t i = 0; i < args.part_count; ++i) {
    panels += panel_count(args.parts[i].weights.rows);
  }
  const int64_t fitting = kCacheBytes / token_bytes;
  const int64_t tokens = fitting > kLeastTokens ? fitting : kLeastTokens;
  const int64_t block = tokens > tile_tokens ? tokens / tile_tokens : 1;
  const int64_t tiles = (args.tokens + tile_tokens - 1) / tile_tokens;
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
