#include "kernels/rope.h"

#include "kernels/cpu/math.h"
#include "kernels/cpu/partition.h"

namespace strata::cpu {

void Run(const RopeTable& op, Stream stream) {
  const int64_t half = op.frequencies.dim(0);
  // A sine and cosine cost about 50 multiply-adds.
  stream.pool->For(op.positions.dim(0), Grain(50 * half), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float position = static_cast<float>(op.positions(row));
      for (int64_t j = 0; j < half; ++j) {
        const SineCosine value = SinCos(position * op.frequencies(j));
        op.cosines(row, j) = static_cast<float>(value.cosine) * op.scale;
        op.sines(row, j) = static_cast<float>(value.sine) * op.scale;
      }
    }
  });
}

void Run(const Rope& op, Stream stream) {
  const int64_t half = op.cosines.dim(1);
  const int64_t heads = op.x.dim(1);
  const bool interleaved = op.pairing == RopePairing::kInterleaved;
  const int64_t step = interleaved ? 2 : 1;
  const int64_t other = interleaved ? 1 : half;
  stream.pool->For(op.x.dim(0), Grain(4 * half * heads), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* cosines = op.cosines.row(row);
      const float* sines = op.sines.row(row);
      for (int64_t head = 0; head < heads; ++head) {
        float* x = &op.x(row, head, 0);
        for (int64_t j = 0; j < half; ++j) {
          const float a = x[j * step], b = x[j * step + other];
          x[j * step] = a * cosines[j] - b * sines[j];
          x[j * step + other] = b * cosines[j] + a * sines[j];
        }
      }
    }
  });
}

}  // namespace strata::cpu
