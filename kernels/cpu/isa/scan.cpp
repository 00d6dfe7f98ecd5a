#include "kernels/cpu/isa/scan.h"

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/transpose.h"

namespace strata::cpu::STRATA_ISA_NAMESPACE {

namespace {

// The register tile: heads x groups of sixteen keys, as many as the level's registers hold.
#if defined(__AVX512F__)
constexpr int kTileHeads = 4, kTileGroups = 2;
#elif defined(__AVX2__)
constexpr int kTileHeads = 4, kTileGroups = 1;
#else
constexpr int kTileHeads = 2, kTileGroups = 1;
#endif

// Values `index` (fp32), 2 * index and 2 * index + 1 (bf16) or 4 * index .. 4 * index + 3 (fp8) of
// sixteen keys, from the 32-bit words that hold them.
STRATA_LANES_INLINE void UnpackWords(U32x16 words, DType dtype, float* out) {
  if (dtype == DType::kF32) {
    Store(out, (F32x16)words);
  } else if (dtype == DType::kBf16) {
    Store(out, (F32x16)(words << 16));
    Store(out + kLanes, (F32x16)(words & 0xffff0000u));
  } else {
#pragma GCC unroll 4
    for (int byte = 0; byte < 4; ++byte) {
      // As LoadFp8: sign, exponent and mantissa move into fp32 fields, one exact multiplication
      // puts the bias right.
      const U32x16 code = words >> (8 * byte);
      const U32x16 bits = (code & 0x80u) << 24 | (code & 0x7fu) << 20;
      Store(out + byte * kLanes, (F32x16)bits * 0x1p120f);
    }
  }
}

STRATA_LANES_INLINE void FillGroup(const std::byte* const (&keys)[kLanes], DType dtype,
                                   int64_t bytes, float* out) {
  for (int64_t begin = 0; begin < bytes; begin += 64) {
    U32x16 words[kLanes];
    const int64_t size = bytes - begin < 64 ? bytes - begin : 64;
    if (size == 64) {
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) std::memcpy(&words[j], keys[j] + begin, 64);
    } else {
      for (int j = 0; j < kLanes; ++j) {
        words[j] = U32x16{};
        std::memcpy(&words[j], keys[j] + begin, static_cast<size_t>(size));
      }
    }
    Transpose(words);
    const int64_t values = dtype == DType::kF32 ? 1 : dtype == DType::kBf16 ? 2 : 4;  // in a word
#pragma GCC unroll 16
    for (int w = 0; w < kLanes; ++w) UnpackWords(words[w], dtype, out + w * values * kLanes);
    out += kLanes * values * kLanes;
  }
}

void FillPanel(const std::byte* const* keys, int64_t count, DType dtype, int64_t dim,
               float* panel) {
  const int64_t bytes = dim * (dtype == DType::kF32 ? 4 : dtype == DType::kBf16 ? 2 : 1);
  for (int64_t first = 0; first < count; first += kLanes) {
    const std::byte* group[kLanes];
    for (int64_t j = 0; j < kLanes; ++j) group[j] = keys[first + j < count ? first + j : count - 1];
    float* out = panel + first * PanelValues(dtype, dim);
    if (dtype == DType::kF32) FillGroup(group, DType::kF32, bytes, out);
    if (dtype == DType::kBf16) FillGroup(group, DType::kBf16, bytes, out);
    if (dtype == DType::kFp8E4M3) FillGroup(group, DType::kFp8E4M3, bytes, out);
  }
}

// Dot products of kTileHeads queries with the keys of kGroups groups. Keys lie in lanes, so the
// sixteen partial sums of a dot product are sixteen vectors: sum l takes values l, l + 16, ...; the
// sums are then added pairwise in the order of ReduceLanes (l and l + 8, then + 4, + 2, + 1), each
// pair as soon as it is complete.
template <int kGroups>
STRATA_LANES_INLINE void Dots(const float* const (&query)[kTileHeads], const float* panel,
                              int64_t group_floats, int64_t dim,
                              F32x16 (&dots)[kTileHeads][kGroups]) {
  constexpr int kOrder[kLanes] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};
  F32x16 waiting[4][kTileHeads][kGroups];
  for (int i = 0; i < kLanes; ++i) {
    F32x16 sums[kTileHeads][kGroups] = {};
    for (int64_t d = kOrder[i]; d < dim; d += kLanes) {
      F32x16 keys[kGroups];
      for (int g = 0; g < kGroups; ++g) keys[g] = Load(panel + g * group_floats + d * kLanes);
#pragma GCC unroll 8
      for (int h = 0; h < kTileHeads; ++h) {
        const F32x16 value = Splat(query[h][d]);
        for (int g = 0; g < kGroups; ++g) sums[h][g] += value * keys[g];
      }
    }
    // Level n waits for the second of its pair: bit n of i says which of the two this is.
    int level = 0;
    for (; (i >> level & 1) != 0; ++level) {
      for (int h = 0; h < kTileHeads; ++h)
        for (int g = 0; g < kGroups; ++g) sums[h][g] = waiting[level][h][g] + sums[h][g];
    }
    for (int h = 0; h < kTileHeads; ++h)
      for (int g = 0; g < kGroups; ++g) (level == 4 ? dots : waiting[level])[h][g] = sums[h][g];
  }
}

// Scores of kGroups groups of candidates from `first` on: heads in ascending order.
template <int kGroups>
STRATA_LANES_INLINE void ScoreGroups(const ScanRowArgs& args, int64_t first) {
  const int64_t group_floats = args.panel_values * kLanes;
  const float* panel = args.panel + first * args.panel_values;
  F32x16 scores[kGroups] = {};
  for (int64_t head = 0; head < args.heads; head += kTileHeads) {
    const int64_t heads = args.heads - head < kTileHeads ? args.heads - head : kTileHeads;
    const float* query[kTileHeads];
    for (int64_t h = 0; h < kTileHeads; ++h)
      query[h] = args.query + (head + (h < heads ? h : 0)) * args.head_stride;
    F32x16 dots[kTileHeads][kGroups];
    Dots<kGroups>(query, panel, group_floats, args.dim, dots);
    for (int64_t h = 0; h < heads; ++h) {
      const F32x16 weight = Splat(args.weights[head + h]);
      for (int g = 0; g < kGroups; ++g) {
        // Not max(): NaN must reach the selection as NaN.
        const F32x16 positive = dots[h][g] <= 0.0f ? F32x16{} : dots[h][g];
        scores[g] += weight * positive;
      }
    }
  }
  for (int g = 0; g < kGroups; ++g) {
    const int64_t begin = first + g * kLanes;
    if (args.key_scales != nullptr) scores[g] *= Load(args.key_scales + begin);
    if (begin + kLanes <= args.visible) {
      Store(args.scores + begin, scores[g]);
    } else {
      for (int64_t l = 0; begin + l < args.visible; ++l) args.scores[begin + l] = scores[g][l];
    }
  }
}

void ScoreRow(const ScanRowArgs& args) {
  int64_t first = 0;
  for (; first + (kTileGroups - 1) * kLanes < args.visible; first += kTileGroups * kLanes) {
    ScoreGroups<kTileGroups>(args, first);
  }
  for (; first < args.visible; first += kLanes) ScoreGroups<1>(args, first);
}

}  // namespace

extern const ScanLoops kScanLoops = {FillPanel, ScoreRow};

}  // namespace strata::cpu::STRATA_ISA_NAMESPACE
