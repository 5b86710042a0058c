// The module sinkstream._core: one file of this folder for each class.
#include <pybind11/pybind11.h>

#include "bindings/register.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The native core of sinkstream.";
  sinkstream::register_errors(module);
  sinkstream::register_kernels(module);
  sinkstream::register_texts(module);
  sinkstream::register_ranked_merges(module);
  sinkstream::register_tokens(module);
  sinkstream::register_grammars(module);
  sinkstream::register_loop_bell(module);
  sinkstream::register_stream(module);
  sinkstream::register_session(module);
  sinkstream::register_builder(module);
  sinkstream::register_quantize(module);
  sinkstream::register_model(module);
  sinkstream::register_probes(module);
  sinkstream::register_testing(module);
}
