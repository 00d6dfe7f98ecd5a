// The index scan on CUDA cores: a warp per key, each lane holds four of the key's values.
//
// - multi: a (row, head) value is summed over the lanes by five xor shuffles; every lane ends with
//   every sum.
// - halve: at each offset a lane keeps half of its values, adds its partner's copy of them, and
//   sends the other half. Every value sees multi's additions, operand for operand, in a fraction
//   of the shuffles.
//
// The heads of a row are added up as a tree of halves in both, so that scores are the same bits for
// any set of rows.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/index_scan_unit.cuh"
#include "kernels/cuda/index_scan_variants.h"

namespace strata::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxValues = 32;  // (row, head) pairs reduced together

struct Launch {
  IndexScan op;
  int heads;
  int units;          // of a group, at most
  int rows_per_unit;  // rows of kValues values
};

template <class Key>
__device__ __forceinline__ float4 LoadKey(const std::byte* key, int lane, int dim) {
  if (lane * 4 >= dim) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if constexpr (sizeof(Key) == 4) {
    return __ldg(reinterpret_cast<const float4*>(key) + lane);
  } else {
    const uint2 bits = __ldg(reinterpret_cast<const uint2*>(key) + lane);
    return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
                       __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u));
  }
}

__device__ __forceinline__ float Partial(const float4& key, const float4& query) {
  return __fmaf_rn(key.w, query.w,
                   __fmaf_rn(key.z, query.z, __fmaf_rn(key.y, query.y, __fmul_rn(key.x, query.x))));
}
__device__ __forceinline__ float Weighted(float dot, float weight) {
  return __fmul_rn(Relu(dot), weight);
}

// Sums of kValues values over the warp; scores of the unit's rows for one key come out in
// place(row) of some lanes.
template <int kValues>
__device__ __forceinline__ void ScoreMulti(const Launch& launch, const ScanUnit& unit,
                                           float (&value)[kValues], const float* weights,
                                           const int* visible, int key, int lane) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
#pragma unroll
    for (int v = 0; v < kValues; ++v)
      value[v] = __fadd_rn(value[v], __shfl_xor_sync(~0u, value[v], offset));
  }
#pragma unroll
  for (int v = 0; v < kValues; ++v) value[v] = Weighted(value[v], weights[v]);
    // Halves of each row's heads; `heads` is a power of two, so the tree of a row never leaves it.
#pragma unroll
  for (int offset = kValues / 2; offset > 0; offset >>= 1) {
    if (offset >= launch.heads) continue;
#pragma unroll
    for (int v = 0; v < kValues; ++v) {
      if ((v & offset) == 0) value[v] = __fadd_rn(value[v], value[v + offset]);
    }
  }
  if (lane != 0) return;
#pragma unroll
  for (int v = 0; v < kValues; ++v) {
    const int row = v / launch.heads;
    if (v % launch.heads == 0 && key < visible[row])
      StoreScore(launch.op, unit.first_row + row, key, value[v]);
  }
}

// Of the first 2 * kHalf values a lane keeps kHalf, added to its partner's at offset kOffset; and
// so on, down to one. The counts are constants: values indexed by a variable would leave the
// registers.
template <int kHalf, int kOffset, int kValues>
__device__ __forceinline__ void Halve(float (&value)[kValues], int lane) {
  const bool upper = (lane & kOffset) != 0;
#pragma unroll
  for (int v = 0; v < kHalf; ++v) {
    const float keep = upper ? value[v + kHalf] : value[v],
                give = upper ? value[v] : value[v + kHalf];
    value[v] = __fadd_rn(keep, __shfl_xor_sync(~0u, give, kOffset));
  }
  if constexpr (kHalf > 1) Halve<kHalf / 2, kOffset / 2>(value, lane);
}

template <int kValues>
__device__ __forceinline__ void ScoreHalve(const Launch& launch, const ScanUnit& unit,
                                           float (&value)[kValues], const float* weights,
                                           const int* visible, int key, int lane) {
  Halve<kValues / 2, 16>(value, lane);
  constexpr int kLanes = 32 / kValues;  // that end with the same value
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset >>= 1) {
    value[0] = __fadd_rn(value[0], __shfl_xor_sync(~0u, value[0], offset));
  }
  const int mine = lane / kLanes, row = mine / launch.heads;
  float score = Weighted(value[0], weights[mine]);
  for (int offset = launch.heads / 2; offset > 0; offset >>= 1) {
    score = __fadd_rn(score, __shfl_xor_sync(~0u, score, offset * kLanes));
  }
  if (lane % (kLanes * launch.heads) == 0 && key < visible[row])
    StoreScore(launch.op, unit.first_row + row, key, score);
}

template <class Key, int kValues, bool kHalve>
__global__ void __launch_bounds__(kThreads)
    ScanButterflyKernel(const __grid_constant__ Launch launch) {
  __shared__ float4 query[kValues][32];
  __shared__ float weights[kValues];
  __shared__ int visible[kValues];  // keys of a row
  const IndexScan& op = launch.op;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int group = static_cast<int>(blockIdx.y) / launch.units,
            dim = static_cast<int>(op.keys.layout.dim);
  // A group may have more rows than `units` times `rows_per_unit` of an even spread: the CTA takes
  // every units-th unit.
  for (int number = static_cast<int>(blockIdx.y) % launch.units;; number += launch.units) {
    const ScanUnit unit = UnitOf(op, group, number, launch.rows_per_unit);
    if (unit.rows <= 0) return;
    __syncthreads();
    for (int i = thread; i < kValues * 32; i += kThreads) {
      const int value = i / 32, part = i % 32, row = value / launch.heads,
                head = value % launch.heads;
      float4 q = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (row < unit.rows && part * 4 < dim) {
        q = __ldg(reinterpret_cast<const float4*>(static_cast<const float*>(op.query.data) +
                                                  (unit.first_row + row) * op.query.stride[0] +
                                                  head * op.query.stride[1]) +
                  part);
      }
      query[value][part] = q;
    }
    if (thread < kValues) {
      const int row = thread / launch.heads;
      weights[thread] =
          row < unit.rows ? op.weights(unit.first_row + row, thread % launch.heads) : 0.0f;
      visible[thread] = thread < unit.rows ? VisibleKeys(op, unit.first_row + thread) : 0;
    }
    __syncthreads();
    // A warp takes kKeys keys at a time, and asks for the next ones before it works on these.
    constexpr int kKeys = kValues >= 32 ? 2 : 4, kStep = kWarps * kKeys;
    const int stride = static_cast<int>(gridDim.x) * kStep;
    float4 next[kKeys];
    const auto load = [&](int first) {
#pragma unroll
      for (int k = 0; k < kKeys; ++k)
        next[k] = LoadKey<Key>(KeyAt(op, unit, min(first + k, unit.longest - 1)), lane, dim);
    };
    int first = static_cast<int>(blockIdx.x) * kStep + warp * kKeys;
    if (first < unit.longest) load(first);
#pragma unroll 1
    for (; first < unit.longest; first += stride) {
      float4 keys[kKeys];
#pragma unroll
      for (int k = 0; k < kKeys; ++k) keys[k] = next[k];
      if (first + stride < unit.longest) load(first + stride);
      float value[kKeys][kValues];
#pragma unroll
      for (int v = 0; v < kValues; ++v) {
        const float4 q = query[v][lane];
#pragma unroll
        for (int k = 0; k < kKeys; ++k) value[k][v] = Partial(keys[k], q);
      }
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        if constexpr (kHalve) {
          ScoreHalve<kValues>(launch, unit, value[k], weights, visible, first + k, lane);
        } else {
          ScoreMulti<kValues>(launch, unit, value[k], weights, visible, first + k, lane);
        }
      }
    }
  }
}

template <class Key, bool kHalve>
void LaunchButterfly(const Launch& launch, int values, const dim3& grid, cudaStream_t stream) {
  const auto kernel = values <= 4    ? ScanButterflyKernel<Key, 4, kHalve>
                      : values <= 8  ? ScanButterflyKernel<Key, 8, kHalve>
                      : values <= 16 ? ScanButterflyKernel<Key, 16, kHalve>
                                     : ScanButterflyKernel<Key, 32, kHalve>;
  kernel<<<grid, kThreads, 0, stream>>>(launch);
  CheckCuda(cudaGetLastError(), "IndexScan butterfly");
}

}  // namespace

void RunScanButterfly(const IndexScan& op, bool halve, int multiprocessors, cudaStream_t stream) {
  const int64_t rows = op.query.dim(0), groups = op.rows.first_row.dim(0) - 1,
                heads = op.query.dim(1);
  if (rows == 0 || groups == 0) return;
  const int64_t mean = std::min<int64_t>((rows + groups - 1) / groups, kMaxGroupRows);
  int64_t values = 4;
  while (values < kMaxValues && values < mean * heads) values *= 2;
  values = std::max(values, heads);
  Launch launch{.op = op,
                .heads = static_cast<int>(heads),
                .units = 0,
                .rows_per_unit = static_cast<int>(values / heads)};
  launch.units = static_cast<int>((mean + launch.rows_per_unit - 1) / launch.rows_per_unit);
  // Resident CTAs, each with several steps of keys where the rows are long.
  const int64_t steps = (op.scores.dim(1) + 31) / 32, lines = groups * launch.units;
  const int64_t across =
      std::clamp<int64_t>(multiprocessors * 4 / lines, 1, std::max<int64_t>(steps, 1));
  CheckGrid(lines, "IndexScan butterfly", "groups of rows");
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(lines));
  const bool f32 = op.keys.layout.dtype == DType::kF32;
  const auto run =
      f32 ? (halve ? LaunchButterfly<float, true> : LaunchButterfly<float, false>)
          : (halve ? LaunchButterfly<uint16_t, true> : LaunchButterfly<uint16_t, false>);
  run(launch, static_cast<int>(values), grid, stream);
}

}  // namespace strata::cuda
