// The hot loops of the dense ops, one table per vector width; all tables compute the same bits.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace strata::cpu {

// y(r, o) = sum_i x(r, i) * w(o, i) (+ the old y), raw pointers, strides in elements.
struct LinearArgs {
  const float* x;
  int64_t x_stride;
  const void* w;
  DType w_dtype;
  int64_t w_stride;
  const float* scales;  // fp8 only
  int64_t scale_stride;
  float* y;
  int64_t y_stride;
  int64_t in;
  bool accumulate;
};

struct DenseLoops {
  // Rows [row_begin, row_end) times outputs [out_begin, out_end); out_begin is a multiple of 16.
  void (*linear)(const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t out_begin,
                 int64_t out_end);
  void (*rms_norm)(const float* x, const float* weight, float epsilon, float* y, int64_t width);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float epsilon,
                     float* y, int64_t width);
  // limit 0: no clamp.
  void (*silu_mul)(const float* gate, const float* up, float limit, float* y, int64_t width);
  void (*sigmoid)(const float* x, float* y, int64_t width);
  void (*exp)(const float* x, float* y, int64_t width);
  // y += x * factor
  void (*add_scaled)(const float* x, float factor, float* y, int64_t width);
};

namespace baseline {
extern const DenseLoops kDenseLoops;
}
namespace avx2 {
extern const DenseLoops kDenseLoops;
}
namespace avx512 {
extern const DenseLoops kDenseLoops;
}

// The table of ChosenIsa().
const DenseLoops& ChosenDenseLoops();

}  // namespace strata::cpu
