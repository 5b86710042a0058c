// Guesses what a sequence says next, and how many guesses a step should verify. Pure: token ids and
// numbers in, guesses out. Knows nothing about models, memory or clocks.
//
// Note: [Drafts]
// A decode row may have drafts: guesses of the tokens after its own. The step computes the logits
// after each, and the engine samples them in order, as always, until a sample differs from the
// guess. A row does not depend on its company, and a draw depends on the seed and the index only,
// so the reply is bit for bit the one without drafts, whatever is guessed: drafts change how long a
// reply takes, and nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace sinkstream {

// Guesses look at this many of the last tokens, the longest first. Other lengths and constants are
// compared by benchmarks/draft_policies.py.
inline constexpr std::array<int64_t, 4> kNgrams = {12, 6, 3, 2};
inline constexpr int64_t kNgramEntries = 1 << 19;  // 4 MiB

// The last tokens of a text, as many as a guess looks at.
class TextTail {
 public:
  // Texts of different salts never learn from each other.
  explicit TextTail(uint64_t salt = 0) : salt_(salt) {}

  void append(int32_t token) {
    last_[static_cast<size_t>(length_ % kNgrams.front())] = token;
    ++length_;
  }
  // A hash of the last `count` tokens and the salt; 0: there are not as many.
  uint64_t hash(int64_t count) const;

 private:
  uint64_t salt_;
  int64_t length_ = 0;
  std::array<int32_t, kNgrams.front()> last_ = {};
};

struct Guess {
  int32_t token = 0;
  int32_t ngram = 0;  // index into kNgrams of what was found
};

// What followed the last tokens of all texts so far, in memory of a fixed size: what comes later
// overwrites what hashes to the same entry. It remembers what has left the window, too.
class NgramPool {
 public:
  // `entries`: a power of two, of 8 bytes each. None: it guesses nothing.
  explicit NgramPool(int64_t entries);

  int64_t bytes() const { return static_cast<int64_t>(entries_.size() * sizeof(uint64_t)); }
  // Appends a token to a text.
  void learn(TextTail* tail, int32_t token);
  // Appends to `guesses` at most `most` tokens that may follow the text, until none is known.
  void guess(TextTail tail, int64_t most, std::vector<Guess>* guesses) const;

 private:
  std::vector<uint64_t> entries_;  // 32 bits of the hash, not 0, and the token; 0: empty
};

// How often guesses have been right lately: of one sequence, or of all.
class Acceptance {
 public:
  // What is expected before anything is known: what holds for `all`, or a constant.
  explicit Acceptance(const Acceptance* all = nullptr) : all_(all) {}

  // A row's guesses were verified: the first `accepted` were right, and then one was wrong, if
  // there was one more.
  void count(std::span<const Guess> guesses, int64_t accepted);
  // The probability that a guess is right, if those before it were.
  double of(const Guess& guess) const;

 private:
  struct Share {
    double right = 0, all = 0;  // of the last about kRemembered
  };
  const Acceptance* all_;
  std::array<Share, kNgrams.size()> shares_ = {};
};

// What a step takes, by its rows; learned from steps.
class StepPrices {
 public:
  void learn(int64_t rows, double seconds);
  // Only ratios of two prices mean something. Where no step is known, a third of a step of one row
  // is assumed for each further row.
  double of(int64_t rows) const;

 private:
  struct Mean {
    double seconds = 0, rows = 0, weight = 0;
  };
  std::array<Mean, 8> means_ = {};  // of 1, 2, 3 to 4, 5 to 8 rows, and so on
};

// A step that is being planned.
struct StepValue {
  int64_t rows = 0;
  double tokens = 0;      // that it is expected to give
  double most_price = 0;  // no drafts beyond it: other streams wait, too
};

// How many of a row's guesses make tokens come fastest, given the rest of the step. Adds them to
// it.
int64_t drafts_worth(std::span<const Guess> guesses, const Acceptance& acceptance,
                     const StepPrices& prices, StepValue* step);

// By how much drafts must make tokens come faster to be worth their step.
inline constexpr double kLeastGain = 1.05;
// A step of several streams takes at most this many times as long with drafts as without.
inline constexpr double kMostSlowdown = 1.15;
// After this number of steps with drafts, one has none: what such a step takes is learned anew.
inline constexpr int64_t kDraftedSteps = 64;

}  // namespace sinkstream
