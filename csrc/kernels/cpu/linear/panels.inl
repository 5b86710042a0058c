// linear's work: panels of all parts times tiles of tokens, and how threads share it. Does not know
// what is multiplied.
#pragma once

// For for_each_kind: the address of an inline function would leave a weak symbol.
constexpr auto kAreIntegers = [](WeightType type) { return are_integers(type); };

// Calls `body(run, is_first_kind)` for runs of adjacent parts of one of two kinds of weights.
template <typename IsFirstKind, typename Body>
void for_each_kind(const LinearArgs& args, const IsFirstKind& is_first_kind, const Body& body) {
  for (int64_t first = 0, end = 0; first < args.part_count; first = end) {
    const bool is_first = is_first_kind(args.parts[first].weights.type);
    while (end < args.part_count && is_first_kind(args.parts[end].weights.type) == is_first) ++end;
    LinearArgs run = args;
    run.parts = args.parts + first;
    run.part_count = end - first;
    body(run, is_first);
  }
}

// Calls `body(run)` for runs of adjacent parts that read the same tokens, which are then the run's
// own: Note: [Inputs of a part]. What `body` calls may do so again.
template <typename Body>
void for_each_input(const LinearArgs& args, const Body& body) {
  for (int64_t first = 0, end = 0; first < args.part_count; first = end) {
    const LinearPart& part = args.parts[first];
    const auto reads_the_same = [&](const LinearPart& other) {
      if (other.input != part.input || part.input == nullptr) return other.input == part.input;
      return other.input_stride == part.input_stride && other.tokens == part.tokens &&
             other.row_of == part.row_of;
    };
    while (end < args.part_count && reads_the_same(args.parts[end])) ++end;
    LinearArgs run = args;
    if (part.input != nullptr) {
      run.input = part.input;
      run.input_stride = part.input_stride;
      run.tokens = part.tokens;
      run.row_of = part.row_of;
    }
    run.parts = &part;
    run.part_count = end - first;
    body(run);
  }
}

// One token's inputs.
const float* input_of_token(const LinearArgs& args, int64_t token) {
  return args.input + (args.row_of == nullptr ? token : args.row_of[token]) * args.input_stride;
}

// A panel of one part. Panels are numbered across all parts.
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

// Which copy of the inputs a thread reads: Note: [Single token].
int64_t input_copy_of(const LinearArgs& args, int thread) { return args.tokens == 1 ? thread : 0; }

// Lays out the inputs with `prepare(copy, piece)`. With several tokens, does so now, and threads
// share the `pieces`. With a single token, which is one piece, does so when a thread calls the
// returned function.
template <typename Prepare>
auto lay_out_inputs(const LinearArgs& args, const Launch& launch, int64_t pieces, Prepare prepare) {
  const bool is_alone = args.tokens == 1;
  if (!is_alone) launch.pool->run(pieces, [&](int64_t piece, int) { prepare(0, piece); });
  return [prepare, is_alone](int thread) {
    if (is_alone) prepare(thread, 0);
  };
}

// One task: each of its panels is multiplied by each of its tiles.
struct Share {
  int64_t first_panel, end_panel;  // numbered across all parts
  int64_t first_tile, end_tile;
};

// A task's panels are multiplied by a block of tokens at a time. The block's inputs fit in half of
// a core's L2 (on Zen 4, or on Zen 3), but it has at least about kMinBlockTokens: each block reads
// all weights from memory again, and inputs beyond L2 still come from L3.
constexpr int64_t kCacheBytes = (kLanes == 16 ? 512 : 256) * 1024;
constexpr int64_t kMinBlockTokens = 32;
// Tasks per thread, if there is enough work: the last one to finish is then at most a few percent
// late.
constexpr int64_t kTasksPerThread = 16;

// What a kernel requires of the tasks.
struct Grain {
  int64_t tile_tokens;                // per tile
  int64_t token_bytes;                // of one token's inputs
  int64_t cache_bytes = kCacheBytes;  // for a block's inputs
  int64_t panels = 1;                 // that stay together; the last task has the rest
};

// Calls `body(share, thread)` for shares that together cover all panels times all tiles, and
// `begin(thread)` before a thread's first share.
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
  // Blocks of equal size; more of them where panels alone make too few tasks.
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
