// Sparse attention on CUDA cores, for every architecture and every storage type: a warp per head,
// fp32 throughout.
#include "kernels/cuda/sparse_mla_split.cuh"
#include "kernels/cuda/sparse_mla_variants.h"

namespace strata::cuda {

namespace {

constexpr int kWarps = 8;       // heads of a CTA
constexpr int kStageRows = 16;  // rows decoded at a time
constexpr int kMaxLatent = 512, kMaxRope = 64;
constexpr int kLatentSteps = kMaxLatent / 32, kRopeSteps = kMaxRope / 32;

// Grid: splits, groups of heads, rows.
__global__ void __launch_bounds__(kWarps * 32)
    SimpleKernel(const __grid_constant__ SparseMla op,
                 const __grid_constant__ SplitWorkspace workspace) {
  __shared__ float stage[kStageRows][kMaxLatent + kMaxRope];
  __shared__ bool valid[kStageRows];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int64_t row = blockIdx.z, heads = op.query.dim(1), head = blockIdx.y * kWarps + warp;
  const LatentLayout layout = op.pages.layout;
  const float scale_log2 = op.scale * 1.4426950408889634f;

  float query[kLatentSteps + kRopeSteps], result[kLatentSteps];
#pragma unroll
  for (int i = 0; i < kLatentSteps + kRopeSteps; ++i) {
    const int64_t d =
        i < kLatentSteps ? lane + 32 * i : layout.latent + lane + 32 * (i - kLatentSteps);
    const bool inside = i < kLatentSteps ? d < layout.latent : d < layout.latent + layout.rope;
    query[i] = inside && head < heads ? QueryValue(op, row, head, d) : 0.0f;
    if (i < kLatentSteps) result[i] = 0.0f;
  }
  float maximum = -INFINITY, sum = 0.0f;

  for (int first = 0; first < kSplitIds; first += kStageRows) {
    __syncthreads();
    for (int j = warp; j < kStageRows; j += kWarps) {
      const std::byte* source = SelectedRow(op, row, int64_t{blockIdx.x} * kSplitIds + first + j);
      if (lane == 0) valid[j] = source != nullptr;
#pragma unroll 1
      for (int i = 0; i < kLatentSteps + kRopeSteps; ++i) {
        const int64_t d =
            i < kLatentSteps ? lane + 32 * i : layout.latent + lane + 32 * (i - kLatentSteps);
        const bool inside = i < kLatentSteps ? d < layout.latent : d < layout.latent + layout.rope;
        stage[j][lane + 32 * i] =
            inside && source != nullptr ? StoredValue(layout, source, d) : 0.0f;
      }
    }
    __syncthreads();
    float score[kStageRows], joint = maximum;
#pragma unroll
    for (int j = 0; j < kStageRows; ++j) {
      float dot = 0.0f;
#pragma unroll
      for (int i = 0; i < kLatentSteps + kRopeSteps; ++i)
        dot = __fmaf_rn(query[i], stage[j][lane + 32 * i], dot);
#pragma unroll
      for (int offset = 16; offset > 0; offset >>= 1) dot += __shfl_xor_sync(~0u, dot, offset);
      score[j] = valid[j] ? dot * scale_log2 : -INFINITY;
      joint = fmaxf(joint, score[j]);
    }
    if (joint == -INFINITY) continue;
    const float alpha = exp2f(maximum - joint);
    maximum = joint, sum *= alpha;
#pragma unroll
    for (int i = 0; i < kLatentSteps; ++i) result[i] *= alpha;
#pragma unroll
    for (int j = 0; j < kStageRows; ++j) {
      const float weight = exp2f(score[j] - joint);
      sum += weight;
#pragma unroll
      for (int i = 0; i < kLatentSteps; ++i)
        result[i] = __fmaf_rn(weight, stage[j][lane + 32 * i], result[i]);
    }
  }
  if (head >= heads) return;
  const int64_t at = (row * workspace.splits + blockIdx.x) * heads + head;
  if (lane == 0) workspace.facts[at] = make_float2(maximum, sum);
#pragma unroll
  for (int i = 0; i < kLatentSteps; ++i) {
    if (lane + 32 * i < layout.latent)
      workspace.results[at * layout.latent + lane + 32 * i] = result[i];
  }
}

}  // namespace

const SparseMlaVariant kSparseMlaSimple = {
    "simple",
    "sm_75 and up, latent to 512 with rope to 64, fp32 / bf16 / fp8 / int8 rows, fp32 / bf16 query",
    [](const SparseMla& op, int sm) {
      const LatentLayout& layout = op.pages.layout;
      return sm >= 75 && layout.dtype != DType::kI32 && layout.latent <= kMaxLatent &&
             layout.rope <= kMaxRope &&
             (op.query.dtype == DType::kF32 || op.query.dtype == DType::kBf16);
    },
    [](const SparseMla& op, cudaStream_t stream) {
      const SplitWorkspace workspace = TakeSplitWorkspace(op);
      const dim3 grid(static_cast<unsigned>(workspace.splits),
                      static_cast<unsigned>((op.query.dim(1) + kWarps - 1) / kWarps),
                      static_cast<unsigned>(op.query.dim(0)));
      SimpleKernel<<<grid, kWarps * 32, 0, stream>>>(op, workspace);
      CheckCuda(cudaGetLastError(), "SparseMla: launch (simple)");
      MergeSplits(op, workspace, stream);
    },
    SplitWorkspaceBytes};

}  // namespace strata::cuda
