// A grammar library, whose functions Python finds, and a model's vocabulary in its form.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>

#include "bindings/gil.h"
#include "bindings/register.h"
#include "common/check.h"
#include "sampling/compile_grammar.h"

namespace py = pybind11;

namespace sinkstream {

namespace {

std::vector<std::string> grammar_functions() {
  std::vector<std::string> names;
  const GrammarLibrary library;
  for_each_function(library, [&](const char* name, const auto&) { names.emplace_back(name); });
  return names;
}

GrammarLibrary library_at(const std::map<std::string, uintptr_t>& addresses) {
  GrammarLibrary library;
  for_each_function(library, [&](const char* name, auto& function) {
    const auto found = addresses.find(name);
    SINKSTREAM_CHECK(found != addresses.end() && found->second != 0, "there is no ", name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found->second);
  });
  return library;
}

}  // namespace

void register_grammars(py::module_& module) {
  module.attr("MAX_GRAMMAR_BYTES") = kMaxGrammarBytes;
  module.def("grammar_functions", &grammar_functions,
             "List the functions of llguidance that a vocabulary needs.");
  py::class_<CompiledGrammar, std::shared_ptr<CompiledGrammar>>(
      module, "CompiledGrammar", "A grammar that any number of replies may follow.");
  py::class_<GrammarVocabulary, std::shared_ptr<GrammarVocabulary>>(
      module, "GrammarVocabulary", "The tokens of a model, as llguidance needs them.")
      .def(py::init([](const std::map<std::string, uintptr_t>& functions, const TokenTable& tokens,
                       int64_t vocab_size, const std::vector<int32_t>& end_token_ids) {
             const GrammarLibrary library = library_at(functions);
             const ReleaseGil released;
             return std::make_shared<GrammarVocabulary>(library, tokens, vocab_size, end_token_ids);
           }),
           py::arg("functions"), py::arg("tokens"), py::arg("vocab_size"), py::arg("end_token_ids"))
      .def(
          "compile",
          [](const std::shared_ptr<GrammarVocabulary>& self, std::string option, std::string text) {
            const ReleaseGil released;
            return compile_grammar(self, {std::move(option), std::move(text)});
          },
          py::arg("option"), py::arg("text"),
          "Compile a grammar; `option` says what it is written in: schema, regex, grammar or "
          "tools.");
}

}  // namespace sinkstream
