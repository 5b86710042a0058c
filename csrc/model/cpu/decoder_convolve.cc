// The mixer of layers that are short convolutions.
#include "model/cpu/decoder.h"

namespace sinkstream {

// Of the last layer, keeps the rows whose logits are wanted.
void Decoder::drop_unused_rows() {
  const int64_t hidden = spec_.hidden_size;
  queries_ = 0;
  for (const ForwardPlan::Span& span : plan_.spans) {
    const int64_t row = span.row + span.count - span.wanted;
    for (float* const rows : {hidden_, normed_, convolved_}) {
      move_rows(rows, row, rows, queries_, span.wanted, hidden);
    }
    queries_ += span.wanted;
  }
}

void Decoder::convolve(const BlockSpec& block, const LayerWeights& layer, int64_t index) {
  const int64_t hidden = spec_.hidden_size;
  const LinearPart in = {.weights = layer.conv_in,
                         .bias = layer.conv_in_bias,
                         .out = conv_inputs_,
                         .out_stride = 3 * hidden};
  multiply(mixer_input(block, layer), rows_, {&in, 1});
  convolve_spans_.clear();
  for (const ForwardPlan::Span& span : plan_.spans) {
    const auto [read, write] = span.cache->state(index, span.index);
    convolve_spans_.push_back({.row = span.row,
                               .count = span.count,
                               .read = reinterpret_cast<const float*>(read),
                               .write = reinterpret_cast<float*>(write)});
  }
  kernels_.convolve({.input = conv_inputs_ + 2 * hidden,
                     .input_gate = conv_inputs_,
                     .output_gate = conv_inputs_ + hidden,
                     .stride = 3 * hidden,
                     .weight = layer.conv,
                     .bias = layer.conv_bias,
                     .out = convolved_,
                     .spans = convolve_spans_.data(),
                     .span_count = std::ssize(convolve_spans_),
                     .channels = hidden,
                     .taps = block.recurrent()->conv_size},
                    launch_);
  // Of the rows in the last layer whose logits are not wanted, only the state.
  if (index + 1 == spec_.layers() && plan_.wanted < rows_) drop_unused_rows();
  add_mixed(block, layer, convolved_, {.weights = layer.conv_out, .bias = layer.conv_out_bias});
}

}  // namespace sinkstream
