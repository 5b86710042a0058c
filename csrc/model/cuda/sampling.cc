#include "model/cuda/sampling.h"

#include <algorithm>
#include <cmath>

#include "common/carver.h"
#include "common/check.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/gpu.h"

namespace sinkstream {

namespace {

constexpr int64_t kAlignment = 256;

// The parameters that Sampler::sample passes to the CPU kernels.
cuda::SamplingRow sampling_row(int64_t seat, const SamplingParams& params) {
  cuda::SamplingRow row;
  row.seat = static_cast<int32_t>(seat);
  row.seed = params.seed;
  row.bias_count = static_cast<int32_t>(params.logit_bias.size());
  if (has_penalties(params) && params.logprobs == 0) {  // else the host samples and counts
    row.penalties = row.seat;
    row.repetition_penalty = static_cast<float>(params.repetition_penalty);
    row.presence_penalty = static_cast<float>(params.presence_penalty);
    row.frequency_penalty = static_cast<float>(params.frequency_penalty);
  }
  if (is_greedy(params)) {
    row.greedy = 1;
    return row;
  }
  row.temperature = static_cast<float>(params.temperature);
  row.top_k = params.top_k;
  row.top_p = params.top_p;
  row.log_min_p = std::log(params.min_p);
  return row;
}

}  // namespace

CudaSampling::CudaSampling(const cuda::Plugin& plugin, cuda::Stream stream,
                           const CudaSamplingOptions& options)
    : plugin_(plugin), stream_(stream), options_(options), seats_(options.seats) {
  for (int32_t seat = 0; seat < options.seats; ++seat) {
    seat_references_.push_back(cuda::sampled_by(seat));
  }
  tables_.capacity = options.capacity;
  const auto carve = [&](Carver<kAlignment> carver) {
    sampled_ids_ = carver.take<int32_t>(options.seats);
    tables_.memory =
        carver.take<std::byte>(options.seats * cuda::PenaltyLayout{options.capacity}.bytes());
    scratch_ = carver.take<std::byte>(cuda::sampling_scratch_bytes(options.vocab, options.rows));
    return carver.used();
  };
  scratch_bytes_ = carve(Carver<kAlignment>(nullptr));
  memory_ = cuda::allocate_device(plugin.runtime, scratch_bytes_, "sampling");
  carve(Carver<kAlignment>(memory_.get()));
  seen_ = cuda::allocate_pinned(
      plugin.runtime, options.seats * options.capacity * int64_t{sizeof(int32_t)}, "penalties");
}

void CudaSampling::release() {
  memory_.reset();
  seen_.reset();
}

void CudaSampling::begin(int64_t seat, const SamplingParams& params, const Window& window,
                         std::span<const int32_t> seen, int64_t steps, int64_t ended) {
  SINKSTREAM_CHECK(seat >= 0 && seat < options_.seats, "seat ", seat, " is not in [0, ",
                   options_.seats, ")");
  Seat& state = seats_[seat];
  state.row = sampling_row(seat, params);
  state.bias = params.logit_bias;
  if (!has_penalties(seat)) return;
  SINKSTREAM_CHECK(window.capacity() <= options_.capacity, "penalties have room for ",
                   options_.capacity, " live tokens, but must count ", window.capacity());
  check(plugin_.ops.penalties_reset({tables_, state.row.penalties, window.sinks, window.window},
                                    stream_),
        "penalties_reset");
  if (seen.empty()) return;
  // The GPU reads them in place. It may not yet have read what an earlier `begin` wrote there.
  if (state.seen_read_by >= ended)
    check(plugin_.runtime.synchronize(stream_), "waiting for penalties");
  state.seen_read_by = steps;
  // Only live tokens: penalties count no others.
  const auto count = std::ssize(seen);
  const int64_t sinks = std::min(count, window.sinks);
  const int64_t recent = std::min(count - sinks, window.window);
  auto* const ids = reinterpret_cast<int32_t*>(seen_.get()) + seat * options_.capacity;
  std::copy_n(seen.begin(), sinks, ids);
  std::copy(seen.end() - recent, seen.end(), ids + sinks);
  append(seat, ids, sinks + recent);
}

int64_t CudaSampling::bias_count() const {
  int64_t count = 0;
  for (const Seat& seat : seats_) count += seat.row.bias_count;
  return count;
}

int64_t CudaSampling::fill_rows(const StepBlock& host, int64_t sample, int64_t seat, int64_t row,
                                std::span<const int32_t> drafts, int64_t bias) const {
  const Seat& state = seats_[seat];
  for (int64_t i = 0; i <= std::ssize(drafts); ++i) {
    host.sample_rows[sample + i] = host.group(0).tokens[row + i];
    cuda::SamplingRow& params = host.sampling[sample + i];
    params = state.row;
    params.bias_begin = static_cast<int32_t>(bias);
    params.wave = static_cast<int32_t>(i);
    if (i > 0) params.draft = drafts[static_cast<size_t>(i - 1)];
  }
  std::copy(state.bias.begin(), state.bias.end(), host.bias + bias);
  return bias + std::ssize(state.bias);
}

void CudaSampling::append(int64_t seat, const int32_t* ids, int64_t count) {
  check(plugin_.ops.penalties_append({tables_, static_cast<int32_t>(seat), ids, count}, stream_),
        "penalties_append");
}

void CudaSampling::sample(const cuda::Partials& logits, const StepBlock& device, int64_t first,
                          int64_t rows, int64_t waves, cuda::SampledRow* sampled) {
  for (int32_t wave = 0; wave < waves; ++wave) {
    check(plugin_.ops.logits({.logits = logits,
                              .bend = options_.bend,
                              .rows = rows,
                              .vocab = options_.vocab,
                              .tokens = device.sample_rows + first,
                              .params = device.sampling + first,
                              .bias = device.bias,
                              .penalties = tables_,
                              .scratch = scratch_,
                              .wave = wave},
                             stream_),
          "logits");
    check(plugin_.ops.sample({.logits = logits,
                              .bend = options_.bend,
                              .rows = rows,
                              .vocab = options_.vocab,
                              .tokens = device.sample_rows + first,
                              .params = device.sampling + first,
                              .penalties = tables_,
                              .scratch = scratch_,
                              .ids = sampled_ids_,
                              .sampled = sampled,
                              .wave = wave},
                             stream_),
          "sample");
  }
}

void CudaSampling::check(cuda::Status status, const char* what) const {
  cuda::check(plugin_.runtime, status, what);
}

}  // namespace sinkstream
