// The index scan on tensor cores for sm_80 and up: bf16 keys as operand A in their stored order,
// queries as operand B.
//
// Tiles of 64 keys come to shared memory by asynchronous 16-byte copies, one tile ahead of the one
// in work; a warp multiplies 16 keys with all heads of a row. As in the sm_90a scan a thread takes
// 16 consecutive bytes of a key (and of a query) for four products: both sides see the dimensions
// in one and the same permuted order.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/index_scan_unit.cuh"
#include "kernels/cuda/index_scan_variants.h"

namespace strata::cuda {

namespace {

constexpr int kTile = 64;
constexpr int kThreads = 128;
[[maybe_unused]] constexpr int kRowBytes = 256;
// Bytes between rows in shared memory: the 8 rows of a load fall on different banks.
constexpr int kPitch = 320;
constexpr int kMaxColumns = 128;  // (row, head) pairs in shared memory
constexpr int kSharedBytes = (2 * kTile + kMaxColumns) * kPitch + kMaxColumns * 4;

struct Launch {
  IndexScan op;
  int columns;  // of a row: its heads, to a multiple of 8
  int units;
  int rows_per_unit;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
__device__ __forceinline__ void CopyAsync(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}
__device__ __forceinline__ void Multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void StartTile(const IndexScan& op, const ScanUnit& unit, int tile,
                                          std::byte* target, int thread) {
  constexpr int kPieces = kRowBytes / 16;
  for (int i = thread; i < kTile * kPieces; i += kThreads) {
    const int key = tile * kTile + i / kPieces;
    if (key < unit.longest)
      CopyAsync(target + i / kPieces * kPitch + i % kPieces * 16,
                KeyAt(op, unit, key) + i % kPieces * 16);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ __forceinline__ uint4 Load16(const std::byte* p) {
  return *reinterpret_cast<const uint4*>(p);
}
#endif

__global__ void __launch_bounds__(kThreads) ScanMmaKernel(const __grid_constant__ Launch launch) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ std::byte shared[];
  std::byte* tiles = shared;
  std::byte* queries = shared + 2 * kTile * kPitch;
  float* weights = reinterpret_cast<float*>(queries + kMaxColumns * kPitch);
  const IndexScan& op = launch.op;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5,
            quad = lane & 3, g = lane >> 2;
  const int group = static_cast<int>(blockIdx.y) / launch.units,
            heads = static_cast<int>(op.query.dim(1));
  const int step = static_cast<int>(gridDim.x);
  for (int number = static_cast<int>(blockIdx.y) % launch.units;; number += launch.units) {
    const ScanUnit unit = UnitOf(op, group, number, launch.rows_per_unit);
    if (unit.rows <= 0) return;
    const int tile_count = (unit.longest + kTile - 1) / kTile;
    __syncthreads();  // the unit before is done with the queries and the tiles
    int buffer = 0;
    if (static_cast<int>(blockIdx.x) < tile_count)
      StartTile(op, unit, static_cast<int>(blockIdx.x), tiles, thread);
    for (int i = thread; i < unit.rows * launch.columns * 16; i += kThreads) {
      const int column = i / 16, row = column / launch.columns, head = column % launch.columns;
      uint4 value = make_uint4(0, 0, 0, 0);
      if (head < heads) {
        value = __ldg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(op.query.data) +
                                                     (unit.first_row + row) * op.query.stride[0] +
                                                     head * op.query.stride[1]) +
                      i % 16);
      }
      *reinterpret_cast<uint4*>(queries + column * kPitch + i % 16 * 16) = value;
    }
    for (int i = thread; i < unit.rows * launch.columns; i += kThreads) {
      const int head = i % launch.columns;
      weights[i] = head < heads ? op.weights(unit.first_row + i / launch.columns, head) : 0.0f;
    }
    for (int tile = static_cast<int>(blockIdx.x); tile < tile_count; tile += step, buffer ^= 1) {
      if (tile + step < tile_count) {
        StartTile(op, unit, tile + step, tiles + (buffer ^ 1) * kTile * kPitch, thread);
        asm volatile("cp.async.wait_group 1;" ::: "memory");
      } else {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
      }
      __syncthreads();
      const std::byte* keys =
          tiles + buffer * kTile * kPitch + (warp * 16 + g) * kPitch + quad * 16;
      uint32_t a[8][4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const uint4 low = Load16(keys + c * 64), high = Load16(keys + 8 * kPitch + c * 64);
        const int first = c / 2 * 4, half = c % 2 * 2;
        a[first][half] = low.x, a[first + 1][half] = low.y, a[first + 2][half] = low.z,
        a[first + 3][half] = low.w;
        a[first][half + 1] = high.x, a[first + 1][half + 1] = high.y,
                        a[first + 2][half + 1] = high.z, a[first + 3][half + 1] = high.w;
      }
      const int key = tile * kTile + warp * 16 + g + 8 * (quad & 1);
      for (int row = 0; row < unit.rows; ++row) {
        float low = 0.0f, high = 0.0f;
        for (int block = 0; block < launch.columns; block += 8) {
          const std::byte* query =
              queries + (row * launch.columns + block + g) * kPitch + quad * 16;
          float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
          for (int p = 0; p < 2; ++p) {
            const uint4 b0 = Load16(query + p * 128), b1 = Load16(query + p * 128 + 64);
            Multiply(c, a[4 * p], b0.x, b1.x);
            Multiply(c, a[4 * p + 1], b0.y, b1.y);
            Multiply(c, a[4 * p + 2], b0.z, b1.z);
            Multiply(c, a[4 * p + 3], b0.w, b1.w);
          }
          const float2 w =
              *reinterpret_cast<const float2*>(weights + row * launch.columns + block + 2 * quad);
          low = fmaf(Relu(c[1]), w.y, fmaf(Relu(c[0]), w.x, low));
          high = fmaf(Relu(c[3]), w.y, fmaf(Relu(c[2]), w.x, high));
        }
        const float other = __shfl_xor_sync(~0u, (quad & 1) != 0 ? low : high, 1);
        float sum = ((quad & 1) != 0 ? high : low) + other;
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (quad < 2 && key < VisibleKeys(op, unit.first_row + row))
          StoreScore(op, unit.first_row + row, key, sum);
      }
      __syncthreads();  // the tile's place is filled again in the next turn
    }
  }
#endif
}

}  // namespace

void RunScanMma(const IndexScan& op, int multiprocessors, cudaStream_t stream) {
  const int64_t rows = op.query.dim(0), groups = op.rows.first_row.dim(0) - 1;
  if (rows == 0 || groups == 0) return;
  Launch launch{.op = op,
                .columns = static_cast<int>((op.query.dim(1) + 7) / 8 * 8),
                .units = 0,
                .rows_per_unit = 0};
  launch.rows_per_unit =
      static_cast<int>(std::min<int64_t>(kMaxGroupRows, kMaxColumns / launch.columns));
  const int64_t mean = (rows + groups - 1) / groups;
  launch.units = static_cast<int>(
      (std::min<int64_t>(mean, kMaxGroupRows) + launch.rows_per_unit - 1) / launch.rows_per_unit);
  const int64_t tiles = (op.scores.dim(1) + kTile - 1) / kTile, lines = groups * launch.units;
  const int64_t across =
      std::clamp<int64_t>(multiprocessors * 2 / lines, 1, std::max<int64_t>(tiles, 1));
  CheckGrid(lines, "IndexScan mma", "groups of rows");
  AllowSharedBytes(ScanMmaKernel, kSharedBytes, "IndexScan mma: shared memory size");
  ScanMmaKernel<<<dim3(static_cast<unsigned>(across), static_cast<unsigned>(lines)), kThreads,
                  kSharedBytes, stream>>>(launch);
  CheckCuda(cudaGetLastError(), "IndexScan mma");
}

}  // namespace strata::cuda
