// linear's work: the panels of all parts times the tiles of tokens, and how threads share them.
// Knows nothing of what is multiplied.
#pragma once

// The panels of all parts, counted through.
struct Panel {
  const LinearPart* part;
  int64_t index;
};

int64_t count_panels(const LinearArgs& args) {
  int64_t panels = 0;
  for (int64_t i = 0; i < args.part_count; ++i) {
    panels += panel_count(args.parts[i].weights.rows);
  }
  return panels;
}

Panel find_panel(const LinearArgs& args, int64_t index) {
  const LinearPart* part = args.parts;
  while (index >= panel_count(part->weights.rows)) {
    index -= panel_count(part->weights.rows);
    ++part;
  }
  return {part, index};
}

// Which copy of the inputs a thread reads: Note: [A token alone].
int64_t input_copy_of(const LinearArgs& args, int thread) { return args.tokens == 1 ? thread : 0; }

// Lays the inputs out by `prepare(copy, piece)`. Several tokens now, threads sharing the `pieces`;
// a token alone, which is one piece, when a thread calls what this returns.
template <typename Prepare>
auto lay_out_inputs(const LinearArgs& args, const Launch& launch, int64_t pieces, Prepare prepare) {
  const bool is_alone = args.tokens == 1;
  if (!is_alone) launch.pool->run(pieces, [&](int64_t piece, int) { prepare(0, piece); });
  return [prepare, is_alone](int thread) {
    if (is_alone) prepare(thread, 0);
  };
}

// One task: all of its panels meet all of its tiles.
struct Share {
  int64_t first_panel, end_panel;  // counted through all parts
  int64_t first_tile, end_tile;
};

// A block of tokens passes through a task's panels together: so many that their inputs stay in half
// of a core's second cache (of Zen 4; of Zen 3), but about kMinBlockTokens at least, for each block
// reads all weights from memory again, and inputs beyond the second cache come from the third.
constexpr int64_t kCacheBytes = (kLanes == 16 ? 512 : 256) * 1024;
constexpr int64_t kMinBlockTokens = 32;
// Tasks for each thread, if there is so much to do: the last one to finish is then late by a few
// per cent at most.
constexpr int64_t kTasksPerThread = 16;

// What the products of a call ask of its tasks.
struct Grain {
  int64_t tile_tokens;                // in a tile
  int64_t token_bytes;                // of the inputs of one token
  int64_t cache_bytes = kCacheBytes;  // for the inputs of a block
  int64_t panels = 1;                 // that stay together; the last task has what is left
};

// Calls `body(share, thread)` for shares that together are all panels times all tiles, and
// `begin(thread)` before a thread's first one.
template <typename Begin, typename Body>
void share_panels(const LinearArgs& args, const Launch& launch, const Grain& grain,
                  const Begin& begin, const Body& body) {
  const int64_t panels = count_panels(args);
  if (panels == 0 || args.tokens == 0) return;
  const int64_t wanted_tasks = kTasksPerThread * launch.pool->threads();
  const int64_t grains = divide_up(panels, grain.panels);
  const int64_t tiles = divide_up(args.tokens, grain.tile_tokens);
  const int64_t fitting_tokens = grain.cache_bytes / grain.token_bytes;
  const int64_t max_block = divide_up(
      fitting_tokens > kMinBlockTokens ? fitting_tokens : kMinBlockTokens, grain.tile_tokens);
  // Of one size, and more of them where panels alone do not make enough tasks.
  const int64_t min_blocks = divide_up(tiles, max_block);
  const int64_t thread_blocks = divide_up(wanted_tasks, grains);
  const int64_t block = divide_up(tiles, min_blocks > thread_blocks ? min_blocks : thread_blocks);
  const int64_t blocks = divide_up(tiles, block);
  const int64_t chunk = (grains > wanted_tasks ? grains / wanted_tasks : 1) * grain.panels;
  const int64_t chunks = divide_up(panels, chunk);
  launch.pool->run(blocks * chunks, begin, [&](int64_t task, int thread) {
    const int64_t panel = task % chunks * chunk;
    const int64_t tile = task / chunks * block;
    const Share share = {.first_panel = panel,
                         .end_panel = panel + chunk < panels ? panel + chunk : panels,
                         .first_tile = tile,
                         .end_tile = tile + block < tiles ? tile + block : tiles};
    body(share, thread);
  });
}
