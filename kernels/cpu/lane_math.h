// Elementary functions on sixteen lanes from multiplications and additions alone: the same bits on
// every machine. Included like lanes.h, by files in kernels/cpu/isa/ only.
#pragma once

#include "kernels/cpu/lanes.h"

namespace strata::cpu::STRATA_ISA_NAMESPACE {

// e^x, error below 2 ulp. Underflows gradually to 0 below -104, overflows to infinity above 88.73,
// NaN stays NaN. Cody-Waite reduction by ln 2 in two parts, then the degree-6 polynomial of the
// Cephes library.
STRATA_LANES_INLINE F32x16 Exp(F32x16 x) {
  const F32x16 low = Splat(-105.0f), high = Splat(90.0f);
  x = x < low ? low : x;
  x = x > high ? high : x;
  const F32x16 magic =
      Splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  const F32x16 shifted = x * 1.44269504088896341f + magic;
  const I32x16 n = (I32x16)shifted - (I32x16)magic;
  const F32x16 whole = shifted - magic;
  F32x16 r = x - whole * 0.693359375f;
  r = r - whole * -2.12194440e-4f;
  F32x16 p = Splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors, so that results below the normal range are rounded once and not flushed.
  const I32x16 half = n >> 1;
  const F32x16 first = (F32x16)((half + 127) << 23);
  const F32x16 second = (F32x16)((n - half + 127) << 23);
  return p * first * second;
}

STRATA_LANES_INLINE F32x16 Sigmoid(F32x16 x) { return 1.0f / (1.0f + Exp(-x)); }

}  // namespace strata::cpu::STRATA_ISA_NAMESPACE
