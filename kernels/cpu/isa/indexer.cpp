#include "kernels/cpu/isa/indexer.h"

#include "kernels/cpu/dot_tile.h"
#include "kernels/cpu/lane_math.h"
#include "kernels/cpu/lanes.h"
#include "kernels/order.h"

namespace strata::cpu::STRATA_ISA_NAMESPACE {

namespace {

constexpr float kMinusInfinity = -__builtin_inff();

STRATA_LANES_INLINE int64_t Padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Stored values as fp32, zeros behind them up to a multiple of 16.
STRATA_LANES_INLINE void ConvertF32(const std::byte* source, int64_t n, float* out) {
  const float* p = reinterpret_cast<const float*>(source);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, Load(p + i));
  for (int64_t l = i; l < Padded(n); ++l) out[l] = l < n ? p[l] : 0.0f;
}
STRATA_LANES_INLINE void ConvertBf16(const std::byte* source, int64_t n, float* out) {
  const uint16_t* p = reinterpret_cast<const uint16_t*>(source);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, LoadBf16(p + i));
  for (int64_t l = i; l < Padded(n); ++l) out[l] = l < n ? Bf16ToFloat(p[l]) : 0.0f;
}
STRATA_LANES_INLINE void ConvertFp8(const std::byte* source, int64_t n, float* out) {
  const uint8_t* p = reinterpret_cast<const uint8_t*>(source);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, LoadFp8(p + i));
  for (int64_t l = i; l < Padded(n); ++l) out[l] = l < n ? Fp8ToFloat(p[l]) : 0.0f;
}

void ScanTile(const ScanArgs& args) {
  const int64_t stride = Padded(args.dim);
  for (int64_t j = 0; j < args.count; ++j) {
    float* out = args.panel + j * stride;
    if (args.key_dtype == DType::kF32) ConvertF32(args.keys[j], args.dim, out);
    if (args.key_dtype == DType::kBf16) ConvertBf16(args.keys[j], args.dim, out);
    if (args.key_dtype == DType::kFp8E4M3) ConvertFp8(args.keys[j], args.dim, out);
  }
  for (int64_t row = 0; row < args.rows; ++row) {
    int64_t visible = args.lengths[row * args.lengths_stride] - args.first_candidate;
    if (visible <= 0) continue;
    if (visible > args.count) visible = args.count;
    const float* query = args.query + row * args.query_row_stride;
    for (int64_t head = 0; head < args.heads; head += 4) {
      const int64_t heads = args.heads - head < 4 ? args.heads - head : 4;
      const float* q[4];
      for (int64_t h = 0; h < 4; ++h) q[h] = query + (head + (h < heads ? h : 0)) * args.query_head_stride;
      for (int64_t j = 0; j < visible; j += 4) {
        const float* k[4];
        for (int64_t c = 0; c < 4; ++c) k[c] = args.panel + (j + c < visible ? j + c : j) * stride;
        const F32x16 dots = DotTile4x4(q, k, args.dim);
        // The dots buffer has kScanTile columns, a multiple of 4: columns behind `visible` are never read.
        for (int64_t h = 0; h < heads; ++h) {
          float* out = args.dots + (head + h) * kScanTile + j;
          for (int64_t c = 0; c < 4; ++c) out[c] = dots[4 * h + c];
        }
      }
    }
    const float* weights = args.weights + row * args.weights_stride;
    float* scores = args.scores + row * args.scores_stride + args.first_candidate;
    for (int64_t j = 0; j < visible; j += kLanes) {
      F32x16 sums = {};
      for (int64_t h = 0; h < args.heads; ++h) {
        F32x16 dots = Load(args.dots + h * kScanTile + j);
        // !(dot <= 0) keeps NaN, which must reach the selection as NaN.
        dots = dots <= 0.0f ? F32x16{} : dots;
        sums += weights[h] * dots;
      }
      if (args.key_dtype == DType::kFp8E4M3) {
        float scales[kLanes];
        CopyPadded(scales, args.key_scales + j, visible - j);
        sums *= Load(scales);
      }
      if (visible - j >= kLanes) {
        Store(scores + j, sums);
      } else {
        for (int64_t l = 0; j + l < visible; ++l) scores[j + l] = sums[l];
      }
    }
  }
}

// Latent values [begin, begin + n) of a cell as fp32; begin is a multiple of 16.
STRATA_LANES_INLINE void ConvertLatent(const AttendArgs& args, const std::byte* cell, int64_t begin, int64_t n,
                                       float* out) {
  if (args.dtype == DType::kF32) {
    ConvertF32(cell + begin * 4, n, out);
  } else if (args.dtype == DType::kBf16) {
    ConvertBf16(cell + begin * 2, n, out);
  } else {
    float scales[1];
    const int64_t width = Padded(n);
    if (args.dtype == DType::kInt8) {
      std::memcpy(scales, cell + args.scale_offset, sizeof(float));
      const int8_t* codes = reinterpret_cast<const int8_t*>(cell) + begin;
      int64_t i = 0;
      for (; i + kLanes <= n; i += kLanes) Store(out + i, LoadInt8(codes + i) * scales[0]);
      for (; i < width; ++i) out[i] = i < n ? static_cast<float>(codes[i]) * scales[0] : 0.0f;
    } else {
      ConvertFp8(cell + begin, n, out);
      for (int64_t i = 0; i < width; i += kLanes) {  // 16 values lie under one scale
        std::memcpy(scales, cell + args.scale_offset + (begin + i) / 128 * 4, sizeof(float));
        Store(out + i, Load(out + i) * scales[0]);
      }
    }
  }
}

// A whole cell, latent then RoPE part, as fp32 with zeros up to a multiple of 16. `latent` need not be a multiple of 16:
// the RoPE part then starts inside a run of lanes.
STRATA_LANES_INLINE void ConvertCell(const AttendArgs& args, const std::byte* cell, float* out) {
  const int64_t width = args.latent + args.rope;
  if (args.dtype == DType::kF32) return ConvertF32(cell, width, out);
  if (args.dtype == DType::kBf16) return ConvertBf16(cell, width, out);
  ConvertLatent(args, cell, 0, args.latent, out);
  ConvertBf16(cell + args.rope_offset, args.rope, out + args.latent);
}

void AttendScores(const AttendArgs& args, int64_t begin, int64_t end) {
  const int64_t width = args.latent + args.rope;
  // One run of lanes more: a RoPE part that starts inside a run is padded past the padded width.
  const int64_t stride = Padded(width) + kLanes;
  for (int64_t tile = begin; tile < end; tile += kAttendTile) {
    const int64_t count = end - tile < kAttendTile ? end - tile : kAttendTile;
    for (int64_t j = 0; j < count; ++j) ConvertCell(args, args.cells[tile + j], args.panel + j * stride);
    for (int64_t head = 0; head < args.heads; head += 4) {
      const int64_t heads = args.heads - head < 4 ? args.heads - head : 4;
      const float* q[4];
      for (int64_t h = 0; h < 4; ++h) q[h] = args.query + (head + (h < heads ? h : 0)) * args.query_stride;
      for (int64_t j = 0; j < count; j += 4) {
        const int64_t cells = count - j < 4 ? count - j : 4;
        const float* k[4];
        for (int64_t c = 0; c < 4; ++c) k[c] = args.panel + (j + (c < cells ? c : 0)) * stride;
        const F32x16 dots = DotTile4x4(q, k, width) * args.scale;
        for (int64_t h = 0; h < heads; ++h) {
          float* out = args.probabilities + (head + h) * args.probability_stride + tile + j;
          for (int64_t c = 0; c < cells; ++c) out[c] = dots[4 * h + c];
        }
      }
    }
  }
}

void AttendSoftmax(const AttendArgs& args, int64_t begin, int64_t end) {
  for (int64_t head = begin; head < end; ++head) {
    float* p = args.probabilities + head * args.probability_stride;
    // Entries behind the last cell take part as -infinity: exp makes them 0.
    for (int64_t j = args.count; j < Padded(args.count); ++j) p[j] = kMinusInfinity;
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

// Four heads (repeats of the last where there are fewer) times `vectors` runs of lanes from dimension `begin`.
template <int kVectors>
STRATA_LANES_INLINE void Accumulate(const AttendArgs& args, int64_t tile, int64_t count, int64_t head, int64_t heads,
                                    int64_t begin, const float* panel, int64_t stride) {
  const float* p[4];
  float* out[4];
  F32x16 sums[4][kVectors];
  for (int64_t h = 0; h < 4; ++h) {
    const int64_t real = head + (h < heads ? h : 0);
    p[h] = args.probabilities + real * args.probability_stride + tile;
    out[h] = args.out + real * args.out_stride + begin;
    for (int v = 0; v < kVectors; ++v) sums[h][v] = Load(out[h] + v * kLanes);
  }
  for (int64_t j = 0; j < count; ++j) {
    F32x16 values[kVectors];
    for (int v = 0; v < kVectors; ++v) values[v] = Load(panel + j * stride + v * kLanes);
#pragma GCC unroll 4
    for (int h = 0; h < 4; ++h) {
      const F32x16 weight = Splat(p[h][j]);
      for (int v = 0; v < kVectors; ++v) sums[h][v] += weight * values[v];
    }
  }
  for (int64_t h = 0; h < heads; ++h)
    for (int v = 0; v < kVectors; ++v) Store(out[h] + v * kLanes, sums[h][v]);
}

// The last latent values when they do not fill a run of lanes.
STRATA_LANES_INLINE void AccumulateTail(const AttendArgs& args, int64_t tile, int64_t count, int64_t begin,
                                        int64_t end, const float* panel, int64_t stride) {
  for (int64_t head = 0; head < args.heads; ++head) {
    const float* p = args.probabilities + head * args.probability_stride + tile;
    float* out = args.out + head * args.out_stride;
    for (int64_t d = begin; d < end; ++d)
      for (int64_t j = 0; j < count; ++j) out[d] += p[j] * panel[j * stride + d - begin];
  }
}

void AttendValues(const AttendArgs& args, int64_t begin, int64_t end) {
  for (int64_t head = 0; head < args.heads; ++head)
    for (int64_t d = begin; d < end; ++d) args.out[head * args.out_stride + d] = 0.0f;
  const int64_t stride = Padded(end - begin);
  const int64_t whole = begin + (end - begin) / kLanes * kLanes;
  for (int64_t tile = 0; tile < args.count; tile += kAttendTile) {
    const int64_t count = args.count - tile < kAttendTile ? args.count - tile : kAttendTile;
    for (int64_t j = 0; j < count; ++j) {
      ConvertLatent(args, args.cells[tile + j], begin, end - begin, args.panel + j * stride);
    }
    for (int64_t head = 0; head < args.heads; head += 4) {
      const int64_t heads = args.heads - head < 4 ? args.heads - head : 4;
      int64_t d = begin;
      for (; d + 4 * kLanes <= whole; d += 4 * kLanes)
        Accumulate<4>(args, tile, count, head, heads, d, args.panel + d - begin, stride);
      for (; d < whole; d += kLanes) Accumulate<1>(args, tile, count, head, heads, d, args.panel + d - begin, stride);
    }
    if (whole < end) AccumulateTail(args, tile, count, whole, end, args.panel + whole - begin, stride);
  }
  for (int64_t head = 0; head < args.heads; ++head) {
    float* out = args.out + head * args.out_stride;
    // A sum of zero: all scores are -infinity, and the zeros stand.
    const float sum = args.sums[head] == 0.0f ? 1.0f : args.sums[head];
    for (int64_t d = begin; d < end; ++d) out[d] = out[d] / sum;
  }
}

int64_t CollectAtLeast(const float* v, int64_t begin, int64_t end, float threshold, uint64_t* words, int64_t count,
                       int64_t capacity) {
  constexpr int64_t kRun = 4 * kLanes;
  int64_t i = begin;
  for (; i + kRun <= end; i += kRun) {
    I32x16 any = Load(v + i) >= threshold;
    for (int r = 1; r < 4; ++r) any |= Load(v + i + r * kLanes) >= threshold;
    uint64_t parts[kLanes / 2];
    std::memcpy(parts, &any, sizeof(any));
    uint64_t hit = 0;
    for (uint64_t part : parts) hit |= part;
    if (hit == 0) continue;
    for (int64_t l = i; l < i + kRun; ++l) {
      if (!(v[l] >= threshold)) continue;
      if (count >= capacity) return capacity + 1;
      words[count++] = SelectionKey(FloatToBits(v[l]), static_cast<uint32_t>(l));
    }
  }
  for (; i < end; ++i) {
    if (!(v[i] >= threshold)) continue;
    if (count >= capacity) return capacity + 1;
    words[count++] = SelectionKey(FloatToBits(v[i]), static_cast<uint32_t>(i));
  }
  return count;
}

}  // namespace

extern const IndexerLoops kIndexerLoops = {ScanTile, AttendScores, AttendSoftmax, AttendValues, CollectAtLeast};

}  // namespace strata::cpu::STRATA_ISA_NAMESPACE
