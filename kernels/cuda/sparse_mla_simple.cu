// Sparse attention on CUDA cores, for every architecture and every storage type: a warp per head,
// fp32 throughout.
#include "kernels/cuda/sparse_mla_split.cuh"
#include "kernels/cuda/sparse_mla_variants.h"

namespace strata::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kWarpHeads = 4;  // heads of a warp: they share what it reads of a row
constexpr int kHeads = kWarps * kWarpHeads;
constexpr int kStageRows = 16;  // rows decoded at a time
constexpr int kRun = 4;         // of which one softmax step takes
constexpr int kMaxLatent = 512, kMaxRope = 64;
constexpr int kLatentSteps = kMaxLatent / 32, kSteps = (kMaxLatent + kMaxRope) / 32;

// What lane `lane` holds as its value i: latents first, then RoPE values from kMaxLatent on. -1:
// nothing.
__device__ __forceinline__ int ValueIndex(const LatentLayout& layout, int lane, int i) {
  const int at = lane + 32 * i;
  const int latent = static_cast<int>(layout.latent);
  if (at < kMaxLatent) return at < latent ? at : -1;
  return at - kMaxLatent < layout.rope ? latent + at - kMaxLatent : -1;
}

// Grid: splits, groups of heads, rows.
template <DType kDType>
__global__ void __launch_bounds__(kWarps * 32)
    SimpleKernel(const __grid_constant__ SparseMla op,
                 const __grid_constant__ SplitWorkspace workspace) {
  __shared__ float stage[kStageRows][kMaxLatent + kMaxRope];
  __shared__ const std::byte* sources[kSplitIds];
  static_assert(kSplitIds == kWarps * 32);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int64_t row = blockIdx.z, heads = op.query.dim(1);
  const int64_t first_head = blockIdx.y * kHeads + warp * kWarpHeads;
  const LatentLayout layout = op.pages.layout;
  const float scale_log2 = op.scale * 1.4426950408889634f;

  sources[threadIdx.x] = SelectedRow(op, row, int64_t{blockIdx.x} * kSplitIds + threadIdx.x);
  float query[kWarpHeads][kSteps], result[kWarpHeads][kLatentSteps];
  float maximum[kWarpHeads], sum[kWarpHeads];
#pragma unroll
  for (int h = 0; h < kWarpHeads; ++h) {
    maximum[h] = -INFINITY, sum[h] = 0.0f;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int d = ValueIndex(layout, lane, i);
      query[h][i] =
          d >= 0 && first_head + h < heads ? QueryValue(op, row, first_head + h, d) : 0.0f;
      if (i < kLatentSteps) result[h][i] = 0.0f;
    }
  }

  for (int first = 0; first < kSplitIds; first += kStageRows) {
    __syncthreads();
    for (int j = warp; j < kStageRows; j += kWarps) {
      const std::byte* source = sources[first + j];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int d = ValueIndex(layout, lane, i);
        stage[j][lane + 32 * i] =
            d >= 0 && source != nullptr ? StoredValue<kDType>(layout, source, d) : 0.0f;
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int run = 0; run < kStageRows; run += kRun) {
      float score[kWarpHeads][kRun];
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
#pragma unroll
        for (int h = 0; h < kWarpHeads; ++h) score[h][j] = 0.0f;
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          const float x = stage[run + j][lane + 32 * i];
#pragma unroll
          for (int h = 0; h < kWarpHeads; ++h) score[h][j] = __fmaf_rn(query[h][i], x, score[h][j]);
        }
#pragma unroll
        for (int h = 0; h < kWarpHeads; ++h) {
#pragma unroll
          for (int offset = 16; offset > 0; offset >>= 1) {
            score[h][j] += __shfl_xor_sync(~0u, score[h][j], offset);
          }
          score[h][j] = sources[first + run + j] != nullptr ? score[h][j] * scale_log2 : -INFINITY;
        }
      }
#pragma unroll
      for (int h = 0; h < kWarpHeads; ++h) {
        float joint = maximum[h];
#pragma unroll
        for (int j = 0; j < kRun; ++j) joint = fmaxf(joint, score[h][j]);
        const float reference = joint == -INFINITY ? 0.0f : joint;
        const float alpha = exp2f(maximum[h] - reference);
        maximum[h] = joint, sum[h] *= alpha;
#pragma unroll
        for (int j = 0; j < kRun; ++j) {
          score[h][j] = exp2f(score[h][j] - reference);
          sum[h] += score[h][j];
        }
#pragma unroll
        for (int i = 0; i < kLatentSteps; ++i) result[h][i] *= alpha;
      }
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
#pragma unroll
        for (int i = 0; i < kLatentSteps; ++i) {
          const float x = stage[run + j][lane + 32 * i];
#pragma unroll
          for (int h = 0; h < kWarpHeads; ++h) {
            result[h][i] = __fmaf_rn(score[h][j], x, result[h][i]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kWarpHeads; ++h) {
    if (first_head + h >= heads) continue;
    const int64_t at = (row * workspace.splits + blockIdx.x) * heads + first_head + h;
    if (lane == 0) workspace.facts[at] = make_float2(maximum[h], sum[h]);
#pragma unroll
    for (int i = 0; i < kLatentSteps; ++i) {
      if (lane + 32 * i < layout.latent) {
        workspace.results[at * layout.latent + lane + 32 * i] = result[h][i];
      }
    }
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
      CheckGrid(op.query.dim(0), "SparseMla simple", "rows");
      const SplitWorkspace workspace = TakeSplitWorkspace(op);
      const dim3 grid(static_cast<unsigned>(workspace.splits),
                      static_cast<unsigned>((op.query.dim(1) + kHeads - 1) / kHeads),
                      static_cast<unsigned>(op.query.dim(0)));
      WithStorageType(op.pages.layout.dtype, [&]<DType kDType>() {
        SimpleKernel<kDType><<<grid, kWarps * 32, 0, stream>>>(op, workspace);
      });
      CheckCuda(cudaGetLastError(), "SparseMla: launch (simple)");
      MergeSplits(op, workspace, stream);
    },
    SplitWorkspaceBytes};

}  // namespace strata::cuda
