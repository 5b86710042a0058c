// A grammar that a reply follows: which tokens may come next, and whether the reply is complete.
// The grammar library decides; this owns its objects and turns its errors into ours. Knows nothing
// about logits or sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sampling/detokenizer.h"
#include "sampling/grammar_library.h"
#include "sampling/token_mask.h"

namespace sinkstream {

// A model's vocabulary in the library's form. Built once for each model; any number of threads may
// use it.
class GrammarVocabulary {
 public:
  // Throws InvalidArgument if the library refuses the vocabulary. `vocab`: the model's logits.
  GrammarVocabulary(const GrammarLibrary& library, const TokenTable& tokens, int64_t vocab,
                    const std::vector<int32_t>& end_token_ids);
  ~GrammarVocabulary() { library_.free_tokenizer(tokenizer_); }
  GrammarVocabulary(const GrammarVocabulary&) = delete;
  GrammarVocabulary& operator=(const GrammarVocabulary&) = delete;

  const GrammarLibrary& library() const { return library_; }
  const GrammarLibrary::Tokenizer* tokenizer() const { return tokenizer_; }
  int64_t vocab() const { return vocab_; }

 private:
  const GrammarLibrary library_;
  const int64_t vocab_;
  GrammarLibrary::Tokenizer* tokenizer_ = nullptr;
};

// What a grammar is written in, and the option that sets it.
struct GrammarSource {
  std::string option;  // "schema", "regex", "grammar" or "tools"
  std::string text;    // without a zero byte
};

constexpr int64_t kMaxGrammarBytes = 64 * 1024;
// The matcher keeps up to 200 bytes for each token of a reply: at most 13 MB.
constexpr int64_t kMaxGrammarTokens = 65536;

// The state of one reply. One thread at a time.
class Grammar {
 public:
  // Compiles the source and computes the first mask: compile_grammar.h limits the time. Throws
  // InvalidArgument if it is too long or not valid.
  Grammar(std::shared_ptr<const GrammarVocabulary> vocabulary, GrammarSource source);
  ~Grammar() { vocabulary_->library().free_matcher(matcher_); }
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;
  // A second one in the same state.
  std::unique_ptr<Grammar> clone() const { return std::unique_ptr<Grammar>(new Grammar(this)); }

  const std::string& option() const { return option_; }

  // Computes what `allowed` returns, if that is not known yet. An error is kept for `allowed`.
  void prepare() noexcept;
  // The tokens that may come next, until `accept`. Throws InvalidArgument if the library fails.
  TokenMask allowed();
  // Appends a token. Throws InvalidArgument if the library fails.
  void accept(int32_t token);
  // Whether nothing but an end token may follow, or an end token was accepted.
  bool is_complete() const { return vocabulary_->library().is_stopped(matcher_); }

 private:
  explicit Grammar(const Grammar* of);
  [[noreturn]] void fail() const;

  const std::shared_ptr<const GrammarVocabulary> vocabulary_;
  const std::string option_;
  GrammarLibrary::Matcher* matcher_ = nullptr;
  std::vector<uint32_t> mask_;  // [mask_words(vocab)]
  bool is_prepared_ = false;
  bool has_failed_ = false;
};

}  // namespace sinkstream
