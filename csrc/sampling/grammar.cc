#include "sampling/grammar.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/check.h"
#include "common/errors.h"

namespace sinkstream {

namespace {

// Begins the bytes of a control token, so that its text matches no string of a grammar.
constexpr char kControlMark = '\xff';
constexpr size_t kMaxShownError = 300;

// The library's kind of grammar for each option.
const char* kind_of(const std::string& option) {
  if (option == "schema") return "json_schema";
  if (option == "regex") return "regex";
  SINKSTREAM_CHECK(option == "grammar" || option == "tools", "there is no grammar of kind ",
                   option);
  return "lark";
}

// The library's message as part of a sentence: the line that names the error.
std::string shown(const char* message) {
  std::string_view text = message == nullptr ? "no reason is given" : message;
  const std::string_view mark = "\nerror: ";  // in a message about a regular expression
  if (const size_t at = text.find(mark); at != text.npos) text.remove_prefix(at + mark.size());
  text = text.substr(0, text.find('\n'));
  while (!text.empty() && (text.back() == '.' || text.back() == ' ')) text.remove_suffix(1);
  if (text.size() <= kMaxShownError) return std::string(text);
  size_t end = kMaxShownError;  // not within a character
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "…";
}

void check_source(const GrammarSource& source) {
  const auto size = static_cast<int64_t>(source.text.size());
  if (size > kMaxGrammarBytes) {
    throw InvalidArgument(cat("stream: `", source.option, "` must have at most ", kMaxGrammarBytes,
                              " bytes, but has ", size, "."),
                          source.option);
  }
  if (source.text.find('\0') != source.text.npos) {
    throw InvalidArgument(
        cat("stream: `", source.option, "` must not contain a zero byte, but does."),
        source.option);
  }
}

}  // namespace

GrammarVocabulary::GrammarVocabulary(const GrammarLibrary& library, const TokenTable& tokens,
                                     int64_t vocab, const std::vector<int32_t>& end_token_ids)
    : library_(library), vocab_(vocab) {
  std::string bytes;
  std::vector<uint32_t> lengths;
  for (int32_t id = 0; id < vocab; ++id) {
    const size_t before = bytes.size();
    if (tokens.is_special(id)) bytes += kControlMark;
    bytes += tokens.bytes(id);
    lengths.push_back(static_cast<uint32_t>(bytes.size() - before));
  }
  const std::vector<uint32_t> ends(end_token_ids.begin(), end_token_ids.end());
  GrammarLibrary::TokenizerInit init;
  init.vocab = static_cast<uint32_t>(vocab);
  init.end_token = ends.empty() ? GrammarLibrary::kNoToken : ends.front();
  init.token_lengths = lengths.data();
  init.token_bytes = reinterpret_cast<const uint8_t*>(bytes.data());
  if (ends.size() > 1) {
    init.more_end_tokens = ends.data() + 1;
    init.more_end_token_count = static_cast<uint32_t>(ends.size() - 1);
  }
  char error[512] = "";
  tokenizer_ = library_.new_tokenizer(&init, error, sizeof(error));
  if (tokenizer_ == nullptr) {
    throw InvalidArgument(
        cat("stream: a grammar needs a vocabulary that llguidance can use, but "
            "llguidance refuses this one: ",
            shown(error), "."));
  }
}

Grammar::Grammar(std::shared_ptr<const GrammarVocabulary> vocabulary, GrammarSource source)
    : vocabulary_(std::move(vocabulary)),
      option_(source.option),
      mask_(static_cast<size_t>(mask_words(vocabulary_->vocab()))) {
  check_source(source);
  const GrammarLibrary& library = vocabulary_->library();
  const GrammarLibrary::MatcherInit init{.tokenizer = vocabulary_->tokenizer()};
  matcher_ = library.new_matcher(&init, kind_of(option_), source.text.c_str());
  if (const char* error = library.error(matcher_); error != nullptr) {
    const std::string reason = shown(error);
    library.free_matcher(matcher_);
    throw InvalidArgument(
        cat("stream: `", option_, "` must be valid for llguidance, but is not: ", reason, "."),
        option_);
  }
  try {
    const size_t bytes = library.mask_bytes(matcher_);
    SINKSTREAM_CHECK(bytes == mask_.size() * sizeof(uint32_t), "a mask of ", vocabulary_->vocab(),
                     " tokens has ", bytes, " bytes");
    allowed();
  } catch (...) {
    library.free_matcher(matcher_);
    throw;
  }
}

Grammar::Grammar(const Grammar* of)
    : vocabulary_(of->vocabulary_),
      option_(of->option_),
      mask_(of->mask_),
      is_prepared_(of->is_prepared_),
      has_failed_(of->has_failed_) {
  matcher_ = vocabulary_->library().clone_matcher(of->matcher_);
}

void Grammar::prepare() noexcept {
  if (is_prepared_) return;
  is_prepared_ = true;
  const size_t bytes = mask_.size() * sizeof(uint32_t);
  has_failed_ = vocabulary_->library().compute_mask(matcher_, mask_.data(), bytes) != 0;
}

TokenMask Grammar::allowed() {
  prepare();
  if (has_failed_) fail();
  if (std::all_of(mask_.begin(), mask_.end(), [](uint32_t word) { return word == 0; })) {
    throw InvalidArgument(cat("stream: `", option_,
                              "` must allow some token of the model's vocabulary to come next, but "
                              "allows none."),
                          option_);
  }
  return mask_;
}

void Grammar::accept(int32_t token) {
  is_prepared_ = false;
  if (vocabulary_->library().consume(matcher_, static_cast<uint32_t>(token)) != 0) fail();
}

void Grammar::fail() const {
  throw InvalidArgument(
      cat("stream: `", option_,
          "` must be within the limits of llguidance, but llguidance failed: ",
          shown(vocabulary_->library().error(matcher_)), ". Other streams continue."),
      option_);
}

}  // namespace sinkstream
