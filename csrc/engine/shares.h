// Shares: sequences with the same key, such as those of one client, are one share, and shares are
// served one after another. Knows nothing about models or time.
//
// Note: [Fair shares]
// Two things are shared. A step's tokens go to the share that has had the fewest, by its weight
// (the virtual token counter of Sheng et al., OSDI 2024): a flood of prompts of one share halves
// the speed of another's, and does no more. Seats and memory go to the share that runs the fewest
// sequences, by its weight. A share that was idle has no claim to what it did not use: it joins at
// the count of the least served one, and its count is never lower than the highest by more
// than a long prompt.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace sinkstream {

// What a plan reads of a share.
struct ShareView {
  double weight = 1;    // above 0
  double served = 0;    // tokens divided by the weight, since the share with the fewest had 0
  int64_t running = 0;  // sequences with memory
};

// A waiting sequence as one that may be admitted next.
struct Candidate {
  int64_t share = 0;        // index of its share
  int64_t priority = 0;     // in its share; lower ones go first
  bool has_memory = false;  // a turn of a session: it waits for no memory, and goes first
};

// The index of the candidate to admit next, of at least one: of the share that runs the fewest
// sequences by its weight, then of the least served one; in a share by priority, then in order.
inline size_t next_to_admit(std::span<const Candidate> candidates,
                            std::span<const ShareView> shares) {
  const auto rank = [&](const Candidate& one) {
    const ShareView& share = shares[static_cast<size_t>(one.share)];
    return std::tuple(!one.has_memory, static_cast<double>(share.running) / share.weight,
                      share.served, one.share, one.priority);
  };
  const auto next =
      std::min_element(candidates.begin(), candidates.end(),
                       [&](const Candidate& a, const Candidate& b) { return rank(a) < rank(b); });
  return static_cast<size_t>(next - candidates.begin());
}

// The shares of the sequences that wait or run. Owned by the engine's thread.
class Shares {
 public:
  struct Share {
    std::string key;
    int64_t sequences = 0;  // that wait or run
    int64_t index = 0;      // of its view
    ShareView view;
  };

  // Counts a sequence that waits, and returns its share. The latest weight holds.
  Share* enter(std::string_view key, double weight) {
    const auto found = std::find_if(shares_.begin(), shares_.end(),
                                    [key](const auto& share) { return share->key == key; });
    Share* share = found == shares_.end() ? nullptr : found->get();
    if (share == nullptr) {
      const double least = least_served();
      auto added = std::make_unique<Share>();
      added->key = key;
      added->view.served = least;
      shares_.push_back(std::move(added));
      share = shares_.back().get();
    }
    share->view.weight = weight;
    ++share->sequences;
    return share;
  }
  // Counts a sequence as ended; a share without sequences is forgotten.
  void leave(Share* share) {
    if (--share->sequences > 0) return;
    std::erase_if(shares_, [share](const auto& one) { return one.get() == share; });
  }

  // A view of each share; sets their indices. Counts begin at 0, or they would lose precision.
  std::span<const ShareView> views() {
    double least = least_served(), most = least;
    for (const auto& share : shares_) most = std::max(most, share->view.served);
    least = std::max(least, most - kLargestLead);
    views_.clear();
    for (const auto& share : shares_) {
      share->index = static_cast<int64_t>(views_.size());
      share->view.served = std::max(share->view.served - least, 0.0);
      views_.push_back(share->view);
    }
    return views_;
  }

 private:
  static constexpr double kLargestLead = 4096;  // tokens, by weight 1

  double least_served() const {
    const auto least = std::min_element(
        shares_.begin(), shares_.end(),
        [](const auto& a, const auto& b) { return a->view.served < b->view.served; });
    return least == shares_.end() ? 0 : (*least)->view.served;
  }

  std::vector<std::unique_ptr<Share>> shares_;
  std::vector<ShareView> views_;
};

}  // namespace sinkstream
