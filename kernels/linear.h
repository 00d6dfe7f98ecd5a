// Matrix products with weights as checkpoints store them.
#pragma once

#include "kernels/device.h"
#include "kernels/view.h"

namespace strata {

constexpr int64_t kWeightScaleBlock = 128;

// A weight [rows = outputs, cols = inputs], row-major as published.
// fp8: w(o, i) = code(o, i) * scales[o / 128 * scale_stride + i / 128], rounded to fp32 before it
// is used.
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;  // kF32, kBf16 or kFp8E4M3
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;  // elements
  const float* scales = nullptr;
  int64_t scale_stride = 0;  // elements per row of blocks
};

// y(r, o) = sum_i x(r, i) * w(o, i), plus the old y(r, o) when `accumulate`.
// CPU: every output is one fixed-order 16-lane dot product, so it does not depend on the other rows
// of the call.
struct Linear {
  View<const float, 2> x;  // [rows, in], any row stride
  Matrix w;                // [out, in]
  View<float, 2> y;        // [rows, out]
  bool accumulate = false;
};
void Run(const Linear& op, Stream stream);

// The same for `batch` independent products (the heads of MLA's absorbed projections).
struct BatchedLinear {
  View<const float, 3> x;  // [batch, rows, in]
  Matrix w;                // matrix b is w.data + b * batch_stride elements; not fp8
  int64_t batch_stride = 0;
  View<float, 3> y;  // [batch, rows, out]
};
void Run(const BatchedLinear& op, Stream stream);

namespace cpu {
void Run(const Linear& op, Stream stream);
void Run(const BatchedLinear& op, Stream stream);
}  // namespace cpu
}  // namespace strata
