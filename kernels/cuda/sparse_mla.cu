// Sparse attention on CUDA: the choice of the variant, and the merge that the portable variants
// share.
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/device_scope.h"
#include "kernels/cuda/sparse_mla_split.cuh"
#include "kernels/cuda/sparse_mla_variants.h"
#include "kernels/status.h"

namespace strata::cuda {

namespace {

constexpr float kLog2E = 1.4426950408889634f;

// One CTA per (head, row).
__global__ void __launch_bounds__(128)
    MergeSplitsKernel(const __grid_constant__ SparseMla op,
                      const __grid_constant__ SplitWorkspace workspace) {
  const int64_t row = blockIdx.y, head = blockIdx.x, heads = op.query.dim(1),
                latent = op.out.dim(2);
  float maximum = -INFINITY;
  for (int s = 0; s < workspace.splits; ++s) {
    maximum = fmaxf(maximum, workspace.facts[(row * workspace.splits + s) * heads + head].x);
  }
  const float reference = maximum == -INFINITY ? 0.0f : maximum;
  float sum = 0.0f;
  for (int s = 0; s < workspace.splits; ++s) {
    const float2 facts = workspace.facts[(row * workspace.splits + s) * heads + head];
    sum = __fmaf_rn(facts.y, exp2f(facts.x - reference), sum);
  }
  const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
  for (int64_t d = threadIdx.x; d < latent; d += blockDim.x) {
    float value = 0.0f;
    for (int s = 0; s < workspace.splits; ++s) {
      const int64_t at = (row * workspace.splits + s) * heads + head;
      value = __fmaf_rn(workspace.results[at * latent + d],
                        exp2f(workspace.facts[at].x - reference), value);
    }
    op.out(row, head, d) = value * inverse;
  }
  if (op.lse.data != nullptr && threadIdx.x == 0) {
    op.lse(row, head) = sum == 0.0f ? -INFINITY : (maximum + log2f(sum)) / kLog2E;
  }
}

}  // namespace

size_t SplitWorkspaceBytes(int64_t rows, int64_t heads, int64_t columns, DType, int64_t latent) {
  return static_cast<size_t>(rows * heads * SplitCount(columns)) *
         (static_cast<size_t>(latent) * 4 + sizeof(float2));
}

SplitWorkspace TakeSplitWorkspace(const SparseMla& op) {
  const int splits = SplitCount(op.ids.dim(1));
  const int64_t results = op.query.dim(0) * op.query.dim(1) * splits;
  float* base = reinterpret_cast<float*>(op.workspace.data);
  // The facts come first: they keep their 8-byte alignment whatever the latent width.
  return {base + 2 * results, reinterpret_cast<float2*>(base), splits};
}

void MergeSplits(const SparseMla& op, const SplitWorkspace& workspace, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(op.query.dim(1)), static_cast<unsigned>(op.query.dim(0)));
  MergeSplitsKernel<<<grid, 128, 0, stream>>>(op, workspace);
  CheckCuda(cudaGetLastError(), "SparseMla: launch (merge)");
}

const SparseMlaVariant& ChooseSparseMla(const SparseMla& op, int ordinal) {
  const int sm = LimitsOf(ordinal).sm;
  for (const SparseMlaVariant* variant : kSparseMlaVariants) {
    if (variant->Supports(op, sm)) return *variant;
  }
  std::string message =
      "SparseMla: sm_" + std::to_string(sm) + ", " + DTypeName(op.pages.layout.dtype) +
      " rows of " + std::to_string(op.pages.layout.latent) + " + " +
      std::to_string(op.pages.layout.rope) + ", " + std::to_string(op.query.dim(1)) + " heads, " +
      DTypeName(op.query.dtype) + " query are served by no CUDA variant";
  for (const SparseMlaVariant* variant : kSparseMlaVariants) {
    message += std::string("; ") + variant->name + ": " + variant->features;
  }
  Fail(ErrorCode::kDevice, message);
}

void Run(const SparseMla& op, Stream stream) {
  const DeviceScope scope(stream.device.ordinal);
  const SparseMlaVariant& variant = ChooseSparseMla(op, stream.device.ordinal);
  const size_t bytes = variant.WorkspaceBytes(op.query.dim(0), op.query.dim(1), op.ids.dim(1),
                                              op.pages.layout.dtype, op.pages.layout.latent);
  if (static_cast<size_t>(op.workspace.dim(0)) < bytes) {
    Fail(ErrorCode::kShape, std::string("SparseMla: the ") + variant.name + " variant needs " +
                                std::to_string(bytes) + " bytes of workspace, not " +
                                std::to_string(op.workspace.dim(0)) +
                                "; a query or output whose rows do not start at 16 bytes keeps "
                                "sm90 from serving");
  }
  variant.Run(op, static_cast<cudaStream_t>(stream.native));
}

// The variant depends on the query's strides too, which are not known here: what is served by the
// sm_90a kernel when they are as usual is reserved for it alone. fp32 stands for any storage type,
// so that it bounds them all.
size_t SparseMlaWorkspaceBytes(int64_t rows, int64_t heads, int64_t columns,
                               const LatentLayout& layout, int ordinal) {
  const bool sm90 = LimitsOf(ordinal).sm == 90 && SparseMlaSm90Serves(layout, heads);
  const size_t fast =
      sm90 ? kSparseMlaSm90.WorkspaceBytes(rows, heads, columns, layout.dtype, layout.latent) : 0;
  const size_t portable = SplitWorkspaceBytes(rows, heads, columns, layout.dtype, layout.latent);
  return sm90 && layout.dtype != DType::kF32 ? fast : std::max(fast, portable);
}

}  // namespace strata::cuda
