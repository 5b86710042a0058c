// The formats whose codes are numbers in a table.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/panel_format.h"
#include "kernels/quantize_block.h"
#include "kernels/quantize_groups.h"

namespace sinkstream {

namespace {

constexpr int kBlock = 32;  // numbers that share a scale

struct Nearest {
  Lanes code, value;
};

// The upper one of two that are equally near.
Nearest nearest_iq4(Lanes x) {
  Nearest found = {Lanes{}, Lanes{} + static_cast<float>(kIq4NlValues[0])};
  for (int code = 1; code < 16; ++code) {
    const auto below = static_cast<float>(kIq4NlValues[code - 1]);
    const auto value = static_cast<float>(kIq4NlValues[code]);
    const LaneBits is_reached = x >= (below + value) / 2;
    found.code += is_reached ? Lanes{} + 1 : Lanes{};
    found.value += is_reached ? Lanes{} + (value - below) : Lanes{};
  }
  return found;
}

// The scale of a group. Tried are 16 that give the extreme a value near −127 or 127, four at a
// time, one in each lane; the squared number is the weight of its error.
float fit_iq4(const float* x) {
  constexpr int kTries = 16;
  float extreme = 0;
  for (int j = 0; j < kBlock; ++j) {
    if (std::fabs(x[j]) > std::fabs(extreme)) extreme = x[j];
  }
  if (std::fabs(extreme) < kVanishing) return 0;
  constexpr auto kLowest = static_cast<float>(kIq4NlValues[0]);
  float inverses[kTries] = {1 / (-extreme / kLowest)};
  for (int i = 1; i < kTries; ++i) inverses[i] = (static_cast<float>(i - 8) + kLowest) / extreme;
  float best = 0, best_scale = 0;
  for (int first = 0; first < kTries; first += kLanes) {
    Lanes inverse, products{}, squares{};
    std::memcpy(&inverse, inverses + first, sizeof(inverse));
    for (int j = 0; j < kBlock; ++j) {
      const Lanes value = nearest_iq4(inverse * x[j]).value;
      products += x[j] * x[j] * value * x[j];
      squares += x[j] * x[j] * value * value;
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const bool is_better =
          squares[lane] > 0 &&
          (first + lane == 0 || products[lane] * products[lane] > best * squares[lane]);
      if (!is_better) continue;
      best_scale = products[lane] / squares[lane];
      best = best_scale * products[lane];
    }
  }
  return best_scale;
}

float inverse_of(float scale) { return scale == 0 ? 0 : 1 / scale; }

// The codes of one group.
void put_codes(const float* x, float scale, uint8_t* codes) {
  const float inverse = inverse_of(scale);
  for (int j = 0; j < kBlock; j += kLanes) {
    Lanes numbers;
    std::memcpy(&numbers, x + j, sizeof(numbers));
    const Lanes found = nearest_iq4(inverse * numbers).code;
    for (int lane = 0; lane < kLanes; ++lane) {
      codes[j + lane] = static_cast<uint8_t>(found[lane]);
    }
  }
}

}  // namespace

void round_block_iq4_nl(const float* x, FileBlock* block) {
  const float scale = fit_iq4(x);
  put_half(scale, 0, block);
  put_codes(x, scale, block->codes);
}

void round_block_iq4_xs(const float* x, FileBlock* block) {
  constexpr int kGroups = 8;
  float scales[kGroups], extreme = 0;
  for (int group = 0; group < kGroups; ++group) scales[group] = fit_iq4(x + group * kBlock);
  for (const float scale : scales) {
    if (std::fabs(scale) > std::fabs(extreme)) extreme = scale;
  }
  const float unit = -extreme / 32, inverse = inverse_of(unit);
  put_half(unit, 0, block);
  for (int group = 0; group < kGroups; ++group) {
    const float steps = clamp(nearest(Lanes{inverse * scales[group]}), -32, 31)[0];
    block->bytes[0][group] = static_cast<uint8_t>(static_cast<int>(steps));
    put_codes(x + group * kBlock, unit * steps, block->codes + group * kBlock);  // not yet rounded
  }
}

// The largest magnitude lies in the highest binade of the codes, and may be rounded down to 6.
void round_block_mxfp4(const float* x, FileBlock* block) {
  float largest = 0;
  for (int j = 0; j < kBlock; ++j) largest = std::max(largest, std::fabs(x[j]));
  int exponent = 0;
  if (largest > 0) exponent = std::max(0, static_cast<int>(std::floor(std::log2(largest))) + 125);
  block->bytes[0][0] = static_cast<uint8_t>(exponent);
  for (int j = 0; j < kBlock; ++j) {
    const float scaled = std::ldexp(std::fabs(x[j]), 128 - exponent);
    int code = 0;  // the lower one of two that are equally near
    while (code < 7 && 2 * scaled > static_cast<float>(kFp4Values[code] + kFp4Values[code + 1])) {
      ++code;
    }
    block->codes[j] = static_cast<uint8_t>(code | (code > 0 && x[j] < 0 ? 8 : 0));
  }
}

}  // namespace sinkstream
