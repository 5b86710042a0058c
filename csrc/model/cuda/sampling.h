// Where sequences draw their tokens on a GPU: what each seat asks of sampling, the tokens that
// its penalties look at, and the one that it drew last. Knows no cache and no model.
#pragma once

#include <span>
#include <vector>

#include "cache/window.h"
#include "kernels/cuda/plugin.h"
#include "model/cuda/step.h"
#include "sampling/params.h"

namespace sinkstream {

struct CudaSamplingOptions {
  int64_t vocab = 0;
  int64_t seats = 0;
  int64_t capacity = 0;  // the most live tokens of a sequence that has penalties
  int64_t rows = 0;      // that are drawn together
};

class CudaSampling {
 public:
  // The plugin and the stream outlive it. Throws CapacityError.
  CudaSampling(const cuda::Plugin& plugin, cuda::Stream stream, const CudaSamplingOptions& options);

  // From the next step on `seat` draws so. `steps`: how many have been launched so far; `ended`:
  // how many of those have been waited for. Throws DeviceError, as does all below.
  void begin(int64_t seat, const SamplingParams& params, const Window& window,
             std::span<const int32_t> seen, int64_t steps, int64_t ended);

  bool has_penalties(int64_t seat) const { return seats_[seat].row.penalties >= 0; }
  int64_t bias_count(int64_t seat) const { return seats_[seat].row.bias_count; }
  int64_t bias_count() const;  // of all seats
  // sampled_by(seat): where an id is looked for.
  const int32_t* last_sampled(int64_t seat) const { return &seat_references_[seat]; }
  const int32_t* sampled_ids() const { return sampled_ids_; }  // on the GPU: [seats]

  // Draw `draw` of a step is of `seat`, behind row `row`. `bias`: entries that the draws before it
  // have; returns those with its own.
  int64_t fill_row(const StepBlock& host, int64_t sample, int64_t seat, int64_t row,
                   int64_t bias) const;

  // The penalties of `seat` look at `ids`, [count] on the GPU, too.
  void append(int64_t seat, const int32_t* ids, int64_t count);
  // Draws behind the rows of draws [first, first + rows), whose `logits` these are; `there` is on
  // the GPU. What each got goes to `sampled`, [rows].
  void sample(const cuda::Partials& logits, const StepBlock& device, int64_t first, int64_t rows,
              cuda::SampledRow* sampled);

  int64_t scratch_bytes() const { return scratch_bytes_; }
  void release();

 private:
  struct Seat {
    cuda::SamplingRow row;
    std::vector<TokenBias> bias;
    int64_t seen_read_by = -1;  // the step behind which the GPU has read the seat's `seen_`
  };

  void check(cuda::Status status, const char* what) const;

  const cuda::Plugin& plugin_;
  cuda::Stream stream_;
  CudaSamplingOptions options_;
  std::vector<Seat> seats_;
  std::vector<int32_t> seat_references_;

  cuda::MemoryBlock memory_;
  int64_t scratch_bytes_ = 0;
  int32_t* sampled_ids_ = nullptr;  // [seats]
  cuda::PenaltyTables tables_;      // one for each seat
  std::byte* scratch_ = nullptr;    // between the launches of sampling: [rows]
  cuda::MemoryBlock seen_;          // int32 [seats, capacity], pinned
};

}  // namespace sinkstream
