#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "kernels/quantize_block.h"
#include "kernels/quantize_groups.h"

namespace sinkstream {

namespace {

// A block of 256 numbers in groups of kCount. Group g is lane g % kLanes of vector g / kLanes.
template <int kCount>
struct Groups {
  static constexpr int kGroups = 256 / kCount, kVectors = kGroups / kLanes;
  Lanes x[kVectors][kCount];
  GroupFit<kCount> fits[kVectors];

  explicit Groups(const float* numbers) {
    for (int group = 0; group < kGroups; ++group) {
      for (int j = 0; j < kCount; ++j) {
        x[group / kLanes][j][group % kLanes] = numbers[group * kCount + j];
      }
    }
  }
  float scale(int group) const { return fits[group / kLanes].scale[group % kLanes]; }
  float depth(int group) const { return -fits[group / kLanes].minimum[group % kLanes]; }
  void put_codes(uint8_t* codes) const {
    for (int group = 0; group < kGroups; ++group) {
      for (int j = 0; j < kCount; ++j) {
        const float code = fits[group / kLanes].codes[j][group % kLanes];
        codes[group * kCount + j] = static_cast<uint8_t>(static_cast<int>(code));
      }
    }
  }
};

// Scales in `steps` negative and almost as many positive steps: the one of the largest magnitude
// becomes −steps. Then the codes again, under the rounded scales.
template <int kCount>
void round_signed(Groups<kCount>* groups, float offset, int steps, FileBlock* block) {
  constexpr int kGroups = Groups<kCount>::kGroups;
  float extreme = 0;
  for (int group = 0; group < kGroups; ++group) {
    if (std::fabs(groups->scale(group)) > std::fabs(extreme)) extreme = groups->scale(group);
  }
  const float inverse = static_cast<float>(-steps) / extreme;
  const float unit = put_half(extreme == 0 ? 0 : 1 / inverse, 0, block);
  for (int vector = 0; vector < Groups<kCount>::kVectors; ++vector) {
    GroupFit<kCount>& fit = groups->fits[vector];
    Lanes scales = clamp(nearest(inverse * fit.scale), -steps, steps - 1);
    if (extreme == 0) scales = Lanes{} - static_cast<float>(steps);  // as ggml stores it
    for (int lane = 0; lane < kLanes; ++lane) {
      block->bytes[0][vector * kLanes + lane] =
          static_cast<uint8_t>(static_cast<int>(scales[lane]));
    }
    scales *= unit;
    for (int j = 0; j < kCount; ++j) {
      const Lanes code = clamp(nearest(groups->x[vector][j] / scales), -offset, offset - 1);
      fit.codes[j] = scales == 0 ? fit.codes[j] : code + offset;
    }
  }
  groups->put_codes(block->codes);
}

// Scales and minima in steps from 0 to `steps`, the largest one; then the codes again.
template <int kCount>
void round_unsigned(Groups<kCount>* groups, float last, int steps, FileBlock* block) {
  constexpr int kGroups = Groups<kCount>::kGroups;
  float largest = 0, deepest = 0;
  for (int group = 0; group < kGroups; ++group) {
    largest = std::max(largest, groups->scale(group));
    deepest = std::max(deepest, groups->depth(group));
  }
  const auto count = static_cast<float>(steps);
  const float inverse = largest > 0 ? count / largest : 0;
  const float minimum_inverse = deepest > 0 ? count / deepest : 0;
  const float unit = put_half(largest / count, 0, block);
  const float minimum_unit = put_half(deepest / count, 1, block);
  for (int vector = 0; vector < Groups<kCount>::kVectors; ++vector) {
    GroupFit<kCount>& fit = groups->fits[vector];
    Lanes scales = clamp(nearest(inverse * fit.scale), 0, count);
    Lanes minima = clamp(nearest(minimum_inverse * -fit.minimum), 0, count);
    for (int lane = 0; lane < kLanes; ++lane) {
      block->bytes[0][vector * kLanes + lane] = static_cast<uint8_t>(scales[lane]);
      block->bytes[1][vector * kLanes + lane] = static_cast<uint8_t>(minima[lane]);
    }
    scales *= unit;
    minima *= minimum_unit;
    for (int j = 0; j < kCount; ++j) {
      const Lanes code = clamp(nearest((groups->x[vector][j] + minima) / scales), 0, last);
      fit.codes[j] = scales == 0 ? fit.codes[j] : code;
    }
  }
  groups->put_codes(block->codes);
}

void round_q6_k(const float* x, FileBlock* block) {
  Groups<16> groups(x);
  Lanes largest{};
  for (int vector = 0; vector < groups.kVectors; ++vector) {
    fit_signed(groups.x[vector], 32, &groups.fits[vector]);
    const Lanes scale = magnitude(groups.fits[vector].scale);
    largest = scale > largest ? scale : largest;
  }
  round_signed(&groups, 32, 128, block);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (largest[lane] >= kVanishing) return;
  }
  *block = {};
}

void round_q3_k(const float* x, FileBlock* block) {
  Groups<16> groups(x);
  for (int vector = 0; vector < groups.kVectors; ++vector) {
    fit_code_by_code(groups.x[vector], 4, &groups.fits[vector]);
  }
  round_signed(&groups, 4, 32, block);
}

// An error counts in proportion to its number's magnitude.
void round_q2_k(const float* x, FileBlock* block) {
  constexpr RangeSearch kSearch = {
      .last = 3, .first = -0.5f, .by = 0.1f, .count = 16, .is_absolute = true};
  Groups<16> groups(x);
  for (int vector = 0; vector < groups.kVectors; ++vector) {
    Lanes weights[16];
    for (int j = 0; j < 16; ++j) weights[j] = magnitude(groups.x[vector][j]);
    fit_unsigned(groups.x[vector], weights, kSearch, &groups.fits[vector]);
  }
  round_unsigned(&groups, 3, 15, block);
  for (int group = 0; group < 16; ++group) {
    block->bytes[0][group] = static_cast<uint8_t>(block->bytes[0][group] |  // in four bits each
                                                  block->bytes[1][group] << 4);
  }
}

// Q4_K and Q5_K: an error counts by its number's magnitude plus the group's root mean square.
void round_q45_k(const float* x, const RangeSearch& search, FileBlock* block) {
  Groups<32> groups(x);
  for (int vector = 0; vector < groups.kVectors; ++vector) {
    Lanes squares{}, weights[32];
    for (const Lanes number : groups.x[vector]) squares += number * number;
    const Lanes typical = square_root(squares / 32);
    for (int j = 0; j < 32; ++j) weights[j] = typical + magnitude(groups.x[vector][j]);
    fit_unsigned(groups.x[vector], weights, search, &groups.fits[vector]);
  }
  round_unsigned(&groups, search.last, 63, block);
}

}  // namespace

void round_block_k(Storage to, const float* x, FileBlock* block) {
  switch (to) {
    case Storage::kQ2_K: return round_q2_k(x, block);
    case Storage::kQ3_K: return round_q3_k(x, block);
    case Storage::kQ4_K:
      return round_q45_k(
          x, {.last = 15, .first = -1, .by = 0.1f, .count = 21, .is_absolute = false}, block);
    case Storage::kQ5_K:
      return round_q45_k(
          x, {.last = 31, .first = -0.5f, .by = 0.1f, .count = 16, .is_absolute = false}, block);
    case Storage::kQ6_K: return round_q6_k(x, block);
    default: SINKSTREAM_CHECK(false, "storage is ", static_cast<int>(to));
  }
}

}  // namespace sinkstream
