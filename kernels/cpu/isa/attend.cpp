#include "kernels/cpu/isa/attend.h"

#include "kernels/cpu/lane_math.h"
#include "kernels/cpu/lanes.h"

namespace strata::cpu::STRATA_ISA_NAMESPACE {

namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// Scores are reduced sixteen at a time: eight heads by two cells. Register tiles, as many as the
// level's registers hold: kScoreHeads x 2 cells of scores, kValueHeads x kValueRuns runs of sixteen
// outputs.
constexpr int kHeads = 8, kCells = 2;
#if defined(__AVX512F__)
constexpr int kScoreHeads = 8, kValueHeads = 8, kValueRuns = 2;
#elif defined(__AVX2__)
constexpr int kScoreHeads = 2, kValueHeads = 2, kValueRuns = 2;
#else
constexpr int kScoreHeads = 1, kValueHeads = 2, kValueRuns = 1;
#endif

STRATA_LANES_INLINE float LoadScale(const std::byte* p) {
  float scale;
  std::memcpy(&scale, p, sizeof(scale));
  return scale;
}
STRATA_LANES_INLINE uint16_t LoadCode16(const std::byte* p) {
  uint16_t code;
  std::memcpy(&code, p, sizeof(code));
  return code;
}
STRATA_LANES_INLINE F32x16 LoadRopeBf16(const std::byte* p) {
  return LoadBf16(reinterpret_cast<const uint16_t*>(p));
}

// How a storage type gives its latent values d .. d + 15 (d a multiple of 16), its value d, and its
// RoPE values.
struct Fp32Cells {
  STRATA_LANES_INLINE F32x16 Latent(const AttendArgs&, const std::byte* cell, int64_t d) {
    return Load(reinterpret_cast<const float*>(cell) + d);
  }
  STRATA_LANES_INLINE float LatentValue(const AttendArgs&, const std::byte* cell, int64_t d) {
    return LoadScale(cell + 4 * d);
  }
  STRATA_LANES_INLINE F32x16 Rope(const std::byte* rope, int64_t d) {
    return Load(reinterpret_cast<const float*>(rope) + d);
  }
  STRATA_LANES_INLINE float RopeValue(const std::byte* rope, int64_t d) {
    return LoadScale(rope + 4 * d);
  }
};
struct Bf16Rope {
  STRATA_LANES_INLINE F32x16 Rope(const std::byte* rope, int64_t d) {
    return LoadRopeBf16(rope + 2 * d);
  }
  STRATA_LANES_INLINE float RopeValue(const std::byte* rope, int64_t d) {
    return Bf16ToFloat(LoadCode16(rope + 2 * d));
  }
};
struct Bf16Cells : Bf16Rope {
  STRATA_LANES_INLINE F32x16 Latent(const AttendArgs&, const std::byte* cell, int64_t d) {
    return LoadRopeBf16(cell + 2 * d);
  }
  STRATA_LANES_INLINE float LatentValue(const AttendArgs&, const std::byte* cell, int64_t d) {
    return Bf16ToFloat(LoadCode16(cell + 2 * d));
  }
};
struct Int8Cells : Bf16Rope {
  STRATA_LANES_INLINE F32x16 Latent(const AttendArgs& args, const std::byte* cell, int64_t d) {
    return LoadInt8(reinterpret_cast<const int8_t*>(cell) + d) *
           LoadScale(cell + args.scale_offset);
  }
  STRATA_LANES_INLINE float LatentValue(const AttendArgs& args, const std::byte* cell, int64_t d) {
    return static_cast<float>(static_cast<int8_t>(cell[d])) * LoadScale(cell + args.scale_offset);
  }
};
struct Fp8Cells : Bf16Rope {
  // Sixteen values lie under one scale.
  STRATA_LANES_INLINE F32x16 Latent(const AttendArgs& args, const std::byte* cell, int64_t d) {
    return LoadFp8(reinterpret_cast<const uint8_t*>(cell) + d) *
           LoadScale(cell + args.scale_offset + d / 128 * 4);
  }
  STRATA_LANES_INLINE float LatentValue(const AttendArgs& args, const std::byte* cell, int64_t d) {
    return Fp8ToFloat(static_cast<uint8_t>(cell[d])) *
           LoadScale(cell + args.scale_offset + d / 128 * 4);
  }
};

// One run of sixteen: kScoreHeads queries times kCells cells.
STRATA_LANES_INLINE void AddProducts(const float* const (&query)[kScoreHeads], int64_t d,
                                     const F32x16 (&cells)[kCells],
                                     F32x16 (&sums)[kScoreHeads][kCells]) {
#pragma GCC unroll 8
  for (int h = 0; h < kScoreHeads; ++h) {
    const F32x16 value = InRegister(Load(query[h] + d));
    for (int c = 0; c < kCells; ++c) sums[h][c] += value * cells[c];
  }
}

// The query's last values, zeros behind them.
STRATA_LANES_INLINE void PadQueries(const float* const (&query)[kScoreHeads], int64_t d,
                                    int64_t width, float (&padded)[kScoreHeads][kLanes],
                                    const float* (&pointers)[kScoreHeads]) {
  for (int h = 0; h < kScoreHeads; ++h) {
    CopyPadded(padded[h], query[h] + d, width - d);
    pointers[h] = padded[h];
  }
}

// Scores of a pair of cells against kScoreHeads queries, unreduced. The parts fill whole runs of
// sixteen.
template <class Cells>
STRATA_LANES_INLINE void ScorePair(const AttendArgs& args, const std::byte* const (&cells)[kCells],
                                   const float* const (&query)[kScoreHeads],
                                   F32x16 (&sums)[kScoreHeads][kCells]) {
  F32x16 values[kCells];
  for (int64_t d = 0; d < args.latent; d += kLanes) {
    for (int c = 0; c < kCells; ++c) values[c] = Cells::Latent(args, cells[c], d);
    AddProducts(query, d, values, sums);
  }
  for (int64_t d = 0; d < args.rope; d += kLanes) {
    for (int c = 0; c < kCells; ++c) values[c] = Cells::Rope(cells[c] + args.rope_offset, d);
    AddProducts(query, args.latent + d, values, sums);
  }
}

// The same for parts of any width, from cells that stand as fp32 with zeros behind them.
STRATA_LANES_INLINE void ScorePaddedPair(const AttendArgs& args, const float* cells,
                                         const float* const (&query)[kScoreHeads],
                                         F32x16 (&sums)[kScoreHeads][kCells]) {
  const int64_t width = args.latent + args.rope, stride = AttendCellFloats(args.latent, args.rope);
  F32x16 values[kCells];
  int64_t d = 0;
  for (; d + kLanes <= width; d += kLanes) {
    for (int c = 0; c < kCells; ++c) values[c] = Load(cells + c * stride + d);
    AddProducts(query, d, values, sums);
  }
  if (d == width) return;
  float padded[kScoreHeads][kLanes];
  const float* pointers[kScoreHeads];
  PadQueries(query, d, width, padded, pointers);
  for (int c = 0; c < kCells; ++c) values[c] = Load(cells + c * stride + d);
  AddProducts(pointers, 0, values, sums);
}

template <class Cells>
STRATA_LANES_INLINE void ConvertCell(const AttendArgs& args, const std::byte* cell, float* out) {
  for (int64_t d = 0; d < args.latent; ++d) out[d] = Cells::LatentValue(args, cell, d);
  for (int64_t d = 0; d < args.rope; ++d)
    out[args.latent + d] = Cells::RopeValue(cell + args.rope_offset, d);
  for (int64_t d = args.latent + args.rope; d < AttendCellFloats(args.latent, args.rope); ++d)
    out[d] = 0.0f;
}

// Scores of cells j and j + 1 (before `end`) for kHeads heads from `head` on.
template <class Cells>
STRATA_LANES_INLINE void ScoreTile(const AttendArgs& args, int64_t head, int64_t j, int64_t end) {
  const int64_t heads = args.heads - head < kHeads ? args.heads - head : kHeads;
  const int64_t count = end - j < kCells ? end - j : kCells;
  const std::byte* cells[kCells];
  for (int64_t c = 0; c < kCells; ++c) cells[c] = args.cells[j + (c < count ? c : 0)];
  const bool whole_runs = args.latent % kLanes == 0 && args.rope % kLanes == 0;
  if (!whole_runs) {
    for (int64_t c = 0; c < kCells; ++c) {
      ConvertCell<Cells>(args, cells[c],
                         args.cells_fp32 + c * AttendCellFloats(args.latent, args.rope));
    }
  }
  F32x16 lanes[kLanes] = {};
  for (int64_t part = 0; part < heads; part += kScoreHeads) {
    const float* query[kScoreHeads];
    for (int64_t h = 0; h < kScoreHeads; ++h) {
      query[h] = args.query + (head + (part + h < heads ? part + h : 0)) * args.query_stride;
    }
    F32x16 sums[kScoreHeads][kCells] = {};
    if (whole_runs) {
      ScorePair<Cells>(args, cells, query, sums);
    } else {
      ScorePaddedPair(args, args.cells_fp32, query, sums);
    }
    for (int h = 0; h < kScoreHeads; ++h)
      for (int c = 0; c < kCells; ++c) lanes[(part + h) * kCells + c] = sums[h][c];
  }
  const F32x16 scores = ReduceLanes16(lanes) * args.scale;
  for (int64_t h = 0; h < heads; ++h) {
    float* out = args.probabilities + (head + h) * args.probability_stride + j;
    for (int64_t c = 0; c < count; ++c) out[c] = scores[h * kCells + c];
  }
}

// Chunks of cells and the queries of a tile's heads stay in the first-level cache together.
template <class Cells>
STRATA_LANES_INLINE void ScoreCells(const AttendArgs& args, int64_t begin, int64_t end) {
  constexpr int64_t kChunk = 16;
  for (int64_t chunk = begin; chunk < end; chunk += kChunk) {
    const int64_t last = chunk + kChunk < end ? chunk + kChunk : end;
    for (int64_t head = 0; head < args.heads; head += kHeads) {
      for (int64_t j = chunk; j < last; j += kCells) ScoreTile<Cells>(args, head, j, last);
    }
  }
}

void Scores(const AttendArgs& args, int64_t begin, int64_t end) {
  if (args.dtype == DType::kF32) ScoreCells<Fp32Cells>(args, begin, end);
  if (args.dtype == DType::kBf16) ScoreCells<Bf16Cells>(args, begin, end);
  if (args.dtype == DType::kInt8) ScoreCells<Int8Cells>(args, begin, end);
  if (args.dtype == DType::kFp8E4M3) ScoreCells<Fp8Cells>(args, begin, end);
}

void Softmax(const AttendArgs& args) {
  const int64_t padded = (args.count + kLanes - 1) / kLanes * kLanes;
  for (int64_t head = 0; head < args.heads; ++head) {
    float* p = args.probabilities + head * args.probability_stride;
    // Places behind the last cell take part as -infinity: exp makes them 0.
    for (int64_t j = args.count; j < padded; ++j) p[j] = kMinusInfinity;
    F32x16 best = Splat(kMinusInfinity);
    for (int64_t j = 0; j < args.count; j += kLanes) {
      const F32x16 v = Load(p + j);
      best = v > best ? v : best;
    }
    float maximum = kMinusInfinity;
    for (int l = 0; l < kLanes; ++l) maximum = best[l] > maximum ? best[l] : maximum;
    // All scores -infinity: exp(-inf - 0) gives zeros instead of NaN.
    const float shift = maximum == kMinusInfinity ? 0.0f : maximum;
    F32x16 sums = {};
    for (int64_t j = 0; j < args.count; j += kLanes) {
      const F32x16 e = Exp(Load(p + j) - shift);
      Store(p + j, e);
      sums += e;
    }
    args.sums[head] = ReduceLanes(sums);
    args.maxima[head] = maximum;
  }
}

// A sum of zero: all scores are -infinity, and the zeros stand.
STRATA_LANES_INLINE float Divisor(const AttendArgs& args, int64_t head) {
  return args.sums[head] == 0.0f ? 1.0f : args.sums[head];
}

// Outputs d .. d + 16 * kRuns of kValueHeads heads: cells in ascending order, in registers from the
// first to the last.
template <class Cells, int kRuns>
STRATA_LANES_INLINE void Accumulate(const AttendArgs& args, int64_t head, int64_t d) {
  const int64_t heads = args.heads - head < kValueHeads ? args.heads - head : kValueHeads;
  const float* p[kValueHeads];
  for (int64_t h = 0; h < kValueHeads; ++h) {
    p[h] = args.probabilities + (head + (h < heads ? h : 0)) * args.probability_stride;
  }
  F32x16 sums[kValueHeads][kRuns] = {};
  for (int64_t j = 0; j < args.count; ++j) {
    F32x16 values[kRuns];
    for (int r = 0; r < kRuns; ++r) values[r] = Cells::Latent(args, args.cells[j], d + r * kLanes);
#pragma GCC unroll 8
    for (int h = 0; h < kValueHeads; ++h) {
      const F32x16 weight = Splat(p[h][j]);
      for (int r = 0; r < kRuns; ++r) sums[h][r] += weight * values[r];
    }
  }
  for (int64_t h = 0; h < heads; ++h) {
    float* out = args.out + (head + h) * args.out_stride + d;
    for (int r = 0; r < kRuns; ++r) Store(out + r * kLanes, sums[h][r] / Divisor(args, head + h));
  }
}

// The last latent values when they do not fill a run.
template <class Cells>
STRATA_LANES_INLINE void AccumulateTail(const AttendArgs& args, int64_t head, int64_t begin,
                                        int64_t end) {
  const float* p = args.probabilities + head * args.probability_stride;
  for (int64_t d = begin; d < end; ++d) {
    float sum = 0.0f;
    for (int64_t j = 0; j < args.count; ++j)
      sum += p[j] * Cells::LatentValue(args, args.cells[j], d);
    args.out[head * args.out_stride + d] = sum / Divisor(args, head);
  }
}

template <class Cells>
STRATA_LANES_INLINE void AccumulateCells(const AttendArgs& args, int64_t begin, int64_t end) {
  int64_t d = begin;
  for (; d + kValueRuns * kLanes <= end; d += kValueRuns * kLanes) {
    for (int64_t head = 0; head < args.heads; head += kValueHeads)
      Accumulate<Cells, kValueRuns>(args, head, d);
  }
  for (; d + kLanes <= end; d += kLanes) {
    for (int64_t head = 0; head < args.heads; head += kValueHeads)
      Accumulate<Cells, 1>(args, head, d);
  }
  if (d == end) return;
  for (int64_t head = 0; head < args.heads; ++head) AccumulateTail<Cells>(args, head, d, end);
}

void Values(const AttendArgs& args, int64_t begin, int64_t end) {
  if (args.dtype == DType::kF32) AccumulateCells<Fp32Cells>(args, begin, end);
  if (args.dtype == DType::kBf16) AccumulateCells<Bf16Cells>(args, begin, end);
  if (args.dtype == DType::kInt8) AccumulateCells<Int8Cells>(args, begin, end);
  if (args.dtype == DType::kFp8E4M3) AccumulateCells<Fp8Cells>(args, begin, end);
}

}  // namespace

extern const AttendLoops kAttendLoops = {Scores, Softmax, Values};

}  // namespace strata::cpu::STRATA_ISA_NAMESPACE
