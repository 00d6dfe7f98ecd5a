// Elementary functions on float vectors of any width from multiplications and additions alone: the
// same bits on every machine. Included like lanes.h, by files in kernels/cpu/isa/ only.
#pragma once

#include "kernels/cpu/lanes.h"

namespace strata::cpu::STRATA_ISA_NAMESPACE {

// e^x, error below 2 ulp. Underflows gradually to 0 below -104, overflows to infinity above 88.73,
// NaN stays NaN. Cody-Waite reduction by ln 2 in two parts, then the degree-6 polynomial of the
// Cephes library.
template <class V>
STRATA_LANES_INLINE V Exp(V x) {
  typedef int32_t Integers __attribute__((vector_size(sizeof(V))));
  const V low = V{} - 105.0f, high = V{} + 90.0f;
  x = x < low ? low : x;
  x = x > high ? high : x;
  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits.
  const V magic = V{} + 12582912.0f;
  const V shifted = x * 1.44269504088896341f + magic;
  const Integers n = (Integers)shifted - (Integers)magic;
  const V whole = shifted - magic;
  V r = x - whole * 0.693359375f;
  r = r - whole * -2.12194440e-4f;
  V p = V{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors, so that results below the normal range are rounded once and not flushed.
  const Integers half = n >> 1;
  const V first = (V)((half + 127) << 23);
  const V second = (V)((n - half + 127) << 23);
  return p * first * second;
}

template <class V>
STRATA_LANES_INLINE V Sigmoid(V x) {
  return 1.0f / (1.0f + Exp(-x));
}

}  // namespace strata::cpu::STRATA_ISA_NAMESPACE
