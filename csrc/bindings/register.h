// One function for each file of this folder; core.cc calls them in order.
#pragma once

#include <pybind11/pybind11.h>

namespace sinkstream {

void register_errors(pybind11::module_& module);
void register_kernels(pybind11::module_& module);
void register_texts(pybind11::module_& module);
void register_ranked_merges(pybind11::module_& module);
void register_tokens(pybind11::module_& module);
void register_grammars(pybind11::module_& module);
void register_loop_bell(pybind11::module_& module);
void register_stream(pybind11::module_& module);
void register_session(pybind11::module_& module);
void register_builder(pybind11::module_& module);
void register_quantize(pybind11::module_& module);
void register_model(pybind11::module_& module);
// Submodules that no model uses.
void register_probes(pybind11::module_& core);
void register_testing(pybind11::module_& core);

}  // namespace sinkstream
