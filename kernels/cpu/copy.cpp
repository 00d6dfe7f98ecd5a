#include "kernels/copy.h"

#include <cstring>

namespace strata::cpu {

namespace {

// Below this many bytes a call on one thread is cheaper than waking the others.
constexpr int64_t kInlineBytes = 64 * 1024;

}  // namespace

void Run(const CopyRows& op, Stream stream) {
  const int64_t heads = op.x.dim(1);
  const size_t bytes = static_cast<size_t>(op.x.dim(2)) * sizeof(float);
  const int64_t row_bytes = heads * static_cast<int64_t>(bytes);
  const int64_t grain = row_bytes > 0 ? kInlineBytes / row_bytes + 1 : 1;
  stream.pool->For(op.x.dim(0), grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        std::memcpy(&op.y(row, head, 0), &op.x(row, head, 0), bytes);
      }
    }
  });
}

void Run(const GatherRows& op, Stream) {
  const size_t bytes = static_cast<size_t>(op.x.dim(1)) * sizeof(float);
  for (int64_t i = 0; i < op.rows.dim(0); ++i) {
    std::memcpy(op.y.row(i), op.x.row(op.rows(i)), bytes);
  }
}

}  // namespace strata::cpu
