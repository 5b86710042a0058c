// Prefetches memory by cache line, all at once or at a steady pace.
#pragma once

constexpr int64_t kLineBytes = 64;  // of a cache line

// Runs of cache lines: `lines` adjacent lines in each, `stride` bytes from one run to the next.
struct Lines {
  const std::byte* begin = nullptr;
  int64_t runs = 0;
  int64_t lines = 0;
  int64_t stride = 0;
};

// The lines that hold the bytes [begin, end) of each run.
SINKSTREAM_INLINE Lines lines_of(const std::byte* at, int64_t runs, int64_t stride, int64_t begin,
                                 int64_t end) {
  const int64_t first = begin / kLineBytes * kLineBytes;
  return {.begin = at + first,
          .runs = runs,
          .lines = divide_up(end - first, kLineBytes),
          .stride = stride};
}

// The lines that hold the bytes [begin, end), as short runs.
SINKSTREAM_INLINE Lines lines_between(const std::byte* at, int64_t begin, int64_t end) {
  constexpr int64_t kRunLines = 4;
  const int64_t bytes = kRunLines * kLineBytes;
  return {.begin = at + begin,
          .runs = divide_up(end - begin, bytes),
          .lines = kRunLines,
          .stride = bytes};
}

SINKSTREAM_INLINE void prefetch_now(const Lines& lines) {
  for (int64_t run = 0; run < lines.runs; ++run) {
    for (int64_t line = 0; line < lines.lines; ++line) {
      prefetch(lines.begin + run * lines.stride + line * kLineBytes);
    }
  }
}

// Prefetches runs at a steady pace: a processor holds few outstanding requests, and drops the rest
// of a burst.
struct PrefetchRuns {
  const std::byte* at = nullptr;  // the next run
  const std::byte* end = nullptr;
  int64_t bytes = 0;  // of a run
  int64_t stride = 0;
  int64_t pace = 0;  // runs per step

  SINKSTREAM_INLINE void step() {
    for (int64_t run = 0; run < pace && at < end; ++run, at += stride) {
      for (int64_t byte = 0; byte < bytes; byte += kLineBytes) prefetch(at + byte);
    }
  }
};

// The same for adjacent lines.
struct PrefetchLines {
  const std::byte* at = nullptr;  // the next line
  const std::byte* end = nullptr;
  int64_t pace = 0;  // bytes per step

  SINKSTREAM_INLINE void step() {
    if (at >= end) return;
    const std::byte* const until = at + pace < end ? at + pace : end;
    do {
      prefetch(at);
      at += kLineBytes;
    } while (at < until);
  }
};

// Adjacent lines in equal parts, one for each of several loops; the last parts may be shorter or
// empty.
struct PrefetchParts {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  int64_t bytes = 0;  // of a part
  int64_t pace = 0;   // bytes per step

  SINKSTREAM_INLINE PrefetchLines part(int64_t index) const {
    const std::byte* const from = begin + index * bytes;
    return {.at = from, .end = from + bytes < end ? from + bytes : end, .pace = pace};
  }
};

// The lines of `bytes` (none if below 1) in `parts` parts, for loops of `steps` steps.
SINKSTREAM_INLINE PrefetchParts prefetch_parts(const std::byte* begin, int64_t bytes, int64_t parts,
                                               int64_t steps) {
  if (bytes < 1) return {};
  const int64_t lines = divide_up(divide_up(bytes, kLineBytes), parts);
  return {.begin = begin,
          .end = begin + bytes,
          .bytes = lines * kLineBytes,
          .pace = divide_up(lines, steps > 0 ? steps : 1) * kLineBytes};
}

// Part `part` of `parts` of each run, for a loop of `steps` steps; nothing if `part` is out of
// range.
SINKSTREAM_INLINE PrefetchRuns prefetch_runs(const Lines& lines, int part, int parts,
                                             int64_t steps) {
  if (lines.runs == 0 || part >= parts) return {};
  const int64_t first = lines.lines * part / parts * kLineBytes;
  const int64_t last = lines.lines * (part + 1) / parts * kLineBytes;
  return {.at = lines.begin + first,
          .end = lines.begin + first + lines.runs * lines.stride,
          .bytes = last - first,
          .stride = lines.stride,
          .pace = divide_up(lines.runs, steps > 0 ? steps : 1)};
}
