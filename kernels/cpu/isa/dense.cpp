#include "kernels/cpu/isa/dense.h"

#include "kernels/cpu/dot_tile.h"
#include "kernels/cpu/lane_math.h"
#include "kernels/cpu/lanes.h"

namespace strata::cpu::STRATA_ISA_NAMESPACE {

namespace {

// Weights are converted to fp32 once for this many rows; the rows' inputs stay in the nearest
// caches meanwhile.
constexpr int64_t kRowBlock = 64;
// Inputs of a product up to this width have their weight rows converted into a panel on the stack.
constexpr int64_t kPanelWidth = 8192;
constexpr int64_t kPanelRows = 4;

STRATA_LANES_INLINE float WeightAt(const LinearArgs& args, int64_t out, int64_t i) {
  const int64_t index = out * args.w_stride + i;
  if (args.w_dtype == DType::kF32) return static_cast<const float*>(args.w)[index];
  if (args.w_dtype == DType::kBf16) return Bf16ToFloat(static_cast<const uint16_t*>(args.w)[index]);
  const float scale = args.scales[out / 128 * args.scale_stride + i / 128];
  return Fp8ToFloat(static_cast<const uint8_t*>(args.w)[index]) * scale;
}

// Sixteen weights of row `out` from column i; every column is inside the row.
STRATA_LANES_INLINE F32x16 LoadWeights(const LinearArgs& args, int64_t out, int64_t i) {
  const int64_t index = out * args.w_stride + i;
  if (args.w_dtype == DType::kF32) return Load(static_cast<const float*>(args.w) + index);
  if (args.w_dtype == DType::kBf16) return LoadBf16(static_cast<const uint16_t*>(args.w) + index);
  // A run of 16 columns from a multiple of 16 lies under one scale.
  return LoadFp8(static_cast<const uint8_t*>(args.w) + index) *
         args.scales[out / 128 * args.scale_stride + i / 128];
}

// Row `out` as fp32, padded with zeros to a multiple of 16.
STRATA_LANES_INLINE void ConvertRow(const LinearArgs& args, int64_t out, float* panel) {
  int64_t i = 0;
  for (; i + kLanes <= args.in; i += kLanes) Store(panel + i, LoadWeights(args, out, i));
  if (i < args.in) {
    for (int64_t l = 0; l < kLanes; ++l)
      panel[i + l] = i + l < args.in ? WeightAt(args, out, i + l) : 0.0f;
  }
}

STRATA_LANES_INLINE void Write(const LinearArgs& args, int64_t row, int64_t out, float value) {
  float* y = args.y + row * args.y_stride + out;
  *y = args.accumulate ? *y + value : value;
}

// One row against outputs [begin, end), sixteen at a time, straight from the stored weights.
void LinearRow(const LinearArgs& args, int64_t row, int64_t begin, int64_t end) {
  const float* x = args.x + row * args.x_stride;
  for (int64_t out = begin; out < end; out += kLanes) {
    const int64_t count = end - out < kLanes ? end - out : kLanes;
    F32x16 sums[kLanes] = {};
    int64_t i = 0;
    if (count == kLanes) {
      for (; i + kLanes <= args.in; i += kLanes) {
        const F32x16 input = Load(x + i);
        for (int64_t o = 0; o < kLanes; ++o) sums[o] += LoadWeights(args, out + o, i) * input;
      }
    } else {
      for (; i + kLanes <= args.in; i += kLanes) {
        const F32x16 input = Load(x + i);
        for (int64_t o = 0; o < count; ++o) sums[o] += LoadWeights(args, out + o, i) * input;
      }
    }
    if (i < args.in) {
      float inputs[kLanes], weights[kLanes];
      CopyPadded(inputs, x + i, args.in - i);
      for (int64_t o = 0; o < count; ++o) {
        for (int64_t l = 0; l < kLanes; ++l)
          weights[l] = i + l < args.in ? WeightAt(args, out + o, i + l) : 0.0f;
        sums[o] += Load(weights) * Load(inputs);
      }
    }
    const F32x16 results = ReduceLanes16(sums);
    if (count == kLanes && !args.accumulate) {
      Store(args.y + row * args.y_stride + out, results);
    } else {
      for (int64_t o = 0; o < count; ++o) Write(args, row, out + o, results[o]);
    }
  }
}

// Rows [begin, end) against four outputs whose weights are in `panel` (each `stride` floats,
// zero-padded).
void LinearPanel(const LinearArgs& args, int64_t begin, int64_t end, int64_t out, int64_t outs,
                 const float* panel, int64_t stride) {
  for (int64_t row = begin; row < end; row += 4) {
    const int64_t rows = end - row < 4 ? end - row : 4;
    const float* x[4];
    for (int64_t r = 0; r < 4; ++r) x[r] = args.x + (row + (r < rows ? r : 0)) * args.x_stride;
    const float* w[4];
    for (int64_t o = 0; o < 4; ++o) w[o] = panel + (o < outs ? o : 0) * stride;
    const F32x16 results = DotTile4x4(x, w, args.in);  // lane 4 * row + out
    if (outs == 4 && rows == 4 && !args.accumulate) {
      for (int64_t r = 0; r < 4; ++r) {
        float* y = args.y + (row + r) * args.y_stride + out;
        for (int64_t o = 0; o < 4; ++o) y[o] = results[4 * r + o];
      }
    } else {
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t o = 0; o < outs; ++o) Write(args, row + r, out + o, results[4 * r + o]);
    }
  }
}

void LinearLoop(const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t out_begin,
                int64_t out_end) {
  if (row_end - row_begin < 3 || args.in > kPanelWidth) {
    for (int64_t row = row_begin; row < row_end; ++row) LinearRow(args, row, out_begin, out_end);
    return;
  }
  alignas(64) float panel[kPanelRows * kPanelWidth];
  const int64_t stride = (args.in + kLanes - 1) / kLanes * kLanes;
  for (int64_t row = row_begin; row < row_end; row += kRowBlock) {
    const int64_t block_end = row + kRowBlock < row_end ? row + kRowBlock : row_end;
    for (int64_t out = out_begin; out < out_end; out += kPanelRows) {
      const int64_t outs = out_end - out < kPanelRows ? out_end - out : kPanelRows;
      for (int64_t o = 0; o < outs; ++o) ConvertRow(args, out + o, panel + o * stride);
      LinearPanel(args, row, block_end, out, outs, panel, stride);
    }
  }
}

void RmsNormLoop(const float* x, const float* weight, float epsilon, float* y, int64_t width) {
  const float mean = Dot(x, x, width) / static_cast<float>(width);
  const float factor = 1.0f / __builtin_sqrtf(mean + epsilon);
  for (int64_t i = 0; i < width; ++i) y[i] = weight[i] * (x[i] * factor);
}

void LayerNormLoop(const float* x, const float* weight, const float* bias, float epsilon, float* y,
                   int64_t width) {
  F32x16 sums = {};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) sums += Load(x + i);
  if (i < width) {
    float tail[kLanes];
    CopyPadded(tail, x + i, width - i);
    sums += Load(tail);
  }
  const float mean = ReduceLanes(sums) / static_cast<float>(width);
  F32x16 squares = {};
  for (i = 0; i + kLanes <= width; i += kLanes) {
    const F32x16 centred = Load(x + i) - mean;
    squares += centred * centred;
  }
  if (i < width) {
    float tail[kLanes];
    for (int64_t l = 0; l < kLanes; ++l) tail[l] = i + l < width ? x[i + l] - mean : 0.0f;
    squares += Load(tail) * Load(tail);
  }
  const float variance = ReduceLanes(squares) / static_cast<float>(width);
  const float factor = 1.0f / __builtin_sqrtf(variance + epsilon);
  for (i = 0; i < width; ++i) y[i] = (x[i] - mean) * factor * weight[i] + bias[i];
}

// Applies `body` to runs of sixteen values; the last run is padded with zeros, of which nothing is
// stored.
template <class Body>
STRATA_LANES_INLINE void ForLanes(const float* a, const float* b, float* y, int64_t width,
                                  const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) Store(y + i, body(Load(a + i), Load(b + i)));
  if (i < width) {
    float first[kLanes], second[kLanes], result[kLanes];
    CopyPadded(first, a + i, width - i);
    CopyPadded(second, b + i, width - i);
    Store(result, body(Load(first), Load(second)));
    for (int64_t l = 0; i + l < width; ++l) y[i + l] = result[l];
  }
}

void SiluMulLoop(const float* gate, const float* up, float limit, float* y, int64_t width) {
  ForLanes(
      gate, up, y, width, [limit](F32x16 g, F32x16 u) __attribute__((always_inline)) {
        if (limit > 0.0f) {
          const F32x16 high = Splat(limit), low = Splat(-limit);
          g = g > high ? high : g;
          u = u > high ? high : u;
          u = u < low ? low : u;
        }
        return g / (1.0f + Exp(-g)) * u;
      });
}

void SigmoidLoop(const float* x, float* y, int64_t width) {
  ForLanes(
      x, x, y, width, [](F32x16 v, F32x16) __attribute__((always_inline)) { return Sigmoid(v); });
}

void ExpLoop(const float* x, float* y, int64_t width) {
  ForLanes(
      x, x, y, width, [](F32x16 v, F32x16) __attribute__((always_inline)) { return Exp(v); });
}

void AddScaledLoop(const float* x, float factor, float* y, int64_t width) {
  for (int64_t i = 0; i < width; ++i) y[i] += x[i] * factor;
}

}  // namespace

extern const DenseLoops kDenseLoops = {LinearLoop,  RmsNormLoop, LayerNormLoop, SiluMulLoop,
                                       SigmoidLoop, ExpLoop,     AddScaledLoop};

}  // namespace strata::cpu::STRATA_ISA_NAMESPACE
