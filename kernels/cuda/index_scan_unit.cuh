// What the scans share: relu, and how those of every architecture walk a group's rows, at most
// `rows_per_unit` rows at a time over a stretch of keys.
#pragma once

#include "kernels/index_scan.h"
#include "kernels/order.h"

namespace strata::cuda {

// max(x, 0), and NaN for NaN, which fmaxf() would make 0.
__device__ __forceinline__ float Relu(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
#else
  return x <= 0.0f ? 0.0f : x;
#endif
}

struct ScanUnit {
  int first_row, rows, longest;
  const int32_t* table;
};

__device__ __forceinline__ int VisibleKeys(const IndexScan& op, int64_t row) {
  return min(max(op.lengths(row), 0), static_cast<int>(op.scores.dim(1)));
}

// Unit `unit` of group `group`; no rows when there is none.
__device__ __forceinline__ ScanUnit UnitOf(const IndexScan& op, int group, int unit,
                                           int rows_per_unit) {
  ScanUnit found{0, 0, 0, nullptr};
  const int end = op.rows.first_row(group + 1);
  found.first_row = op.rows.first_row(group) + unit * rows_per_unit;
  found.rows = min(end - found.first_row, rows_per_unit);
  if (found.rows <= 0) return found;
  for (int r = 0; r < found.rows; ++r)
    found.longest = max(found.longest, VisibleKeys(op, found.first_row + r));
  found.table = op.keys.block_table.row(op.rows.sequence(found.first_row));
  return found;
}

__device__ __forceinline__ const std::byte* KeyAt(const IndexScan& op, const ScanUnit& unit,
                                                  int key) {
  const int per_page = static_cast<int>(op.keys.layout.KeysPerPage()), page = key / per_page;
  return op.keys.base + __ldg(unit.table + page) * op.keys.page_stride +
         (key - page * per_page) * op.keys.layout.KeyBytes();
}

__device__ __forceinline__ void StoreScore(const IndexScan& op, int row, int key, float score) {
  op.scores.data[row * op.scores.stride[0] + key] = score;
  if (op.histogram.data != nullptr)
    atomicAdd(&op.histogram(row, OrderKey(__float_as_uint(score)) >> 21), 1u);
}

}  // namespace strata::cuda
