// How ggml's reference quantizer chooses the scale of a group: it tries several, gives every number
// its nearest code under each, fits the scale to the codes by weighted least squares, and keeps the
// one with the smallest error. Four groups at a time, one in each lane of a vector; within a lane,
// sums have ggml's order, so that its result comes out bit for bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace sinkstream {

constexpr int kLanes = 4;
using Lanes = float __attribute__((vector_size(4 * kLanes)));
using LaneBits = int32_t __attribute__((vector_size(4 * kLanes)));

constexpr float kVanishing = 1e-15f;  // numbers of a group that are all smaller are zeros

// To nearest even, of magnitudes below 2^22. Of larger ones the lower bits, as in ggml, where the
// code is clamped afterwards.
inline Lanes nearest(Lanes value) {
  value += 0x1.8p23f;
  LaneBits bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return __builtin_convertvector((bits & 0x7fffff) - 0x400000, Lanes);
}

inline Lanes clamp(Lanes value, float low, float high) {
  value = value < low ? Lanes{} + low : value;
  return value > high ? Lanes{} + high : value;
}

inline Lanes magnitude(Lanes value) { return value < 0 ? -value : value; }

inline Lanes square_root(Lanes value) {
  for (int lane = 0; lane < kLanes; ++lane) value[lane] = std::sqrt(value[lane]);
  return value;
}

// The number of the largest magnitude, the first of several.
template <int kCount>
Lanes extreme_of(const Lanes (&x)[kCount]) {
  Lanes extreme{}, largest{};
  for (const Lanes number : x) {
    const LaneBits is_larger = magnitude(number) > largest;
    largest = is_larger ? magnitude(number) : largest;
    extreme = is_larger ? number : extreme;
  }
  return extreme;
}

// What a search found. A number is about scale · code, less the offset or plus the minimum.
template <int kCount>
struct GroupFit {
  Lanes scale, minimum;
  Lanes codes[kCount];  // integers from 0
};

// Numbers that vanish have the scale 0 and codes 0.
template <int kCount>
void clear_vanishing(Lanes extreme, GroupFit<kCount>* fit) {
  const LaneBits vanishes = magnitude(extreme) < kVanishing;
  fit->scale = vanishes ? Lanes{} : fit->scale;
  for (Lanes& code : fit->codes) code = vanishes ? Lanes{} : code;
}

// Codes around `offset`. Tried are 19 scales that give the extreme a code near 0; the squared
// number is the weight of its error.
template <int kCount>
void fit_signed(const Lanes (&x)[kCount], float offset, GroupFit<kCount>* fit) {
  const Lanes extreme = extreme_of(x);
  Lanes best{}, best_inverse{};
  bool is_first = true;
  for (const int step : {0, -9, -8, -7, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    const Lanes inverse = -(offset + 0.1f * static_cast<float>(step)) / extreme;
    Lanes products{}, squares{};  // weighted, of numbers and codes
    for (const Lanes number : x) {
      const Lanes code = clamp(nearest(inverse * number), -offset, offset - 1);
      const Lanes weight = number * number;
      products += weight * number * code;
      squares += weight * code * code;
    }
    const Lanes scale = squares > 0 ? products / squares : Lanes{};
    const LaneBits is_better =
        is_first ? LaneBits{} - 1 : (squares > 0) & (products * products > best * squares);
    best = is_better ? scale * products : best;
    best_inverse = is_better ? inverse : best_inverse;
    fit->scale = is_better ? scale : fit->scale;
    is_first = false;
  }
  for (int j = 0; j < kCount; ++j) {
    fit->codes[j] = clamp(nearest(best_inverse * x[j]), -offset, offset - 1) + offset;
  }
  clear_vanishing(extreme, fit);
}

// Codes around `offset`, which is small: from the extreme as code 0, every code in turn moves to
// where the error becomes smallest, at most five times. Weights as above.
template <int kCount>
void fit_code_by_code(const Lanes (&x)[kCount], float offset, GroupFit<kCount>* fit) {
  const Lanes extreme = extreme_of(x);
  const Lanes inverse = -offset / extreme;
  Lanes products{}, squares{};
  for (int j = 0; j < kCount; ++j) {
    const Lanes weight = x[j] * x[j];
    const Lanes code = clamp(nearest(inverse * x[j]), -offset, offset - 1);
    products += weight * x[j] * code;
    squares += weight * code * code;
    fit->codes[j] = code;
  }
  bool has_changed = true;
  for (int round = 0; round < 5 && has_changed; ++round) {
    has_changed = false;
    for (int j = 0; j < kCount; ++j) {
      const Lanes weight = x[j] * x[j], code = fit->codes[j];
      const Lanes other_products = products - weight * x[j] * code;
      const Lanes other_squares = squares - weight * code * code;
      const Lanes tried =
          clamp(nearest(x[j] * other_squares / other_products), -offset, offset - 1);
      const Lanes new_products = other_products + weight * x[j] * tried;
      const Lanes new_squares = other_squares + weight * tried * tried;
      const LaneBits is_better =
          (other_products > 0) & (tried != code) & (new_squares > 0) &
          (new_products * new_products * squares > products * products * new_squares);
      for (int lane = 0; lane < kLanes; ++lane) has_changed |= is_better[lane] != 0;
      fit->codes[j] = is_better ? tried : code;
      products = is_better ? new_products : products;
      squares = is_better ? new_squares : squares;
    }
  }
  fit->scale = squares > 0 ? products / squares : Lanes{};
  for (Lanes& code : fit->codes) code += offset;
  clear_vanishing(extreme, fit);
}

// The scales that `fit_unsigned` tries after the first: the range of the numbers is divided into
// last + first, last + first + by, … steps.
struct RangeSearch {
  float last;  // code
  float first, by;
  int count;
  bool is_absolute;  // whether errors count by magnitude; otherwise squared
};

// Codes from 0, and a minimum of at most 0 that is fitted too. The range of the numbers begins at
// the best minimum so far.
template <int kCount>
void fit_unsigned(const Lanes (&x)[kCount], const Lanes (&weights)[kCount],
                  const RangeSearch& search, GroupFit<kCount>* fit) {
  Lanes smallest = x[0], largest = x[0], weight_sum{}, number_sum{};
  for (int j = 0; j < kCount; ++j) {
    smallest = x[j] < smallest ? x[j] : smallest;
    largest = x[j] > largest ? x[j] : largest;
    weight_sum += weights[j];
    number_sum += weights[j] * x[j];
  }
  smallest = smallest > 0 ? Lanes{} : smallest;
  const auto code_of = [&](Lanes number, Lanes begin, Lanes inverse) {
    return clamp(nearest(inverse * (number - begin)), 0, search.last);
  };
  const auto error_of = [&](Lanes scale, Lanes minimum, const Lanes* codes) {
    Lanes sum{};
    for (int j = 0; j < kCount; ++j) {
      const Lanes error = scale * codes[j] + minimum - x[j];
      sum += weights[j] * (search.is_absolute ? magnitude(error) : error * error);
    }
    return sum;
  };

  Lanes best_begin = smallest, best_inverse = search.last / (largest - smallest);
  Lanes codes[kCount];
  for (int j = 0; j < kCount; ++j) codes[j] = code_of(x[j], best_begin, best_inverse);
  fit->scale = 1 / best_inverse;
  fit->minimum = smallest;
  Lanes best = error_of(fit->scale, fit->minimum, codes);
  for (int step = 0; step < search.count; ++step) {
    const Lanes begin = fit->minimum;
    const Lanes inverse =
        (search.first + search.by * static_cast<float>(step) + search.last) / (largest - begin);
    Lanes code_sum{}, squares{}, products{};  // weighted
    for (int j = 0; j < kCount; ++j) {
      codes[j] = code_of(x[j], begin, inverse);
      const Lanes weighted = weights[j] * codes[j];
      code_sum += weighted;
      squares += weighted * codes[j];
      products += weighted * x[j];
    }
    const Lanes determinant = weight_sum * squares - code_sum * code_sum;
    Lanes scale = (weight_sum * products - number_sum * code_sum) / determinant;
    Lanes minimum = (squares * number_sum - code_sum * products) / determinant;
    const LaneBits is_above = minimum > 0;
    scale = is_above ? products / squares : scale;
    minimum = is_above ? Lanes{} : minimum;
    const Lanes error = error_of(scale, minimum, codes);
    const LaneBits is_better = (determinant > 0) & (error < best);
    best = is_better ? error : best;
    best_begin = is_better ? begin : best_begin;
    best_inverse = is_better ? inverse : best_inverse;
    fit->scale = is_better ? scale : fit->scale;
    fit->minimum = is_better ? minimum : fit->minimum;
  }
  const LaneBits is_flat = largest == smallest;
  fit->scale = is_flat ? Lanes{} : fit->scale;
  fit->minimum = is_flat ? smallest : fit->minimum;
  for (int j = 0; j < kCount; ++j) {
    fit->codes[j] = is_flat ? Lanes{} : code_of(x[j], best_begin, best_inverse);
  }
}

}  // namespace sinkstream
