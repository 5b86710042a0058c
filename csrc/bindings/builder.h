// Collects a model's description and weights from Python before the model is built.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "model/panel_file.h"
#include "model/weight_reader.h"
#include "model/weights.h"

namespace sinkstream {

struct ModelBuilder {
  // `fields`: DecoderSpec.as_dict() of python/sinkstream/checkpoint/spec.py.
  explicit ModelBuilder(const pybind11::dict& fields);

  DecoderSpec spec;
  WeightStore store;
  // At most one of these fills the store; both are null before and after.
  std::unique_ptr<WeightReader> reader;
  std::unique_ptr<PanelReader> panels;
};

// Where panels are written, from Python's (descriptor, part, path, mark, key, label). The result
// has a descriptor of its own.
PanelTarget panel_target_of(const pybind11::tuple& target);

// The number format with this name. Throws CheckpointError if there is none.
Storage storage_of(const std::string& name);

}  // namespace sinkstream
