// The functions of llguidance 1.9 that the core calls, and the structs that they read, in
// declarations of our own. They come as addresses: Python finds the library
// (python/sinkstream/structured/grammars.py), and the core links none. Knows nothing about what
// they compute.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sinkstream {

struct GrammarLibrary {
  struct Tokenizer;
  struct Matcher;

  // Fields that are not set keep the library's neutral value.
  struct TokenizerInit {
    size_t struct_size = sizeof(TokenizerInit);
    uint32_t vocab = 0;
    uint32_t end_token = 0;                   // below `vocab`, or kNoToken
    const uint32_t* token_lengths = nullptr;  // [vocab]
    const uint8_t* token_bytes = nullptr;     // of all tokens, end to end
    const char* tokenizer_json = nullptr;
    bool tokenizes_strings_only = false;
    size_t (*tokenize)(const void*, const uint8_t*, size_t, uint32_t*, size_t) = nullptr;
    bool tokenizes_greedily = true;  // instead of by `tokenize`; only forced tokens would need it
    const void* tokenize_argument = nullptr;
    const char* const* slices = nullptr;        // null: the library's own
    const uint32_t* more_end_tokens = nullptr;  // [more_end_token_count]
    uint32_t more_end_token_count = 0;
  };
  static constexpr uint32_t kNoToken = 0xFFFFFFFF;

  // 0 is no default: it allows nothing. With these, a mask takes 0.2 s at worst, and a regular
  // expression of 60 kB is refused instead of taking 10 s for each.
  struct Limits {
    size_t items_per_row = 2000;
    uint64_t lexer_fuel = 100'000;       // to build the lexer
    uint64_t step_lexer_fuel = 200'000;  // for one mask
    size_t step_items = 50'000;          // for one mask
    size_t lexer_states = 16'384;        // up to 2 kB each
    size_t grammar_symbols = 500'000;
    bool precomputes_large_lexemes = true;
    bool has_verbose_errors = false;  // which would repeat the reply
  };

  struct MatcherInit {
    const Tokenizer* tokenizer = nullptr;
    uint32_t log_level = 0;
    uint32_t stderr_log_level = 0;
    bool forces_tokens = false;
    bool backtracks = false;
    Limits limits = {};
  };

  // Functions that return int32_t return 0, or −1 for an error.
  const char* (*version)() = nullptr;
  Tokenizer* (*new_tokenizer)(const TokenizerInit*, char* error, size_t error_size) = nullptr;
  void (*free_tokenizer)(Tokenizer*) = nullptr;
  Matcher* (*new_matcher)(const MatcherInit*, const char* kind, const char* source) = nullptr;
  Matcher* (*clone_matcher)(const Matcher*) = nullptr;  // which shares nothing with it
  void (*free_matcher)(Matcher*) = nullptr;
  const char* (*error)(Matcher*) = nullptr;  // null: none
  size_t (*mask_bytes)(const Matcher*) = nullptr;
  int32_t (*compute_mask)(Matcher*, uint32_t* mask, size_t mask_bytes) = nullptr;
  int32_t (*consume)(Matcher*, uint32_t token) = nullptr;
  bool (*is_stopped)(const Matcher*) = nullptr;
};

// Calls visit(name, function) for every function, with its name in the library.
template <typename Library, typename Visit>
void for_each_function(Library& library, Visit&& visit) {
  visit("llg_get_version", library.version);
  visit("llg_new_tokenizer_v2", library.new_tokenizer);
  visit("llg_free_tokenizer", library.free_tokenizer);
  visit("llg_new_matcher", library.new_matcher);
  visit("llg_clone_matcher", library.clone_matcher);
  visit("llg_free_matcher", library.free_matcher);
  visit("llg_matcher_get_error", library.error);
  visit("llg_matcher_get_mask_byte_size", library.mask_bytes);
  visit("llg_matcher_compute_mask_into", library.compute_mask);
  visit("llg_matcher_consume_token", library.consume);
  visit("llg_matcher_is_stopped", library.is_stopped);
}

}  // namespace sinkstream
