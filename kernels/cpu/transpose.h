// Sixteen vectors of sixteen 32-bit lanes, rows and columns exchanged. Included like lanes.h, by
// files in kernels/cpu/isa/ only.
#pragma once

#include "kernels/cpu/lanes.h"

namespace strata::cpu::STRATA_ISA_NAMESPACE {

// The steps work inside 128-bit blocks as far as they can: those are single instructions at every
// width.
STRATA_LANES_INLINE U32x16 InterleaveLow(U32x16 a, U32x16 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
STRATA_LANES_INLINE U32x16 InterleaveHigh(U32x16 a, U32x16 b) {
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
typedef uint64_t U64x8 __attribute__((vector_size(64)));  // pairs of lanes
STRATA_LANES_INLINE U32x16 InterleavePairsLow(U32x16 a, U32x16 b) {
  return (U32x16)__builtin_shufflevector((U64x8)a, (U64x8)b, 0, 8, 2, 10, 4, 12, 6, 14);
}
STRATA_LANES_INLINE U32x16 InterleavePairsHigh(U32x16 a, U32x16 b) {
  return (U32x16)__builtin_shufflevector((U64x8)a, (U64x8)b, 1, 9, 3, 11, 5, 13, 7, 15);
}
// Blocks 0 and 1 (0 and 2) of a, then of b; Upper: blocks 2 and 3; Odd: blocks 1 and 3.
STRATA_LANES_INLINE U32x16 LowerBlocks(U32x16 a, U32x16 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
}
STRATA_LANES_INLINE U32x16 UpperBlocks(U32x16 a, U32x16 b) {
  return __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30,
                                 31);
}
STRATA_LANES_INLINE U32x16 EvenBlocks(U32x16 a, U32x16 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}
STRATA_LANES_INLINE U32x16 OddBlocks(U32x16 a, U32x16 b) {
  return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

// Afterwards lane i of v[c] is what lane c of v[i] was.
STRATA_LANES_INLINE void Transpose(U32x16 (&v)[kLanes]) {
  // Block b of quads[q][c] holds rows 4q .. 4q + 3 of column 4b + c.
  U32x16 quads[4][4];
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    const U32x16 low0 = InterleaveLow(v[4 * q], v[4 * q + 1]),
                 high0 = InterleaveHigh(v[4 * q], v[4 * q + 1]);
    const U32x16 low1 = InterleaveLow(v[4 * q + 2], v[4 * q + 3]),
                 high1 = InterleaveHigh(v[4 * q + 2], v[4 * q + 3]);
    quads[q][0] = InterleavePairsLow(low0, low1);
    quads[q][1] = InterleavePairsHigh(low0, low1);
    quads[q][2] = InterleavePairsLow(high0, high1);
    quads[q][3] = InterleavePairsHigh(high0, high1);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const U32x16 lower01 = LowerBlocks(quads[0][c], quads[1][c]),
                 upper01 = UpperBlocks(quads[0][c], quads[1][c]);
    const U32x16 lower23 = LowerBlocks(quads[2][c], quads[3][c]),
                 upper23 = UpperBlocks(quads[2][c], quads[3][c]);
    v[c] = EvenBlocks(lower01, lower23);
    v[4 + c] = OddBlocks(lower01, lower23);
    v[8 + c] = EvenBlocks(upper01, upper23);
    v[12 + c] = OddBlocks(upper01, upper23);
  }
}

}  // namespace strata::cpu::STRATA_ISA_NAMESPACE
