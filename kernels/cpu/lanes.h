// Sixteen float lanes with one fixed order of additions: the same bits from SSE2, AVX2 and AVX-512,
// gcc and clang, any optimisation level (the build passes -ffp-contract=off). Included only by
// files in kernels/cpu/isa/, inside the namespace of their level; everything is forced inline, so
// no symbol of a wide level can leak into a narrow one.
#pragma once

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

#define STRATA_LANES_INLINE static inline __attribute__((always_inline))

namespace strata::cpu::STRATA_ISA_NAMESPACE {

constexpr int kLanes = 16;
typedef float F32x16 __attribute__((vector_size(64)));
typedef int32_t I32x16 __attribute__((vector_size(64)));
typedef uint32_t U32x16 __attribute__((vector_size(64)));
typedef uint16_t U16x16 __attribute__((vector_size(32)));
typedef int8_t I8x16 __attribute__((vector_size(16)));

STRATA_LANES_INLINE F32x16 Load(const float* p) {
  F32x16 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
STRATA_LANES_INLINE void Store(float* p, F32x16 v) { std::memcpy(p, &v, sizeof(v)); }
// The value, held in a register: a compiler may otherwise read its memory again for every use.
STRATA_LANES_INLINE F32x16 InRegister(F32x16 v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#endif
  return v;
}
STRATA_LANES_INLINE F32x16 Splat(float x) {
  return F32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}
// Sixteen narrow integers as 32-bit lanes. The AVX-512 forms are one instruction, which not every
// compiler makes of the generic conversion (and the forms without a mask warn in some).
STRATA_LANES_INLINE U32x16 Widen(U16x16 v) {
#if defined(__AVX512F__)
  return (U32x16)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)v);
#else
  return __builtin_convertvector(v, U32x16);
#endif
}
STRATA_LANES_INLINE I32x16 Widen(I8x16 v) {
#if defined(__AVX512F__)
  return (I32x16)_mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)v);
#else
  return __builtin_convertvector(v, I32x16);
#endif
}
STRATA_LANES_INLINE F32x16 LoadBf16(const uint16_t* p) {
  U16x16 v;
  std::memcpy(&v, p, sizeof(v));
  return (F32x16)(Widen(v) << 16);
}
STRATA_LANES_INLINE F32x16 LoadInt8(const int8_t* p) {
  I8x16 v;
  std::memcpy(&v, p, sizeof(v));
  return __builtin_convertvector(Widen(v), F32x16);
}
// e4m3 codes without NaN codes: exponent and mantissa move into fp32 fields, then one exact
// multiplication by 2^120 puts the bias right, subnormals included. The sign comes along by sign
// extension.
STRATA_LANES_INLINE F32x16 LoadFp8(const uint8_t* p) {
  I8x16 v;
  std::memcpy(&v, p, sizeof(v));
  const U32x16 bits = (U32x16)Widen(v) << 20 & 0x87f00000u;
  return (F32x16)bits * 0x1p120f;
}

// The first `count` (< 16) values, zeros behind them.
template <class T>
STRATA_LANES_INLINE void CopyPadded(T (&out)[kLanes], const T* p, int64_t count) {
  for (int i = 0; i < kLanes; ++i) out[i] = i < count ? p[i] : T{};
}

// Lane l and lane l + 8, then + 4, + 2, + 1.
STRATA_LANES_INLINE float ReduceLanes(F32x16 v) {
  float lanes[kLanes];
  std::memcpy(lanes, &v, sizeof(v));
  for (int half = 8; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

// Result lane i is ReduceLanes(v[i]), bit for bit, at about three operations a value: at each of
// the four steps two vectors are folded into one that holds the next partial sums of both. v is
// destroyed.
STRATA_LANES_INLINE F32x16 ReduceLanes16(F32x16 (&v)[kLanes]) {
  // Step 1 (l + 8): vectors i and i + 8 share one register, i in the low half of the lanes.
  for (int i = 0; i < 8; ++i) {
    const F32x16 low = __builtin_shufflevector(v[i], v[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18,
                                               19, 20, 21, 22, 23);
    const F32x16 high = __builtin_shufflevector(v[i], v[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24,
                                                25, 26, 27, 28, 29, 30, 31);
    v[i] = low + high;
  }
  // Step 2 (l + 4): registers i and i + 4; groups of four lanes hold i, i + 4, i + 8, i + 12.
  for (int i = 0; i < 4; ++i) {
    const F32x16 low = __builtin_shufflevector(v[i], v[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10,
                                               11, 24, 25, 26, 27);
    const F32x16 high = __builtin_shufflevector(v[i], v[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13,
                                                14, 15, 28, 29, 30, 31);
    v[i] = low + high;
  }
  // Step 3 (l + 2).
  for (int i = 0; i < 2; ++i) {
    const F32x16 low = __builtin_shufflevector(v[i], v[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24,
                                               25, 12, 13, 28, 29);
    const F32x16 high = __builtin_shufflevector(v[i], v[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11,
                                                26, 27, 14, 15, 30, 31);
    v[i] = low + high;
  }
  // Step 4 (l + 1). Lane order is now: per group of four lanes g (i offset 0, 4, 8, 12 -> groups 0,
  // 1, 2, 3 hold offsets 0, 4, 8, 12), pair p holds offset 2, and the two registers offset 1.
  const F32x16 low = __builtin_shufflevector(v[0], v[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26,
                                             12, 28, 14, 30);
  const F32x16 high = __builtin_shufflevector(v[0], v[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27,
                                              13, 29, 15, 31);
  return low + high;
}

}  // namespace strata::cpu::STRATA_ISA_NAMESPACE
