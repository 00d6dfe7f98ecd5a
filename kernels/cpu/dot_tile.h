// Dot products of sixteen lanes in one fixed order (lanes.h), singly and as a register tile of 4
// x 4.
#pragma once

#include "kernels/cpu/lanes.h"

namespace strata::cpu::STRATA_ISA_NAMESPACE {

// Lane l sums elements l, l + 16, ... from zero; the lanes are then folded by ReduceLanes. A tail
// counts as padded with zeros, which leaves every bit as it is.
STRATA_LANES_INLINE float Dot(const float* a, const float* b, int64_t n) {
  F32x16 sums = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sums += Load(a + i) * Load(b + i);
  if (i < n) {
    float first[kLanes], second[kLanes];
    CopyPadded(first, a + i, n - i);
    CopyPadded(second, b + i, n - i);
    sums += Load(first) * Load(second);
  }
  return ReduceLanes(sums);
}

// Lane 4 * r + c of the result is Dot(a[r], b[c], n), bit for bit. b's vectors are readable, and
// zero, up to a multiple of 16; a's need not be.
STRATA_LANES_INLINE F32x16 DotTile4x4(const float* const (&a)[4], const float* const (&b)[4],
                                      int64_t n) {
  F32x16 sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const F32x16 b0 = Load(b[0] + i), b1 = Load(b[1] + i), b2 = Load(b[2] + i), b3 = Load(b[3] + i);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const F32x16 left = Load(a[r] + i);
      sums[4 * r + 0] += left * b0;
      sums[4 * r + 1] += left * b1;
      sums[4 * r + 2] += left * b2;
      sums[4 * r + 3] += left * b3;
    }
  }
  if (i < n) {
    for (int r = 0; r < 4; ++r) {
      float tail[kLanes];
      CopyPadded(tail, a[r] + i, n - i);
      const F32x16 left = Load(tail);
      for (int c = 0; c < 4; ++c) sums[4 * r + c] += left * Load(b[c] + i);
    }
  }
  return ReduceLanes16(sums);
}

}  // namespace strata::cpu::STRATA_ISA_NAMESPACE
