// Sparse attention with mma.sync for sm_80 and up: every storage type becomes f16 tiles.
//
// A CTA takes 32 heads and one split of a row's ids, 32 rows at a time. Query heads and stored rows
// alike are divided by a power of two of their own that puts their largest value into [256, 512),
// latent and RoPE part apart; the powers rejoin in the score and in the exponent of the softmax
// weight: weight = 2^(score + log2 power - maximum) stays within [0, 1], and the sum takes weight /
// power.
#include <cuda_fp16.h>

#include "kernels/cuda/sparse_mla_split.cuh"
#include "kernels/cuda/sparse_mla_variants.h"

namespace strata::cuda {

namespace {

constexpr int kLatent = 512, kRope = 64, kWidth = kLatent + kRope;
constexpr int kHeads = 32, kRows = 32, kThreads = 256;
// Rows of 73 and 5 times 16 bytes: eight rows in a column touch every bank once.
constexpr int kPitch = kWidth + 8, kWeightPitch = kRows + 8;

struct Tiles {
  __half query[kHeads][kPitch];
  __half rows[kRows][kPitch];
  __half weights[kHeads][kWeightPitch];
  float scores[kHeads][kRows + 1];
  float query_power[2][kHeads];  // latent part, RoPE part
  float row_power[2][kRows];
  float row_log2[kRows];  // log2 of the latent power, -inf where there is no row
  float alpha[kHeads];
  const std::byte* source[kSplitIds];
};

__device__ __forceinline__ uint32_t Address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void LoadMatrix4(uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(Address(p))
               : "memory");
}
__device__ __forceinline__ void LoadMatrix2(uint32_t (&r)[2], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(Address(p))
               : "memory");
}
__device__ __forceinline__ void LoadMatrix2Transposed(uint32_t (&r)[2], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(Address(p))
               : "memory");
}
__device__ __forceinline__ void Mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

__device__ __forceinline__ float WarpMax(float x) {
  for (int offset = 16; offset > 0; offset >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}

// The power of two that puts `largest` into [256, 512); 1 for a row of zeros.
__device__ __forceinline__ float PowerFor(float largest) {
  if (largest == 0.0f) return 1.0f;
  const float clamped = fminf(fmaxf(largest, 8.7e-19f), 1.1e18f);
  return __uint_as_float((__float_as_uint(clamped) & 0x7F800000u) - (8u << 23));
}

// A warp turns one row of values, value(d), into f16 after division by its powers.
template <class Value>
__device__ __forceinline__ void FillRow(__half* out, float* latent_power, float* rope_power,
                                        int lane, Value&& value) {
  float x[kWidth / 32], largest = 0.0f, largest_rope = 0.0f;
#pragma unroll
  for (int i = 0; i < kWidth / 32; ++i) {
    x[i] = value(lane + 32 * i);
    if (i < kLatent / 32) {
      largest = fmaxf(largest, fabsf(x[i]));
    } else {
      largest_rope = fmaxf(largest_rope, fabsf(x[i]));
    }
  }
  const float power = PowerFor(WarpMax(largest)), power_rope = PowerFor(WarpMax(largest_rope));
#pragma unroll
  for (int i = 0; i < kWidth / 32; ++i) {
    out[lane + 32 * i] = __float2half_rn(x[i] * (1.0f / (i < kLatent / 32 ? power : power_rope)));
  }
  if (lane == 0) *latent_power = power, *rope_power = power_rope;
}

// Grid: splits, groups of heads, rows.
template <DType kDType>
__global__ void __launch_bounds__(kThreads)
    MmaKernel(const __grid_constant__ SparseMla op,
              const __grid_constant__ SplitWorkspace workspace) {
  extern __shared__ __align__(16) char shared[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(shared);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int64_t row = blockIdx.z, heads = op.query.dim(1);
  const int first_head = blockIdx.y * kHeads;
  const LatentLayout layout = op.pages.layout;
  const float scale_log2 = op.scale * 1.4426950408889634f;
  const int width = kLatent + static_cast<int>(layout.rope);

  for (int h = warp; h < kHeads; h += kThreads / 32) {
    const bool real = first_head + h < heads;
    FillRow(tiles.query[h], &tiles.query_power[0][h], &tiles.query_power[1][h], lane, [&](int d) {
      return real && d < width ? QueryValue(op, row, first_head + h, d) : 0.0f;
    });
  }
  static_assert(kSplitIds == kThreads);
  tiles.source[threadIdx.x] = SelectedRow(op, row, int64_t{blockIdx.x} * kSplitIds + threadIdx.x);
  // Scores: warp w has heads 16 (w / 4) .. and rows 8 (w % 4) ..; values: all heads, latents 64 w
  // ...
  const int score_head = (warp >> 2) * 16, score_row = (warp & 3) * 8;
  // Softmax: eight threads a head.
  const int soft_head = threadIdx.x >> 3, soft_part = threadIdx.x & 7;
  float maximum = -INFINITY, sum = 0.0f;
  float result[2][8][4] = {};

  for (int first = 0; first < kSplitIds; first += kRows) {
    __syncthreads();
#pragma unroll 2
    for (int j = warp; j < kRows; j += kThreads / 32) {
      const std::byte* source = tiles.source[first + j];
      FillRow(tiles.rows[j], &tiles.row_power[0][j], &tiles.row_power[1][j], lane, [&](int d) {
        return source != nullptr && d < width ? StoredValue<kDType>(layout, source, d) : 0.0f;
      });
      if (lane == 0)
        tiles.row_log2[j] = source != nullptr ? log2f(tiles.row_power[0][j]) : -INFINITY;
    }
    __syncthreads();
    float latent_score[4] = {}, rope_score[4] = {};
#pragma unroll
    for (int k = 0; k < kWidth; k += 16) {
      uint32_t a[4], b[2];
      LoadMatrix4(a, &tiles.query[score_head + (lane & 15)][k + (lane >> 4) * 8]);
      LoadMatrix2(b, &tiles.rows[score_row + (lane & 7)][k + (lane >> 3 & 1) * 8]);
      Mma(k < kLatent ? latent_score : rope_score, a, b);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int h = score_head + (lane >> 2) + (i >> 1) * 8,
                j = score_row + (lane & 3) * 2 + (i & 1);
      const float score = latent_score[i] * tiles.query_power[0][h] * tiles.row_power[0][j] +
                          rope_score[i] * tiles.query_power[1][h] * tiles.row_power[1][j];
      tiles.scores[h][j] = __fmaf_rn(score, scale_log2, tiles.row_log2[j]);
    }
    __syncthreads();
    float exponent[4], joint = maximum;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      exponent[i] = tiles.scores[soft_head][soft_part + 8 * i];
      joint = fmaxf(joint, exponent[i]);
    }
#pragma unroll
    for (int offset = 4; offset > 0; offset >>= 1)
      joint = fmaxf(joint, __shfl_xor_sync(~0u, joint, offset));
    const float reference = joint == -INFINITY ? 0.0f : joint;
    const float alpha = exp2f(maximum - reference);
    float part = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = soft_part + 8 * i;
      const float weight = exp2f(exponent[i] - reference);
      tiles.weights[soft_head][j] = __float2half_rn(weight);
      part += weight / tiles.row_power[0][j];
    }
#pragma unroll
    for (int offset = 4; offset > 0; offset >>= 1) part += __shfl_xor_sync(~0u, part, offset);
    sum = __fmaf_rn(sum, alpha, part);
    maximum = joint;
    if (soft_part == 0) tiles.alpha[soft_head] = alpha;
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float low = tiles.alpha[16 * m + (lane >> 2)],
                  high = tiles.alpha[16 * m + (lane >> 2) + 8];
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        result[m][n][0] *= low, result[m][n][1] *= low, result[m][n][2] *= high,
            result[m][n][3] *= high;
      }
    }
#pragma unroll
    for (int k = 0; k < kRows; k += 16) {
      uint32_t a[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m)
        LoadMatrix4(a[m], &tiles.weights[16 * m + (lane & 15)][k + (lane >> 4) * 8]);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        uint32_t b[2];
        LoadMatrix2Transposed(b, &tiles.rows[k + (lane & 15)][warp * 64 + n * 8]);
        Mma(result[0][n], a[0], b);
        Mma(result[1][n], a[1], b);
      }
    }
  }

  const int64_t split = row * workspace.splits + blockIdx.x;
  if (soft_part == 0 && first_head + soft_head < heads) {
    workspace.facts[split * heads + first_head + soft_head] = make_float2(maximum, sum);
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head = first_head + 16 * m + (lane >> 2) + 8 * half;
        if (head < heads) {
          float* out = workspace.results + (split * heads + head) * kLatent + warp * 64 + n * 8 +
                       (lane & 3) * 2;
          out[0] = result[m][n][2 * half], out[1] = result[m][n][2 * half + 1];
        }
      }
    }
  }
}

}  // namespace

const SparseMlaVariant kSparseMlaMma = {
    "mma",
    "sm_80 and up, latent 512 with rope 64 or 0, fp32 / bf16 / fp8 / int8 rows, 8 to 128 heads "
    "(multiples of 8), fp32 / "
    "bf16 query",
    [](const SparseMla& op, int sm) {
      const LatentLayout& layout = op.pages.layout;
      return sm >= 80 && layout.dtype != DType::kI32 && layout.latent == kLatent &&
             (layout.rope == 0 || layout.rope == kRope) && op.query.dim(1) % 8 == 0 &&
             op.query.dim(1) <= 128 &&
             (op.query.dtype == DType::kF32 || op.query.dtype == DType::kBf16);
    },
    [](const SparseMla& op, cudaStream_t stream) {
      CheckGrid(op.query.dim(0), "SparseMla mma", "rows");
      const SplitWorkspace workspace = TakeSplitWorkspace(op);
      const dim3 grid(static_cast<unsigned>(workspace.splits),
                      static_cast<unsigned>((op.query.dim(1) + kHeads - 1) / kHeads),
                      static_cast<unsigned>(op.query.dim(0)));
      WithStorageType(op.pages.layout.dtype, [&]<DType kDType>() {
        AllowSharedBytes(MmaKernel<kDType>, sizeof(Tiles), "SparseMla: shared memory size");
        MmaKernel<kDType><<<grid, kThreads, sizeof(Tiles), stream>>>(op, workspace);
      });
      CheckCuda(cudaGetLastError(), "SparseMla: launch (mma)");
      MergeSplits(op, workspace, stream);
    },
    SplitWorkspaceBytes};

}  // namespace strata::cuda
