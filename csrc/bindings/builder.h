// Collects a model's description and weights from Python before the model is built.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "model/weight_reader.h"
#include "model/weights.h"

namespace sinkstream {

struct ModelBuilder {
  // `fields`: DecoderSpec.as_dict() of python/sinkstream/checkpoint/spec.py.
  explicit ModelBuilder(const pybind11::dict& fields);

  DecoderSpec spec;
  WeightStore store;
  std::unique_ptr<WeightReader> reader;  // writes to the store; null before and after
};

// The number format with this name. Throws CheckpointError if there is none.
Storage storage_of(const std::string& name);

}  // namespace sinkstream
