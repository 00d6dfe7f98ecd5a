#include "kernels/cpu/isa/dense.h"

#include "kernels/cpu/lane_math.h"
#include "kernels/cpu/parts.h"

namespace strata::cpu::STRATA_ISA_NAMESPACE {

namespace {

// A register tile is kTileRows rows against kTileOutputs outputs; one row or two take more outputs.
constexpr int kTileOutputs = 4;
constexpr int kTileRows = kFolds / kTileOutputs;

// Weights of a run of outputs in each storage type. Part(o, i): output o from column i on, of which
// a whole part is inside the row; At(o, i): one value.
struct F32Weights {
  const float* values;
  int64_t stride;
  STRATA_HD F32Part Part(int64_t o, int64_t i) const { return LoadPart(values + o * stride + i); }
  STRATA_HD float At(int64_t o, int64_t i) const { return values[o * stride + i]; }
  STRATA_HD F32Weights From(int64_t o) const { return {values + o * stride, stride}; }
};
struct Bf16Weights {
  const uint16_t* values;
  int64_t stride;
  STRATA_HD F32Part Part(int64_t o, int64_t i) const {
    return LoadBf16Part(values + o * stride + i);
  }
  STRATA_HD float At(int64_t o, int64_t i) const { return Bf16ToFloat(values[o * stride + i]); }
  STRATA_HD Bf16Weights From(int64_t o) const { return {values + o * stride, stride}; }
};
// The run lies inside one block of 128 outputs, a part inside one block of 128 columns.
struct Fp8Weights {
  const uint8_t* codes;
  int64_t stride;
  const float* scales;
  STRATA_HD float Scale(int64_t i) const { return scales[static_cast<uint64_t>(i) / 128]; }
  STRATA_HD F32Part Part(int64_t o, int64_t i) const {
    return LoadFp8Part(codes + o * stride + i) * Scale(i);
  }
  STRATA_HD float At(int64_t o, int64_t i) const {
    return Fp8ToFloat(codes[o * stride + i]) * Scale(i);
  }
  STRATA_HD Fp8Weights From(int64_t o) const { return {codes + o * stride, stride, scales}; }
};

STRATA_LANES_INLINE void Open(const LinearArgs& args, int64_t output, F32Weights* w) {
  *w = {static_cast<const float*>(args.w) + output * args.w_stride, args.w_stride};
}
STRATA_LANES_INLINE void Open(const LinearArgs& args, int64_t output, Bf16Weights* w) {
  *w = {static_cast<const uint16_t*>(args.w) + output * args.w_stride, args.w_stride};
}
STRATA_LANES_INLINE void Open(const LinearArgs& args, int64_t output, Fp8Weights* w) {
  *w = {static_cast<const uint8_t*>(args.w) + output * args.w_stride, args.w_stride,
        args.scales + output / 128 * args.scale_stride};
}

STRATA_LANES_INLINE void Write(const LinearArgs& args, int64_t row, int64_t output,
                               const float* results, int64_t count) {
  float* y = args.y + row * args.y_stride + output;
  if (args.accumulate) {
    for (int64_t o = 0; o < count; ++o) y[o] += results[o];
  } else {
    std::memcpy(y, results, static_cast<size_t>(count) * sizeof(float));
  }
}

// Rows [row, row + rows), rows <= kRows, against kOutputs outputs from `output` on, which are w's
// first. The tile computes kRows rows whatever `rows` is; what it lacks are copies of the first.
template <int kRows, int kOutputs, class W>
STRATA_LANES_INLINE void Tile(const LinearArgs& args, int64_t row, int64_t rows, const W& w,
                              int64_t output) {
  static_assert(kRows * kOutputs == kFolds);
  const float* x[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) x[r] = args.x + (row + (r < rows ? r : 0)) * args.x_stride;
  const int64_t in = args.in, whole = in / kLanes * kLanes;
  alignas(64) float x_tail[kRows][kLanes], w_tail[kOutputs][kLanes];
  if (whole < in) {
    for (int r = 0; r < kRows; ++r) CopyPadded(x_tail[r], x[r] + whole, in - whole);
    for (int o = 0; o < kOutputs; ++o)
      for (int64_t l = 0; l < kLanes; ++l)
        w_tail[o][l] = whole + l < in ? w.At(o, whole + l) : 0.0f;
  }
  F32Part sums[kParts][kFolds];
#pragma GCC unroll 4
  for (int part = 0; part < kParts; ++part) {
    F32Part sum[kFolds] = {};
    for (int64_t i = part * kPartLanes; i < whole; i += kLanes) {
      if constexpr (kRows == 1) {
        const F32Part input = LoadPart(x[0] + i);
#pragma GCC unroll 16
        for (int o = 0; o < kOutputs; ++o) sum[o] += w.Part(o, i) * input;
      } else {
        F32Part weights[kOutputs];
#pragma GCC unroll 8
        for (int o = 0; o < kOutputs; ++o) weights[o] = w.Part(o, i);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const F32Part input = LoadPart(x[r] + i);
#pragma GCC unroll 8
          for (int o = 0; o < kOutputs; ++o) sum[r * kOutputs + o] += weights[o] * input;
        }
      }
    }
    if (whole < in) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
        for (int o = 0; o < kOutputs; ++o)
          sum[r * kOutputs + o] +=
              LoadPart(w_tail[o] + part * kPartLanes) * LoadPart(x_tail[r] + part * kPartLanes);
    }
#pragma GCC unroll 16
    for (int s = 0; s < kFolds; ++s) sums[part][s] = sum[s];
  }
  alignas(64) float results[kFolds];
  FoldParts(sums, results);
  for (int64_t r = 0; r < rows; ++r) Write(args, row + r, output, results + r * kOutputs, kOutputs);
}

// One row against one output: what is left over where outputs do not fill a tile.
template <class W>
void Single(const LinearArgs& args, int64_t row, const W& w, int64_t output) {
  const float* x = args.x + row * args.x_stride;
  F32Part sums[kParts] = {};
  int64_t i = 0;
  for (; i + kLanes <= args.in; i += kLanes) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      const int64_t at = i + part * kPartLanes;
      sums[part] += w.Part(0, at) * LoadPart(x + at);
    }
  }
  float lanes[kLanes];
#pragma GCC unroll 4
  for (int part = 0; part < kParts; ++part) StorePart(lanes + part * kPartLanes, sums[part]);
  for (int64_t l = 0; i + l < args.in; ++l) lanes[l] += w.At(0, i + l) * x[i + l];
  const float result = FoldLanes(lanes);
  Write(args, row, output, &result, 1);
}

// At most kTileRows rows against args' outputs [output, output + outputs), which are w's first.
template <class W>
STRATA_LANES_INLINE void FewRows(const LinearArgs& args, int64_t row, int64_t rows, const W& w,
                                 int64_t output, int64_t outputs) {
  int64_t o = 0;
  if (rows == 1) {
    for (; o + kFolds <= outputs; o += kFolds)
      Tile<1, kFolds>(args, row, rows, w.From(o), output + o);
  } else if (rows == 2) {
    for (; o + kFolds / 2 <= outputs; o += kFolds / 2)
      Tile<2, kFolds / 2>(args, row, rows, w.From(o), output + o);
  } else {
    for (; o + kTileOutputs <= outputs; o += kTileOutputs)
      Tile<kTileRows, kTileOutputs>(args, row, rows, w.From(o), output + o);
  }
  for (; o < outputs; ++o)
    for (int64_t r = 0; r < rows; ++r) Single(args, row + r, w.From(o), output + o);
}

// Outputs are taken sixteen at a time. A panel of them in fp32 is meant to stay in the nearest
// cache, and the rows that pass over it in the second.
constexpr int64_t kPanelOutputs = 16;
constexpr int64_t kPanelFloats = 16 * 1024;
constexpr int64_t kBlockFloats = 64 * 1024;

template <class W>
void Linear(const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t out_begin,
            int64_t out_end) {
  // Few rows use a weight once, where it is stored; more rows use it from the panel, converted.
  const bool direct = row_end - row_begin <= kTileRows || args.in * kTileOutputs > kPanelFloats;
  int64_t rows = kTileRows, outputs = kPanelOutputs;
  if (!direct) {
    while (outputs * args.in > kPanelFloats) outputs /= 2;
    if (args.in > 0 && kBlockFloats / args.in > rows)
      rows = kBlockFloats / args.in / kTileRows * kTileRows;
  }
  alignas(64) float panel[kPanelFloats];
  for (int64_t row = row_begin; row < row_end; row += rows) {
    const int64_t block_end = row + rows < row_end ? row + rows : row_end;
    for (int64_t output = out_begin; output < out_end; output += outputs) {
      const int64_t count = out_end - output < outputs ? out_end - output : outputs;
      W w;
      Open(args, output, &w);
      if (direct) {
        FewRows(args, row, block_end - row, w, output, count);
        continue;
      }
      for (int64_t o = 0; o < count; ++o) {
        float* to = panel + o * args.in;
        int64_t i = 0;
        for (; i + kPartLanes <= args.in; i += kPartLanes) StorePart(to + i, w.Part(o, i));
        for (; i < args.in; ++i) to[i] = w.At(o, i);
      }
      const F32Weights converted{panel, args.in};
      for (int64_t r = row; r < block_end; r += kTileRows) {
        const int64_t tile_rows = block_end - r < kTileRows ? block_end - r : kTileRows;
        FewRows(args, r, tile_rows, converted, output, count);
      }
    }
  }
}

void LinearLoop(const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t out_begin,
                int64_t out_end) {
  if (args.w_dtype == DType::kF32) Linear<F32Weights>(args, row_begin, row_end, out_begin, out_end);
  if (args.w_dtype == DType::kBf16)
    Linear<Bf16Weights>(args, row_begin, row_end, out_begin, out_end);
  if (args.w_dtype == DType::kFp8E4M3)
    Linear<Fp8Weights>(args, row_begin, row_end, out_begin, out_end);
}

// Lane l sums value(i) for i = l, l + 16, ...; the lanes are then folded.
template <class Value>
STRATA_LANES_INLINE float Sum(const float* x, int64_t width, const Value& value) {
  F32Part sums[kParts] = {};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part)
      sums[part] += value(LoadPart(x + i + part * kPartLanes));
  }
  float lanes[kLanes];
#pragma GCC unroll 4
  for (int part = 0; part < kParts; ++part) StorePart(lanes + part * kPartLanes, sums[part]);
  for (int64_t l = 0; i + l < width; ++l) lanes[l] += value(F32Part{} + x[i + l])[0];
  return FoldLanes(lanes);
}

void RmsNormLoop(const float* x, const float* weight, float epsilon, float* y, int64_t width) {
  const auto square = [](F32Part v) __attribute__((always_inline)) { return v * v; };
  const float mean = Sum(x, width, square) / static_cast<float>(width);
  const float factor = 1.0f / __builtin_sqrtf(mean + epsilon);
  for (int64_t i = 0; i < width; ++i) y[i] = weight[i] * (x[i] * factor);
}

void LayerNormLoop(const float* x, const float* weight, const float* bias, float epsilon, float* y,
                   int64_t width) {
  const auto value = [](F32Part v) __attribute__((always_inline)) { return v; };
  const float mean = Sum(x, width, value) / static_cast<float>(width);
  const auto square = [mean](F32Part v) __attribute__((always_inline)) {
    return (v - mean) * (v - mean);
  };
  const float variance = Sum(x, width, square) / static_cast<float>(width);
  const float factor = 1.0f / __builtin_sqrtf(variance + epsilon);
  for (int64_t i = 0; i < width; ++i) y[i] = (x[i] - mean) * factor * weight[i] + bias[i];
}

// Applies `body` to whole parts; the last one is padded with zeros, of which nothing is stored.
template <class Body>
STRATA_LANES_INLINE void ForParts(const float* a, const float* b, float* y, int64_t width,
                                  const Body& body) {
  int64_t i = 0;
  for (; i + kPartLanes <= width; i += kPartLanes)
    StorePart(y + i, body(LoadPart(a + i), LoadPart(b + i)));
  if (i < width) {
    float first[kLanes], second[kLanes], result[kLanes];
    CopyPadded(first, a + i, width - i);
    CopyPadded(second, b + i, width - i);
    StorePart(result, body(LoadPart(first), LoadPart(second)));
    for (int64_t l = 0; i + l < width; ++l) y[i + l] = result[l];
  }
}

void SiluMulLoop(const float* gate, const float* up, float limit, float* y, int64_t width) {
  const auto silu_mul = [](F32Part g, F32Part u) __attribute__((always_inline)) {
    return g / (1.0f + Exp(-g)) * u;
  };
  if (!(limit > 0.0f)) return ForParts(gate, up, y, width, silu_mul);
  const F32Part high = F32Part{} + limit, low = F32Part{} - limit;
  ForParts(
      gate, up, y, width, [=](F32Part g, F32Part u) __attribute__((always_inline)) {
        g = g > high ? high : g;
        u = u > high ? high : u;
        u = u < low ? low : u;
        return silu_mul(g, u);
      });
}

void SigmoidLoop(const float* x, float* y, int64_t width) {
  ForParts(
      x, x, y, width, [](F32Part v, F32Part) __attribute__((always_inline)) { return Sigmoid(v); });
}

void ExpLoop(const float* x, float* y, int64_t width) {
  ForParts(
      x, x, y, width, [](F32Part v, F32Part) __attribute__((always_inline)) { return Exp(v); });
}

void AddScaledLoop(const float* x, float factor, float* y, int64_t width) {
  for (int64_t i = 0; i < width; ++i) y[i] += x[i] * factor;
}

}  // namespace

extern const DenseLoops kDenseLoops = {LinearLoop,  RmsNormLoop, LayerNormLoop, SiluMulLoop,
                                       SigmoidLoop, ExpLoop,     AddScaledLoop};

}  // namespace strata::cpu::STRATA_ISA_NAMESPACE
