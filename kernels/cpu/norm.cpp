#include "kernels/norm.h"

#include "kernels/cpu/isa/dense.h"
#include "kernels/cpu/partition.h"

namespace strata::cpu {

void Run(const RmsNorm& op, Stream stream) {
  const DenseLoops& loops = ChosenDenseLoops();
  const int64_t width = op.x.dim(1);
  stream.pool->For(op.x.dim(0), Grain(2 * width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      loops.rms_norm(op.x.row(row), op.weight.data, op.epsilon, op.y.row(row), width);
    }
  });
}

void Run(const LayerNorm& op, Stream stream) {
  const DenseLoops& loops = ChosenDenseLoops();
  const int64_t width = op.x.dim(1);
  stream.pool->For(op.x.dim(0), Grain(4 * width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      loops.layer_norm(op.x.row(row), op.weight.data, op.bias.data, op.epsilon, op.y.row(row),
                       width);
    }
  });
}

}  // namespace strata::cpu
