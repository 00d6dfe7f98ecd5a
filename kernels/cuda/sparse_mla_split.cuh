// What the portable sparse attention kernels share: ids are cut into splits of fixed size, each
// split leaves a partial result in the workspace, and a second kernel merges a row's splits in
// order. The cut depends on the columns alone, so a row's answer does not depend on the batch.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/sparse_mla.h"

namespace strata::cuda {

constexpr int kSplitIds = 256;

// Workspace: facts [rows][splits][heads], then results [rows][splits][heads][latent]. Facts:
// maximum of the exponents (base 2) and the sum of 2^(exponent - maximum).
struct SplitWorkspace {
  float* results;
  float2* facts;
  int splits;
};

inline int SplitCount(int64_t columns) {
  return static_cast<int>(columns < 1 ? 1 : (columns + kSplitIds - 1) / kSplitIds);
}
size_t SplitWorkspaceBytes(int64_t rows, int64_t heads, int64_t columns, DType dtype,
                           int64_t latent);
SplitWorkspace TakeSplitWorkspace(const SparseMla& op);
// Writes op.out and op.lse from the workspace.
void MergeSplits(const SparseMla& op, const SplitWorkspace& workspace, cudaStream_t stream);

// Where row `row`'s id in `column` lies; null when the id is not valid.
__device__ __forceinline__ const std::byte* SelectedRow(const SparseMla& op, int64_t row,
                                                        int64_t column) {
  if (column >= op.ids.dim(1)) return nullptr;
  const int32_t id = op.ids(row, column);
  if (id < 0 || id >= op.lengths(row) || id / kPageCells >= op.pages.block_table.dim(1))
    return nullptr;
  const int64_t page = op.pages.block_table(op.rows.sequence(row), id / kPageCells);
  return op.pages.base + page * op.pages.page_stride + id % kPageCells * op.pages.layout.RowBytes();
}

// Value d of a stored row, latent values first.
template <DType kDType>
__device__ __forceinline__ float StoredValue(const LatentLayout& layout, const std::byte* row,
                                             int d) {
  if constexpr (kDType == DType::kF32) return reinterpret_cast<const float*>(row)[d];
  if constexpr (kDType == DType::kBf16) {
    return Bf16ToFloat(reinterpret_cast<const uint16_t*>(row)[d]);
  }
  const int latent = static_cast<int>(layout.latent);
  if (d >= latent) {
    return Bf16ToFloat(
        reinterpret_cast<const uint16_t*>(row + latent + layout.ScaleBytes())[d - latent]);
  }
  const float* scales = reinterpret_cast<const float*>(row + latent);
  if constexpr (kDType == DType::kInt8) {
    return reinterpret_cast<const int8_t*>(row)[d] * scales[0];
  }
  // Sign and magnitude moved to the places that f16 has for them read as the value / 256.
  const unsigned code = reinterpret_cast<const uint8_t*>(row)[d];
  const __half_raw bits{static_cast<unsigned short>((code & 0x80u) << 8 | (code & 0x7fu) << 7)};
  return __half2float(__half(bits)) * 256.0f * scales[d / static_cast<int>(kFp8ScaleBlock)];
}

__device__ __forceinline__ float QueryValue(const SparseMla& op, int64_t row, int64_t head,
                                            int64_t d) {
  const int64_t at = row * op.query.stride[0] + head * op.query.stride[1] + d;
  return op.query.dtype == DType::kBf16
             ? Bf16ToFloat(static_cast<const uint16_t*>(op.query.data)[at])
             : static_cast<const float*>(op.query.data)[at];
}

// Calls launch.operator()<type>() with the storage type of the rows.
template <class Launch>
void WithStorageType(DType dtype, Launch&& launch) {
  switch (dtype) {
    case DType::kF32:
      return launch.template operator()<DType::kF32>();
    case DType::kBf16:
      return launch.template operator()<DType::kBf16>();
    case DType::kInt8:
      return launch.template operator()<DType::kInt8>();
    default:
      return launch.template operator()<DType::kFp8E4M3>();
  }
}

}  // namespace strata::cuda
