// Sampling state on a GPU: each seat's parameters, the tokens that its penalties count, and the
// token that it sampled last. Knows nothing about caches or models.
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
  cuda::LogitBend bend = {};
  int64_t seats = 0;
  int64_t capacity = 0;  // the most live tokens of a sequence that has penalties
  int64_t rows = 0;      // that are sampled together
};

class CudaSampling {
 public:
  // The plugin and the stream must outlive it. Throws CapacityError.
  CudaSampling(const cuda::Plugin& plugin, cuda::Stream stream, const CudaSamplingOptions& options);

  // From the next step on, `seat` samples with `params`. `steps` have been launched so far; `ended`
  // of those have been awaited. Throws DeviceError, as do the functions below.
  void begin(int64_t seat, const SamplingParams& params, const Window& window,
             std::span<const int32_t> seen, int64_t steps, int64_t ended);

  bool has_penalties(int64_t seat) const { return seats_[seat].row.penalties >= 0; }
  int64_t bias_count(int64_t seat) const { return seats_[seat].row.bias_count; }
  int64_t bias_count() const;  // of all seats
  // An id for a span: the token that `seat` sampled last.
  const int32_t* last_sampled(int64_t seat) const { return &seat_references_[seat]; }
  const int32_t* sampled_ids() const { return sampled_ids_; }  // on the GPU: [seats]

  // Fills the samples of a step from `sample` on: for `seat`, after row `row` and after those that
  // follow, which have these drafts. `bias`: bias entries of the samples before them; returns the
  // count including the seat's own.
  int64_t fill_rows(const StepBlock& host, int64_t sample, int64_t seat, int64_t row,
                    std::span<const int32_t> drafts, int64_t bias) const;

  // Adds `ids`, [count] on the GPU, to the penalties of `seat`.
  void append(int64_t seat, const int32_t* ids, int64_t count);
  // Runs samples [first, first + rows), which have these `logits`, in this many waves; `device` is
  // on the GPU. Results go to `sampled`, [rows], after those of the samples before them.
  void sample(const cuda::Partials& logits, const StepBlock& device, int64_t first, int64_t rows,
              int64_t waves, cuda::SampledRow* sampled);

  int64_t scratch_bytes() const { return scratch_bytes_; }
  void release();

 private:
  struct Seat {
    cuda::SamplingRow row;
    std::vector<TokenBias> bias;
    int64_t seen_read_by = -1;  // the step after which the GPU has read the seat's `seen_`
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
  std::byte* scratch_ = nullptr;    // between the two launches of sampling: [rows]
  cuda::MemoryBlock seen_;          // int32 [seats, capacity], pinned
};

}  // namespace sinkstream
