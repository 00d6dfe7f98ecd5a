#include "kernels/elementwise.h"

#include <fmt/format.h>

#include "kernels/cpu/isa/dense.h"
#include "kernels/cpu/partition.h"
#include "kernels/status.h"

namespace strata::cpu {

void Run(const EmbedRows& op, Stream) {
  const int64_t width = op.y.dim(1);
  for (int64_t row = 0; row < op.y.dim(0); ++row) {
    const int64_t id = op.ids(row);
    if (id < 0 || id >= op.table.rows) {
      Fail(ErrorCode::kInternal,
           fmt::format("token id {} is outside the vocabulary of {}", id, op.table.rows));
    }
    float* y = op.y.row(row);
    if (op.table.dtype == DType::kBf16) {
      const uint16_t* source =
          static_cast<const uint16_t*>(op.table.data) + id * op.table.row_stride;
      for (int64_t i = 0; i < width; ++i) y[i] = Bf16ToFloat(source[i]);
    } else {
      const float* source = static_cast<const float*>(op.table.data) + id * op.table.row_stride;
      for (int64_t i = 0; i < width; ++i) y[i] = source[i];
    }
  }
}

void Run(const SiluMul& op, Stream stream) {
  const DenseLoops& loops = ChosenDenseLoops();
  const int64_t width = op.y.dim(1);
  stream.pool->For(op.y.dim(0), Grain(16 * width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      loops.silu_mul(op.gate.row(row), op.up.row(row), op.limit, op.y.row(row), width);
    }
  });
}

void Run(const AddRows& op, Stream stream) {
  const int64_t width = op.y.dim(1);
  stream.pool->For(op.y.dim(0), Grain(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = op.x.row(row);
      float* y = op.y.row(row);
      for (int64_t i = 0; i < width; ++i) y[i] += x[i];
    }
  });
}

}  // namespace strata::cpu
