// Sparse attention on CUDA: the choice of the variant, and the merge that the portable variants
// share.
#include <cmath>
#include <string>

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
    op.lse(row, head) = sum > 0.0f ? (maximum + log2f(sum)) / kLog2E : -INFINITY;
  }
}

int DeviceSm(int ordinal) {
  int major = 0, minor = 0;
  CheckCuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal),
            "SparseMla: device");
  CheckCuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal),
            "SparseMla: device");
  return 10 * major + minor;
}

}  // namespace

size_t SplitWorkspaceBytes(int64_t rows, int64_t heads, int64_t columns, int64_t latent) {
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
  const int sm = DeviceSm(ordinal);
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
  ChooseSparseMla(op, stream.device.ordinal).Run(op, static_cast<cudaStream_t>(stream.native));
}

// Which variant runs depends on the device and on the query's type and strides: the portable ones'
// need serves all.
size_t SparseMlaWorkspaceBytes(int64_t rows, int64_t heads, int64_t columns,
                               const LatentLayout& layout) {
  return SplitWorkspaceBytes(rows, heads, columns, layout.latent);
}

}  // namespace strata::cuda
