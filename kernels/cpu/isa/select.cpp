#include "kernels/cpu/isa/select.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "kernels/cpu/lanes.h"
#include "kernels/order.h"

namespace strata::cpu::STRATA_ISA_NAMESPACE {

namespace {

// ---- masks of sixteen lanes (-1 or 0 in each) ----

STRATA_LANES_INLINE uint32_t MaskBits(I32x16 mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask);
#else
  // Sixteen bytes of the lanes, then one bit of each.
  typedef int16_t I16x16 __attribute__((vector_size(32)));
  const I8x16 bytes = __builtin_convertvector(__builtin_convertvector(mask, I16x16), I8x16);
#if defined(__SSE2__)
  typedef char C8x16 __attribute__((vector_size(16)));
  return static_cast<uint32_t>(__builtin_ia32_pmovmskb128((C8x16)bytes));
#else
  uint32_t bits = 0;
  for (int l = 0; l < kLanes; ++l) bits |= static_cast<uint32_t>(bytes[l] & 1) << l;
  return bits;
#endif
#endif
}

// Writes the lanes of `v` whose bit is set to out[0], out[1] ...; places behind them, up to
// sixteen, are overwritten.
STRATA_LANES_INLINE void Compress(int32_t* out, I32x16 v, uint32_t bits) {
#if defined(__AVX512F__)
  _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(static_cast<__mmask16>(bits), (__m512i)v));
#else
  int32_t lanes[kLanes];
  std::memcpy(lanes, &v, sizeof(v));
  for (; bits != 0; bits &= bits - 1) *out++ = lanes[__builtin_ctz(bits)];
#endif
}

STRATA_LANES_INLINE I32x16 LanesFrom(int64_t first) {
  const I32x16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lanes + static_cast<int32_t>(first);
}
// The bits of the lanes before `count`.
STRATA_LANES_INLINE uint32_t FirstBits(int64_t count) {
  return count >= kLanes ? 0xffffu : (1u << count) - 1u;
}

// order.h's OrderKey on sixteen lanes.
STRATA_LANES_INLINE U32x16 OrderKeys(F32x16 scores) {
  U32x16 bits = (U32x16)scores;
  bits = bits == 0x80000000u ? U32x16{} : bits;
  const U32x16 negative = (U32x16)((I32x16)bits >> 31);  // all ones where the sign is set
  const U32x16 keys = bits ^ (negative | 0x80000000u);
  return (bits & 0x7fffffffu) > 0x7f800000u ? U32x16{} : keys;
}

STRATA_LANES_INLINE void WidenRange(U32x16 keys, U32x16& lowest, U32x16& highest) {
  lowest = keys < lowest ? keys : lowest;
  highest = keys > highest ? keys : highest;
}
STRATA_LANES_INLINE KeyRange FoldRange(U32x16 lowest, U32x16 highest) {
  KeyRange range = {0xffffffffu, 0u};
  for (int l = 0; l < kLanes; ++l) {
    range.lowest = lowest[l] < range.lowest ? lowest[l] : range.lowest;
    range.highest = highest[l] > range.highest ? highest[l] : range.highest;
  }
  return range;
}

// A run of at most sixteen values, the last one repeated behind them.
template <class V, class T>
STRATA_LANES_INLINE V LoadRun(const T* p, int64_t count) {
  V v;
  if (count >= kLanes) {
    std::memcpy(&v, p, sizeof(v));
  } else {
    T lanes[kLanes];
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] = p[l < count ? l : count - 1];
    std::memcpy(&v, lanes, sizeof(v));
  }
  return v;
}

KeyRange OrderKeysOfRow(const float* scores, int64_t n, uint32_t* keys) {
  U32x16 lowest = ~U32x16{}, highest = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    const U32x16 run = OrderKeys(LoadRun<F32x16>(scores + i, n - i));
    std::memcpy(keys + i, &run, sizeof(run));  // into the slack behind the last
    WidenRange(run, lowest, highest);
  }
  return FoldRange(lowest, highest);
}

// One run: true while there is room for another.
STRATA_LANES_INLINE bool CollectRun(F32x16 scores, uint32_t valid, int64_t first, float threshold,
                                    Collected* out) {
  const uint32_t above = MaskBits(scores > threshold) & valid;
  if (above != 0) {
    if (out->count + kLanes > out->capacity + kAppendSlack) {
      out->count = out->capacity + 1;
      return false;
    }
    Compress(reinterpret_cast<int32_t*>(out->keys + out->count), (I32x16)OrderKeys(scores), above);
    Compress(out->positions + out->count, LanesFrom(first), above);
    out->count += __builtin_popcount(above);
  }
  if (out->equal_count < out->equal_capacity) {
    const uint32_t equal = MaskBits(scores == threshold) & valid;
    if (equal != 0) {
      Compress(out->equal_positions + out->equal_count, LanesFrom(first), equal);
      out->equal_count += __builtin_popcount(equal);
    }
  }
  return true;
}

void Collect(const float* scores, int64_t begin, int64_t end, float threshold, Collected* out) {
  Collected local = *out;
  int64_t i = begin;
  bool room = true;
  for (; room && i + kLanes <= end; i += kLanes)
    room = CollectRun(Load(scores + i), 0xffffu, i, threshold, &local);
  if (room && i < end)
    CollectRun(LoadRun<F32x16>(scores + i, end - i), FirstBits(end - i), i, threshold, &local);
  if (local.count > local.capacity) local.count = local.capacity + 1;
  if (local.equal_count > local.equal_capacity) local.equal_count = local.equal_capacity;
  *out = local;
}

int64_t KeepRange(const uint32_t* keys, int64_t n, KeyRange* range, uint32_t* out) {
  const U32x16 from = U32x16{} + range->lowest, to = U32x16{} + range->highest;
  U32x16 lowest = ~U32x16{}, highest = {};
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += kLanes) {
    const U32x16 run = LoadRun<U32x16>(keys + i, n - i);
    const I32x16 inside = (run >= from) & (run <= to);
    const U32x16 kept_low = inside ? run : ~U32x16{}, kept_high = inside ? run : U32x16{};
    lowest = kept_low < lowest ? kept_low : lowest;
    highest = kept_high > highest ? kept_high : highest;
    const uint32_t bits = MaskBits(inside) & FirstBits(n - i);
    Compress(reinterpret_cast<int32_t*>(out + count), (I32x16)run, bits);
    count += __builtin_popcount(bits);
  }
  *range = FoldRange(lowest, highest);
  return count;
}

int64_t Emit(const uint32_t* keys, const int32_t* positions, int64_t n, uint32_t kth, int64_t ties,
             int32_t* out) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += kLanes) {
    const U32x16 run = LoadRun<U32x16>(keys + i, n - i);
    const I32x16 places =
        positions == nullptr ? LanesFrom(i) : LoadRun<I32x16>(positions + i, n - i);
    const uint32_t valid = FirstBits(n - i);
    uint32_t bits = MaskBits(run > kth) & valid;
    if (ties > 0) {
      uint32_t equal = MaskBits(run == kth) & valid;
      while (__builtin_popcount(equal) > ties) equal ^= 0x80000000u >> __builtin_clz(equal);
      ties -= __builtin_popcount(equal);
      bits |= equal;
    }
    if (bits == 0) continue;
    Compress(out + count, places, bits);
    count += __builtin_popcount(bits);
  }
  return count;
}

}  // namespace

extern const SelectLoops kSelectLoops = {OrderKeysOfRow, Collect, KeepRange, Emit};

}  // namespace strata::cpu::STRATA_ISA_NAMESPACE
