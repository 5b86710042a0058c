// Converts an engine's counters and records to Python objects.
#pragma once

#include <pybind11/pybind11.h>

#include "engine/engine.h"

namespace sinkstream {

// Counters, gauges and histograms at one moment, as a dictionary.
pybind11::dict stats_for_python(const Engine& engine);

// The latest steps that are still kept, from number `from` on: tuples of (step, begin, forward_end,
// end, decoding, prompt_tokens, free_pages), times in seconds on the clock of time.monotonic().
pybind11::list steps_for_python(const Engine& engine, int64_t from);

// The latest phase changes of requests: (number of the first one, tuples of (request, time,
// phase, finish reason or None, prompt_tokens, generated_tokens)).
pybind11::tuple phase_changes_for_python(const Engine& engine, int64_t from);

}  // namespace sinkstream
