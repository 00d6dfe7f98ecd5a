// The sixteen lanes of a dot product in parts that fill one register of the level: one part of 16
// (AVX-512), two of 8 (AVX2) or four of 4 (SSE2). Compilers keep wider vectors than a register in
// memory, so loops that must hold many sums at once work part by part. The order of additions is
// that of lanes.h. Included like lanes.h, by files in kernels/cpu/isa/ only.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/lanes.h"

namespace strata::cpu::STRATA_ISA_NAMESPACE {

#if defined(__AVX512F__)
constexpr int kPartLanes = 16;
#elif defined(__AVX2__)
constexpr int kPartLanes = 8;
#else
constexpr int kPartLanes = 4;
#endif
constexpr int kParts = kLanes / kPartLanes;
typedef float F32Part __attribute__((vector_size(4 * kPartLanes)));
typedef int32_t I32Part __attribute__((vector_size(4 * kPartLanes)));
typedef uint32_t U32Part __attribute__((vector_size(4 * kPartLanes)));

STRATA_LANES_INLINE F32Part LoadPart(const float* p) {
  F32Part v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
STRATA_LANES_INLINE void StorePart(float* p, F32Part v) { std::memcpy(p, &v, sizeof(v)); }

STRATA_LANES_INLINE F32Part LoadBf16Part(const uint16_t* p) {
#if defined(__AVX512F__)
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (F32Part)((U32Part)_mm512_maskz_cvtepu16_epi32(0xffff, v) << 16);
#elif defined(__AVX2__)
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return (F32Part)((U32Part)_mm256_cvtepu16_epi32(v) << 16);
#else
  const __m128i v = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return (F32Part)_mm_unpacklo_epi16(_mm_setzero_si128(), v);
#endif
}

// Eight bits as the topmost of each lane's twelve: bits 20 to 26 and the sign.
STRATA_LANES_INLINE U32Part LoadShiftedBytes(const uint8_t* p) {
#if defined(__AVX512F__)
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return (U32Part)_mm512_maskz_cvtepi8_epi32(0xffff, v) << 20;
#elif defined(__AVX2__)
  const __m128i v = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return (U32Part)_mm256_cvtepi8_epi32(v) << 20;
#else
  int32_t codes;
  std::memcpy(&codes, p, sizeof(codes));
  const __m128i zero = _mm_setzero_si128();
  const __m128i high = _mm_unpacklo_epi16(zero, _mm_unpacklo_epi8(zero, _mm_cvtsi32_si128(codes)));
  return (U32Part)((I32Part)high >> 4);
#endif
}

// e4m3 codes, NaN included. No step meets a subnormal fp32 value, which many machines are slow at.
STRATA_LANES_INLINE F32Part LoadFp8Part(const uint8_t* p) {
  const U32Part code = LoadShiftedBytes(p);
  const U32Part magnitude = code & 0x07f00000u;
  // As if every exponent had the implicit one: right for normal codes, and 2^-7 (1 + m / 8) where
  // m / 8 * 2^-6 is meant, which is 2 x - 2^-6. Of the two the smaller is always the right one.
  const F32Part x = (F32Part)(magnitude + 0x3c000000u);
  const F32Part y = x + x - 0x1p-6f;
  const U32Part nan = (U32Part)(magnitude == 0x07f00000u) & 0x7fc00000u;
  return (F32Part)((U32Part)(y < x ? y : x) | (code & 0x80000000u) | nan);
}

// Sums that are folded together: as many as a level's registers hold beside their operands.
constexpr int kFolds = kPartLanes == 16 ? 16 : 8;

// out[s] = the sixteen lanes of sums[.][s] added up as ReduceLanes adds them, bit for bit: lane l
// and lane l + 8, then + 4, + 2, + 1. Each step folds two vectors into one that holds the next
// partial sums of both. The sums are destroyed.
STRATA_LANES_INLINE void FoldParts(F32Part (&sums)[kParts][kFolds], float* out) {
#if defined(__AVX512F__)
  StorePart(out, ReduceLanes16(sums[0]));
#elif defined(__AVX2__)
  F32Part v[8];
#pragma GCC unroll 8
  for (int s = 0; s < 8; ++s) v[s] = sums[0][s] + sums[1][s];
#pragma GCC unroll 4
  for (int s = 0; s < 4; ++s) {
    v[s] = __builtin_shufflevector(v[s], v[s + 4], 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(v[s], v[s + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
#pragma GCC unroll 2
  for (int s = 0; s < 2; ++s) {
    v[s] = __builtin_shufflevector(v[s], v[s + 2], 0, 1, 8, 9, 4, 5, 12, 13) +
           __builtin_shufflevector(v[s], v[s + 2], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  StorePart(out, __builtin_shufflevector(v[0], v[1], 0, 8, 2, 10, 4, 12, 6, 14) +
                     __builtin_shufflevector(v[0], v[1], 1, 9, 3, 11, 5, 13, 7, 15));
#else
#pragma GCC unroll 2
  for (int half = 0; half < 8; half += 4) {
    F32Part v[4];
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      v[s] = (sums[0][half + s] + sums[2][half + s]) + (sums[1][half + s] + sums[3][half + s]);
    }
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      v[s] = __builtin_shufflevector(v[s], v[s + 2], 0, 1, 4, 5) +
             __builtin_shufflevector(v[s], v[s + 2], 2, 3, 6, 7);
    }
    StorePart(out + half, __builtin_shufflevector(v[0], v[1], 0, 4, 2, 6) +
                              __builtin_shufflevector(v[0], v[1], 1, 5, 3, 7));
  }
#endif
}

// The same for the lanes of a single sum.
STRATA_LANES_INLINE float FoldLanes(float (&lanes)[kLanes]) {
  for (int half = 8; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

}  // namespace strata::cpu::STRATA_ISA_NAMESPACE
