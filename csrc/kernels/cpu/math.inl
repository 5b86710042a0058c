// Functions without a hardware instruction.
#pragma once

// e^x for x <= 0, within 2 units in the last place. NaN stays NaN; results below the smallest
// normal number are 0. e^0 is exactly 1.
SINKSTREAM_INLINE Vec exp_nonpositive(Vec x) {
  constexpr float kShifter = 0x1.8p23f;  // adding it rounds to an integer, n, in the low bits
  const Vec shifted = fma(x, broadcast(0x1.715476p+0f), broadcast(kShifter));  // n + r/ln 2
  const Vec n = shifted - kShifter;
  // ln 2 in two parts; the upper has so few bits that its product with n is exact.
  Vec r = fma(n, broadcast(-0.693359375f), x);
  r = fma(n, broadcast(2.12194440e-4f), r);
  // |r| <= ln(2)/2. Coefficients: Cephes, expf.
  Vec y = broadcast(1.9875691500e-4f);
  y = fma(y, r, broadcast(1.3981999507e-3f));
  y = fma(y, r, broadcast(8.3334519073e-3f));
  y = fma(y, r, broadcast(4.1665795894e-2f));
  y = fma(y, r, broadcast(1.6666665459e-1f));
  y = fma(y, r, broadcast(5.0000001201e-1f));
  y = fma(y, r * r, r) + 1.0f;
  const Vec power = as_float((as_words(shifted) << 23) + 0x3f800000);  // 2^n
  return select(x < -87.3365f, Vec{}, y * power);
}

// tanh x, within 4 units in the last place; NaN stays NaN. Coefficients: Cephes, tanhf.
SINKSTREAM_INLINE Vec tanh(Vec x) {
  const Vec size = as_float(as_words(x) & 0x7fffffff);
  const Vec square = x * x;
  Vec y = broadcast(-5.70498872745e-3f);
  y = fma(y, square, broadcast(2.06390887954e-2f));
  y = fma(y, square, broadcast(-5.37397155531e-2f));
  y = fma(y, square, broadcast(1.33314422036e-1f));
  y = fma(y, square, broadcast(-3.33332819422e-1f));
  const Vec near = fma(y * square, x, x);
  const Vec falling = exp_nonpositive(-2.0f * size);
  const Vec far = (1.0f - falling) / (1.0f + falling);
  const Vec signed_far = as_float(as_words(far) | (as_words(x) & 0x80000000u));
  return select(size < 0.625f, near, signed_far);
}

// Φ(x), the share of the normal distribution below x: erfc(−x / √2) / 2, within 6 units in the last
// place; results below the smallest normal number are 0. NaN stays NaN.
//
// Φ(−u) for u >= 0 is e^(−u²/2) times a function that changes little: a polynomial of degree 9 in
// (u − 4) / (u + 4), divided by u + 4, with a relative error of 9e-9 up to u = 14.5, where Φ(−u) is
// 0. Coefficients: the minimax polynomial of that function.
SINKSTREAM_INLINE Vec normal_cdf(Vec x) {
  const Vec size = min(broadcast(14.5f), as_float(as_words(x) & 0x7fffffff));
  const Vec inverse = 1.0f / (size + 4.0f);
  const Vec w = (size - 4.0f) * inverse;
  Vec y = broadcast(-1.3197213439e-4f);
  y = fma(y, w, broadcast(1.7935394573e-4f));
  y = fma(y, w, broadcast(1.5699239400e-3f));
  y = fma(y, w, broadcast(-3.5125536673e-3f));
  y = fma(y, w, broadcast(-7.5252715889e-3f));
  y = fma(y, w, broadcast(6.0403830993e-2f));
  y = fma(y, w, broadcast(-1.8652344141e-1f));
  y = fma(y, w, broadcast(3.8713690112e-1f));
  y = fma(y, w, broadcast(-6.0789658827e-1f));
  y = fma(y, w, broadcast(7.5528513538e-1f));
  // u² = high² + (u − high) · (u + high), with so few bits in `high` that its square is exact: an
  // error of u² would be one of the exponent.
  const Vec high = as_float(as_words(size) & 0xfffff000);
  const Vec low = (high - size) * (high + size) * 0.5f;
  // e^low, for −0.06 < low <= 0
  Vec e = fma(low, broadcast(1.0f / 24), broadcast(1.0f / 6));
  e = fma(e, low, broadcast(0.5f));
  e = fma(e, low * low, low) + 1.0f;
  const Vec tail = exp_nonpositive(high * high * -0.5f) * e * (y * inverse);
  return select(x > 0.0f, 1.0f - tail, tail);
}
