// What every selection kernel shares: the places of a row, and reductions over a CTA of 1024
// threads.
#pragma once

#include <cstdint>

#include "kernels/order.h"
#include "kernels/topk_select.h"

namespace strata::cuda {

constexpr int kTopkThreads = 1024;
constexpr int kTopkWarps = kTopkThreads / 32;
constexpr int kTopkBins = 2048;

__device__ __forceinline__ uint32_t WarpMax(uint32_t value) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  return __reduce_max_sync(~0u, value);
#else
  for (int d = 16; d > 0; d >>= 1) value = max(value, __shfl_xor_sync(~0u, value, d));
  return value;
#endif
}
__device__ __forceinline__ uint32_t WarpMin(uint32_t value) { return ~WarpMax(~value); }
__device__ __forceinline__ uint32_t WarpSum(uint32_t value) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  return __reduce_add_sync(~0u, value);
#else
  for (int d = 16; d > 0; d >>= 1) value += __shfl_xor_sync(~0u, value, d);
  return value;
#endif
}

// Sum of `value` over this and the lanes before it.
__device__ __forceinline__ uint32_t WarpScan(uint32_t value) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const uint32_t other = __shfl_up_sync(~0u, value, d);
    if (lane >= d) value += other;
  }
  return value;
}

struct RowPlan {
  int candidates;            // that are scored
  int places;                // for candidates
  int tail_begin, tail_end;  // cells of the incomplete pool that are selected
  __device__ __forceinline__ bool all() const { return candidates <= places; }
  __device__ __forceinline__ int winners() const {
    return candidates < places ? candidates : places;
  }
};

__device__ __forceinline__ RowPlan PlanRow(const TopkSelect& op, int64_t row) {
  RowPlan plan;
  const int kpool = static_cast<int>(op.kpool);
  plan.candidates = max(op.lengths(row), 0);
  plan.tail_begin = plan.tail_end = plan.candidates * kpool;
  if (kpool > 1 && op.tail != PoolTail::kNone) {
    plan.tail_end = min(max(op.cells(row), plan.tail_begin), plan.tail_begin + kpool - 1);
  }
  plan.places = static_cast<int>(op.k);
  if (kpool > 1) plan.places /= kpool;
  if (op.tail == PoolTail::kForce && plan.tail_end > plan.tail_begin) --plan.places;
  if (!plan.all()) plan.candidates = min(plan.candidates, static_cast<int>(op.scores.dim(1)));
  return plan;
}

// What stands in a row behind its winners, and all of a row that is selected whole; `thread` of
// `threads`.
__device__ __forceinline__ void FinishRow(const TopkSelect& op, int64_t row, const RowPlan& plan,
                                          int thread, int threads) {
  int32_t* ids = op.ids.row(row);
  const int from_candidates = plan.winners() * static_cast<int>(op.kpool);
  const int count = from_candidates + plan.tail_end - plan.tail_begin;
  if (plan.all()) {
#pragma unroll 1
    for (int i = thread; i < from_candidates; i += threads) ids[i] = i;
  }
#pragma unroll 1
  for (int i = from_candidates + thread; i < static_cast<int>(op.ids.dim(1)); i += threads) {
    ids[i] = i < count ? plan.tail_begin + i - from_candidates : -1;
  }
  if (thread == 0) op.counts(row) = count;
}

__device__ __forceinline__ void WriteWinner(const TopkSelect& op, int64_t row, int place,
                                            int candidate) {
  int32_t* ids = op.ids.row(row);
  const int kpool = static_cast<int>(op.kpool);
  if (kpool == 1) {
    ids[place] = candidate;
  } else {
#pragma unroll 1
    for (int c = 0; c < kpool; ++c) ids[place * kpool + c] = candidate * kpool + c;
  }
}

// Sum of `value` over the threads before this one. All threads call; `sums` holds a word per warp.
__device__ __forceinline__ uint32_t ExclusiveScan(uint32_t value, uint32_t* sums) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const uint32_t scan = WarpScan(value);
  __syncthreads();  // `sums` may still be read from the call before
  if (lane == 31) sums[warp] = scan;
  __syncthreads();
  return WarpSum(lane < warp ? sums[lane] : 0u) + scan - value;
}

// Where a histogram, walked from its highest bin, reaches `need`. Thread t holds `counts` of its
// own bins, the highest bin first; threads of higher bins come first. The thread that holds the bin
// writes `found`: {bin, entries above it, entries in it}. All threads call; a barrier is needed
// before `found` is read.
template <int kOwn>
__device__ __forceinline__ void FindBin(const uint32_t (&counts)[kOwn], int first_bin,
                                        uint32_t need, uint32_t* sums, uint32_t* found) {
  uint32_t own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) own += counts[i];
  uint32_t above = ExclusiveScan(own, sums);
  if (above >= need || above + own < need) return;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (above < need && above + counts[i] >= need) {
      found[0] = static_cast<uint32_t>(first_bin - i);
      found[1] = above;
      found[2] = counts[i];
    }
    above += counts[i];
  }
}

}  // namespace strata::cuda
